"""The command line: a function a verb, the work is in the modules it names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from batchline.errors import BatchlineError

app = typer.Typer(help="Serve PyTorch models on TorchServe and know what a batch costs.", no_args_is_help=True, add_completion=False)
exports = typer.Typer(help="The same models and settings on another engine.", no_args_is_help=True)
app.add_typer(exports, name="export")

Config = Annotated[Path, typer.Option(help="TorchServe's configuration file.")]
Store = Annotated[Path, typer.Option(help="The folder of *.mar archives.")]
Models = Annotated[Path, typer.Option(help="The folder of model folders.")]

CONFIG = Path("config.properties")
STORE = Path("model_store")
MODELS = Path("models")


@app.command()
def archive(
    names: Annotated[list[str], typer.Argument(metavar="NAME...")],
    models: Models = MODELS,
    store: Store = STORE,
) -> None:
    """Build the archive of each model and import its handler from it."""
    from batchline.archive import build

    for name in names:
        typer.echo(build(name, models=models, store=store))


@app.command("check-config")
def check_config(file: Annotated[Path, typer.Argument(metavar="FILE")] = CONFIG, model_store: Store = STORE) -> None:
    """Refuse a configuration that TorchServe would misread, naming line, key and remedy."""
    from batchline.lint import check

    typer.echo(f"{file}: {len(check(file, model_store).models)} models, nothing wrong.")


@app.command()
def serve(config: Config = CONFIG, model_store: Store = STORE, models: Models = MODELS) -> None:
    """Start TorchServe and return when every worker is READY."""
    from batchline import server, show

    console = Console()
    with show.show_progress(console) as progress:
        started = server.start(config, model_store, Path.cwd(), progress)
    names = sorted({model["modelName"] for model in started.client(Path.cwd()).models()})
    show.show_running(console, started, models, names)


@app.command()
def status(config: Config = CONFIG) -> None:
    """Show wanted and effective settings; exit 1 when they differ or no server runs."""
    from batchline import show
    from batchline import status as effective

    statuses = effective.status(Path.cwd(), config)
    show.show_status(Console(), statuses)
    raise typer.Exit(0 if all(model.matches for model in statuses) else 1)


@app.command()
def stop() -> None:
    """End the TorchServe that `serve` started here."""
    from batchline import server

    typer.echo("TorchServe has stopped." if server.stop(Path.cwd()) else "no server of this checkout runs.")


@app.command()
def predict(
    model: str,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", exists=True, dir_okay=False)],
    config: Config = CONFIG,
) -> None:
    """Send each FILE to MODEL and show the answer and its stage times; exit 1 when one is refused."""
    from batchline import show
    from batchline.client import Client
    from batchline.properties import read_configuration

    client, console, failed = Client.of(read_configuration(config)), Console(), False
    for file in files:
        console.print(str(file), markup=False, highlight=False, soft_wrap=True)
        answer = client.predict(model, file.read_bytes())
        show.show_answer(console, answer)
        failed |= answer.status >= 400
    raise typer.Exit(1 if failed else 0)


@app.command()
def load(
    model: str,
    rate_per_s: Annotated[float | None, typer.Option(help="Open loop: requests a second, whatever becomes of them.")] = None,
    clients: Annotated[int | None, typer.Option(help="Closed loop: clients that wait for their answers.")] = None,
    duration_s: Annotated[float | None, typer.Option(help="Seconds; 30 unless given, or all of a trace.")] = None,
    arrivals: Annotated[str, typer.Option(help="poisson, constant, or a file of times, one a line in seconds; open loop.")] = "poisson",
    seed: Annotated[int, typer.Option(help="Of poisson arrivals.")] = 1,
    protocol: Annotated[str, typer.Option(help="rest or grpc.")] = "rest",
    channels: Annotated[int, typer.Option(help="Connections over gRPC.")] = 1,
    server: Annotated[str, typer.Option(help="torchserve, as --config says, or triton at --url.")] = "torchserve",
    url: Annotated[str, typer.Option(help="Of a Triton.")] = "http://127.0.0.1:8000",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Every request, as JSON.")] = None,
    config: Config = CONFIG,
    models: Models = MODELS,
) -> None:
    """Send MODEL its own samples at a rate, as a trace says, or from N clients; exit 1 when the run is INVALID."""
    from batchline import load as generator
    from batchline import runfile, showload
    from batchline.properties import read_configuration
    from batchline.summary import summarise

    console = Console()
    schedule = generator.schedule(rate_per_s, clients, duration_s, arrivals, seed)
    generator.check_server(server)
    if server == "triton":
        target = generator.triton_target(url, model, models, protocol)
    else:
        target = generator.target(read_configuration(config), model, models, protocol=protocol, channels=channels)
    with showload.show_progress(console, schedule.duration_s) as progress:
        run = generator.drive(target, schedule, progress)
    if output:
        runfile.write(output, model, run)
    summary = summarise(run)
    showload.show_summary(console, summary)
    raise typer.Exit(1 if summary.invalid else 0)


@app.command()
def stages(
    model: str,
    clients: Annotated[int | None, typer.Option(help="That many clients that wait for their answers; else one request at a time.")] = None,
    rate_per_s: Annotated[float | None, typer.Option(help="Requests a second, whatever becomes of them.")] = None,
    duration_s: Annotated[float, typer.Option(help="Seconds.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
    config: Config = CONFIG,
    models: Models = MODELS,
) -> None:
    """Show one request to MODEL as a sum of stages, each measured; exit 1 when they do not add up to the total."""
    import json

    from batchline import journey, showload, showstages
    from batchline import stages as analysis
    from batchline.properties import read_configuration

    offered = journey.Offered(duration_s, rate_per_s, clients)
    offered.check()
    subject = journey.subject(read_configuration(config), model, models)
    with showload.show_progress(Console(stderr=True), duration_s) as progress:
        measured = journey.measure(subject, offered, progress)
    found = analysis.add_up(measured)
    if as_json:
        typer.echo(json.dumps(analysis.as_json(found), allow_nan=False, indent=1))
    else:
        showstages.show_journey(Console(), found)
    raise typer.Exit(1 if found.doubts else 0)


@app.command()
def race(
    model: str,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each form and batch size.")] = 5,
    forms: Annotated[str, typer.Option(help="Comma-separated; all unless given.")] = "",
    allow: Annotated[str, typer.Option(help="Less precision than float32: bf16, int8, or both with a comma; its cost is shown.")] = "",
    keep: Annotated[bool, typer.Option("--keep", help="Only show the result; leave runtime.json as it is.")] = False,
    model_store: Store = STORE,
    models: Models = MODELS,
) -> None:
    """Run MODEL as torch, torch.compile, AOTInductor, onnxruntime and OpenVINO; the next archive carries the fastest."""
    from batchline import race as racing
    from batchline import showrace
    from batchline.recipe import read_recipe

    console = Console()
    with showrace.show_progress(console) as progress:
        chosen, allowed = racing.parse_runtimes(forms), racing.parse_precisions(allow)
        found = racing.race(model, models, model_store, runtimes=chosen, rounds=rounds, progress=progress, allowed=allowed)
    path = None if keep else racing.write_choice(read_recipe(model, models), found)
    showrace.show_race(console, found, path)


@app.command()
def measure(
    model: str,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The raw values; run-MODEL.json unless given.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Under a minute on two cores; wider intervals.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the measurement in the file.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier measurement.")] = False,
    batch_sizes: Annotated[str, typer.Option(help="Comma-separated, 1 among them, instead of the plan's own.")] = "",
    config: Config = CONFIG,
    model_store: Store = STORE,
    models: Models = MODELS,
) -> None:
    """Measure what a batch of MODEL costs, on a TorchServe started for it beside any that runs."""
    from batchline import fit as fitting
    from batchline import measure as measuring
    from batchline import showmeasure
    from batchline.properties import read_configuration

    console, path = Console(), output or Path(f"run-{model}.json")
    subject = measuring.subject(model, models, model_store, read_configuration(config))
    measured = measuring.begin(subject, path, resume, overwrite, quick, measuring.parse_sizes(batch_sizes))
    showmeasure.show_plan(console, measured.plan)
    try:
        with showmeasure.show_progress(console) as progress:
            measuring.measure(subject, measured, path, progress)
    except KeyboardInterrupt:
        showmeasure.show_interrupted(console, path)
        raise typer.Exit(130) from None
    showmeasure.show_fit(console, fitting.fit(measured))
    showmeasure.show_where(console, path)


@app.command()
def fit(
    run: Annotated[Path, typer.Argument(metavar="RUN.JSON", help="What `batchline measure` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    against: Annotated[Path | None, typer.Option(help="Another measurement of the model: do they agree?")] = None,
) -> None:
    """Show the line T(B) = c + B·m of a measurement: a pure function of its file."""
    import json

    from batchline import fit as fitting
    from batchline import showmeasure
    from batchline.measured import read_measured

    found = fitting.fit(read_measured(run))
    if as_json:
        typer.echo(json.dumps(fitting.as_json(found), allow_nan=False, indent=1))
    else:
        showmeasure.show_fit(Console(), found)
    if against:
        for line in fitting.compare(found, fitting.fit(read_measured(against))):
            typer.echo(line, err=as_json)


@exports.command("triton")
def export_triton(
    names: Annotated[list[str], typer.Argument(metavar="MODEL...")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Triton's model repository.")] = Path("triton_repository"),
    device: Annotated[str, typer.Option(help="cpu, gpu, or auto: what TorchServe would use on this machine.")] = "auto",
    config: Config = CONFIG,
    model_store: Store = STORE,
) -> None:
    """Write each MODEL for NVIDIA Triton, handler and settings unchanged, and say what Triton's batching rule changes."""
    from batchline import triton
    from batchline.properties import read_configuration

    configuration = read_configuration(config)
    models = [triton.export(name, configuration, model_store, output, device) for name in names]
    for model in models:
        typer.echo(output / model.name)
    for line in triton.differences(models):
        typer.echo(line)


def main() -> None:
    """The `batchline` command: an error on purpose is one message on stderr and exit status 1."""
    try:
        app()
    except BatchlineError as error:
        sys.stderr.write(f"batchline: {error}\n")
        sys.exit(1)

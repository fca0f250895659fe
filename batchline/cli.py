"""The command line: a function a verb, the work is in the modules it names."""

from __future__ import annotations

import signal
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
    from batchline.client import Client
    from batchline.properties import read_configuration
    from batchline.summary import summarise

    console = Console()
    schedule = generator.schedule(rate_per_s, clients, duration_s, arrivals, seed)
    generator.check_server(server)
    if server == "triton":
        settings, target = None, generator.triton_target(url, model, models, protocol)
    else:
        configuration = read_configuration(config)
        target = generator.target(configuration, model, models, protocol=protocol, channels=channels)
        settings = runfile.served(Client.of(configuration).describe(model)[0])
    with showload.show_progress(console, schedule.duration_s) as progress:
        run = generator.drive(target, schedule, progress)
    if output:
        runfile.write(output, model, run, settings, seed if clients is None and arrivals == "poisson" else None)
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
    note: Annotated[str, typer.Option(help="Kept in the JSON: what a reader should know of the way to the server.")] = "",
    config: Config = CONFIG,
    models: Models = MODELS,
) -> None:
    """Show one request to MODEL as a sum of stages, each measured; exit 1 when they do not add up to the total."""
    import json

    from batchline import journey, showload, showstages
    from batchline import stages as analysis
    from batchline.properties import read_configuration
    from batchline.staged import Staged, staged_json

    offered = journey.Offered(duration_s, rate_per_s, clients)
    offered.check()
    subject = journey.subject(read_configuration(config), model, models)
    with showload.show_progress(Console(stderr=True), duration_s) as progress:
        measured = journey.measure(subject, offered, progress)
    found = analysis.add_up(measured)
    if as_json:
        typer.echo(json.dumps(staged_json(Staged(found, measured.settings, note)), allow_nan=False, indent=1))
    else:
        showstages.show_journey(Console(), found)
    raise typer.Exit(1 if found.doubts else 0)


@app.command()
def watch(
    model: Annotated[str | None, typer.Argument(help="Every model unless given.")] = None,
    interval_s: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One interval, then end: for scripts.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON; goes with --once.")] = False,
    config: Config = CONFIG,
) -> None:
    """Show the running server live, from its own metrics: rate, latency, stages, batches, queue, workers; Ctrl-C ends it."""
    import json

    from batchline import showwatch
    from batchline import watch as watching
    from batchline.client import Client
    from batchline.properties import read_configuration

    if as_json and not once:
        raise typer.BadParameter("goes with --once.", param_hint="--json")
    client, console = Client.of(read_configuration(config), timeout_s=watching.TIMEOUT_S), Console()
    seen = watching.views(client, model, interval_s)
    if as_json:
        typer.echo(json.dumps(watching.as_json(next(seen)), allow_nan=False, indent=1))
    elif once:
        console.print(showwatch.picture(console, next(seen), client.inference))
    else:
        showwatch.watch(console, seen, client.inference)


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


@app.command()
def sweep(
    model: str,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Every latency, as JSON; sweep-MODEL.json unless given.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(help="NAME=BATCH_SIZE,DELAY_MS,WORKERS, up to four times; else TorchServe's default and what --config says."),
    ] = None,
    rates: Annotated[str, typer.Option(help="Requests a second, comma-separated; else up to and past what each setting carries.")] = "",
    p99_ms: Annotated[float | None, typer.Option(help="The target that the figure shows.")] = None,
    visits: Annotated[int, typer.Option(min=1, help="How often each rate.")] = 3,
    step_s: Annotated[float, typer.Option(min=0.5, help="Seconds that count of each.")] = 3.0,
    seed: Annotated[int, typer.Option(help="Of arrivals and order.")] = 1,
    config: Config = CONFIG,
    model_store: Store = STORE,
    models: Models = MODELS,
) -> None:
    """Measure latency against offered load, TorchServe's default settings against yours, on a TorchServe started for it."""
    from batchline import showsweep
    from batchline import sweep as sweeping
    from batchline.measure import subject as find_subject
    from batchline.properties import read_configuration
    from batchline.runfile import machine

    console, path = Console(), output or Path(f"sweep-{model}.json")
    subject = find_subject(model, models, model_store, read_configuration(config))
    candidates = sweeping.parse_candidates(setting) if setting else [sweeping.default(machine().cores), sweeping.tuned(subject)]
    chosen = sweeping.parse_rates(rates) if rates else None
    with showsweep.show_progress(console) as progress:
        found = sweeping.sweep(subject, candidates, path, chosen, p99_ms, visits, step_s, seed=seed, progress=progress)
    showsweep.show_sweep(console, found)
    console.print(str(path), markup=False, highlight=False, soft_wrap=True)


@app.command()
def plan(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN.JSON...", help="What `batchline measure` wrote; several share the cores.")],
    p99_ms: Annotated[list[str], typer.Option(help="99 of 100 answers within so many milliseconds; MODEL=MS for each of several.")],
    rate_per_s: Annotated[list[str] | None, typer.Option(help="Poisson arrivals, requests a second; MODEL=RATE for each.")] = None,
    max_rate: Annotated[bool, typer.Option("--max-rate", help="Instead of a rate: the largest that keeps the target.")] = False,
    cheapest: Annotated[bool, typer.Option("--cheapest", help="The fewest workers that keep it, not the lowest p99.")] = False,
    memory_gib: Annotated[float | None, typer.Option(help="For all workers; what the machine has unless given.")] = None,
    gpus: Annotated[int, typer.Option(help="Workers are dealt over so many GPUs; the run must be of one.")] = 0,
    headroom: Annotated[float, typer.Option(help="Part of each machine that stays free where machines are counted.")] = 0.2,
    server: Annotated[str, typer.Option(help="Whose batching rule: torchserve or triton.")] = "torchserve",
    write: Annotated[bool, typer.Option("--write", help="Put it into --config, the difference shown first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulated arrivals.")] = 1,
    config: Config = CONFIG,
    model_store: Store = STORE,
) -> None:
    """Choose batch size, delay, workers and threads for a target, by simulation; exit 1 when it is out of reach."""
    import json

    from batchline import apply, asked, shared, showplan
    from batchline import plan as planning
    from batchline.shared import Together
    from batchline.targets import Plan

    console, aside = Console(), Console(stderr=as_json)
    models = asked.read_models(runs, model_store)
    targets = asked.make_targets([model.name for model in models], p99_ms, rate_per_s or [], max_rate, cheapest)
    limits = asked.make_limits(config, [(model.name, model.version) for model in models], memory_gib, gpus, headroom, server)
    found: Together | None = None
    plans: tuple[Plan, ...]
    with showplan.show_progress(aside) as progress:
        if len(models) > 1:
            found = shared.choose_together(models, targets, limits, progress, seed)
            plans, content = found.plans, shared.as_json(found)
        else:
            plans = (planning.choose(models[0], targets[0], limits, progress, seed),)
            content = planning.as_json(plans[0])
    if as_json:
        typer.echo(json.dumps(content, allow_nan=False, indent=1))
    elif found:
        showplan.show_together(console, found)
    else:
        showplan.show_plan(console, plans[0])
    feasible = all(each.feasible for each in plans)
    if write and feasible:
        showplan.show_difference(aside, config, apply.difference(config, plans))
        apply.apply(config, plans)
        showplan.show_written(aside, config)
    elif write:
        typer.echo(f"{config} is left as it is: the target is out of reach.", err=True)
    raise typer.Exit(0 if feasible else 1)


@app.command()
def verify(
    model: str,
    p99_ms: Annotated[float, typer.Option(help="The limit: 99% of the requests within so many milliseconds.")],
    rate_per_s: Annotated[float, typer.Option(help="Poisson arrivals, requests a second.")],
    requests: Annotated[int | None, typer.Option(help="Count so many; else as few as the stopping rule needs, 918 or more.")] = None,
    duration_s: Annotated[float | None, typer.Option(help="The same in seconds of load.")] = None,
    plan: Annotated[Path | None, typer.Option(help="What `batchline plan --json` printed: its prediction is held beside it.")] = None,
    run: Annotated[Path | None, typer.Option(help="run.json of the model: predicted from it for the settings in effect.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    server: Annotated[str, typer.Option(help="torchserve, as --config says, or triton at --url.")] = "torchserve",
    url: Annotated[str, typer.Option(help="Of a Triton.")] = "http://127.0.0.1:8000",
    seed: Annotated[int, typer.Option(min=0, help="Of the arrivals.")] = 1,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The verdict and every counted request, as JSON.")] = None,
    config: Config = CONFIG,
    models: Models = MODELS,
) -> None:
    """Hold the running server against a p99 limit; exit 0 when it is kept, 1 when not, 2 when the run is INVALID."""
    import json

    from batchline import onserver, runfile, showverify
    from batchline import verify as verifying
    from batchline.promise import promised
    from batchline.properties import read_configuration

    demand = verifying.Demand(p99_ms, rate_per_s, requests, duration_s, seed)
    demand.check()
    configuration = read_configuration(config)
    subject = onserver.find(configuration, model, models, server, url)
    promise = promised(config, model, subject.settings, rate_per_s, plan, run, server)
    with showverify.show_progress(Console(stderr=True)) as progress:
        found, sent = verifying.verify(subject, demand, promise, progress)
    if output:
        runfile.put(output, {"format": verifying.FORMAT, **verifying.as_json(found), **runfile.content(model, sent)})
    if as_json:
        typer.echo(json.dumps(verifying.as_json(found), allow_nan=False, indent=1))
    else:
        showverify.show_verified(Console(), found)
    raise typer.Exit(verifying.exit_status(found))


@app.command()
def tune(
    model: str,
    p99_ms: Annotated[float, typer.Option(help="99% of the requests within so many milliseconds.")],
    rate_per_s: Annotated[float, typer.Option(help="Poisson arrivals, requests a second.")],
    run: Annotated[Path | None, typer.Option(help="run.json of the model; else it is measured first.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure in under a minute on two cores; wider intervals.")] = False,
    memory_gib: Annotated[float | None, typer.Option(help="For the model's workers; what the machine has unless given.")] = None,
    gpus: Annotated[int, typer.Option(min=0, help="That the workers are dealt over.")] = 0,
    config: Config = CONFIG,
    model_store: Store = STORE,
    models: Models = MODELS,
) -> None:
    """Measure, plan, try on a server of its own, and write config.properties when the promise was kept; exit 1 when it was not."""
    from batchline import apply, asked, showmeasure, showplan, showverify
    from batchline import measure as measuring
    from batchline import tune as tuning
    from batchline.properties import read_configuration
    from batchline.targets import Target

    console, target = Console(), Target(p99_ms, rate_per_s)
    subject = measuring.subject(model, models, model_store, read_configuration(config))
    limits = asked.make_limits(config, [(model, subject.recipe.version)], memory_gib, gpus)
    tuning.check(subject)
    try:
        with showmeasure.show_progress(console) as progress:
            measured = tuning.measured_run(subject, run, Path.cwd(), quick, progress)
        with showverify.show_tuning(console) as telling:
            found = tuning.tune(subject, measured, target, limits, telling)
    except KeyboardInterrupt:
        showverify.show_untouched(console, config)
        raise typer.Exit(130) from None
    showverify.show_tuned(console, found, config)
    if found.kept:
        chosen = [found.attempts[-1].plan]
        showplan.show_difference(console, config, apply.difference(config, chosen))
        apply.apply(config, chosen)
        showplan.show_written(console, config)
    raise typer.Exit(0 if found.kept else 1)


@app.command()
def simulate(
    c_ms: Annotated[float, typer.Option(help="Milliseconds that a batch costs.")],
    m_ms: Annotated[float, typer.Option(help="Milliseconds that each request in it costs.")],
    rate_per_s: Annotated[float, typer.Option(help="Requests a second.")],
    batch_size: Annotated[int, typer.Option(help="The most requests in a batch.")] = 1,
    max_batch_delay_ms: Annotated[float, typer.Option(help="How long a batch is waited for; 0: take what is waiting.")] = 100.0,
    workers: Annotated[int, typer.Option(help="Of the model.")] = 1,
    cores: Annotated[int, typer.Option(help="That the workers share; 0: a core for each.")] = 0,
    front_end_ms: Annotated[float, typer.Option(help="Of a request, outside queue and worker.")] = 0.0,
    queue_limit: Annotated[int, typer.Option(help="Requests that may wait (job_queue_size); 0: any number. Triton has no limit.")] = 100,
    requests: Annotated[int, typer.Option(help="Requests that count.")] = 200_000,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 1,
    arrivals: Annotated[str, typer.Option(help="poisson or constant.")] = "poisson",
    server: Annotated[str, typer.Option(help="torchserve or triton: whose batching rule.")] = "torchserve",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Latency and throughput of a setting whose batches take c + B·m, without a server; exit 1 when it cannot keep up with the rate."""
    import json

    from batchline import showsimulate
    from batchline import simulate as simulator

    service = simulator.on_cores(simulator.Service.line(c_ms, m_ms, batch_size, front_end_ms=front_end_ms), cores)
    setting = simulator.Setting(batch_size, max_batch_delay_ms, workers, queue_limit=queue_limit)
    kind, pattern = simulator.known_server(server), simulator.known_arrivals(arrivals)
    found = simulator.simulate(service, setting, rate_per_s, requests=requests, seed=seed, arrivals=pattern, server=kind)
    if as_json:
        typer.echo(json.dumps(simulator.as_json(found), allow_nan=False, indent=1))
        raise typer.Exit(0 if found.stable else 1)
    if not found.stable:
        raise simulator.SimulateError(found.note)
    showsimulate.show_simulated(Console(), found, service, setting, rate_per_s, kind, seed)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN.JSON...", help="Files of measure, load -o, stages, sweep, plan and verify.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for report.html and figures/.")] = Path("report"),
) -> None:
    """Draw every figure that the files have data for, and one page that holds them: report.html, which works offline."""
    from batchline import showmeasure
    from batchline.report import page
    from batchline.report.data import gather

    console = Console()
    with showmeasure.show_progress(console) as progress:
        made = page.write(gather(runs), output, progress)
    for missing in made.missing:
        console.print(f"not drawn: {missing.sentence}", markup=False, highlight=False, soft_wrap=True)
    console.print(str(made.page), markup=False, highlight=False, soft_wrap=True)


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as Ctrl-C does: no server of a measurement stays behind
    try:
        app()
    except BatchlineError as error:
        sys.stderr.write(f"batchline: {error}\n")
        sys.exit(1)

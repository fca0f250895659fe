"""The command line: a function a verb, the work is in the modules it names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from batchline.errors import BatchlineError

app = typer.Typer(help="Serve PyTorch models on TorchServe and know what a batch costs.", no_args_is_help=True, add_completion=False)

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
    duration_s: Annotated[float, typer.Option(help="Seconds.")] = 30.0,
    arrivals: Annotated[str, typer.Option(help="poisson or constant; open loop only.")] = "poisson",
    seed: Annotated[int, typer.Option(help="Of the arrival times.")] = 1,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Every request, as JSON.")] = None,
    config: Config = CONFIG,
    models: Models = MODELS,
) -> None:
    """Send MODEL its own samples at a rate, or from N clients; exit 1 when the run is INVALID."""
    from batchline import load as generator
    from batchline import runfile, showload
    from batchline.properties import read_configuration
    from batchline.summary import summarise

    console = Console()
    target = generator.target(read_configuration(config), model, models)
    with showload.show_progress(console, duration_s) as progress:
        run = generator.offer(target, rate_per_s, clients, duration_s, arrivals, seed, progress)
    if output:
        runfile.write(output, model, run)
    summary = summarise(run)
    showload.show_summary(console, summary)
    raise typer.Exit(1 if summary.invalid else 0)


def main() -> None:
    """The `batchline` command: an error on purpose is one message on stderr and exit status 1."""
    try:
        app()
    except BatchlineError as error:
        sys.stderr.write(f"batchline: {error}\n")
        sys.exit(1)

"""Verbs that build, serve and ask."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from batchline.verbs import CONFIG, MODELS, STORE, Config, Models, Store

app = typer.Typer()
exports = typer.Typer(help="The same models and settings on another engine.", no_args_is_help=True)
app.add_typer(exports, name="export")


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

"""Verbs that load a running server or look at it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from batchline.verbs import CONFIG, MODELS, Config, Models

app = typer.Typer()


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
    from batchline import destination, runfile, showload
    from batchline import load as generator
    from batchline.client import Client
    from batchline.properties import read_configuration
    from batchline.summary import summarise

    console = Console()
    schedule = generator.schedule(rate_per_s, clients, duration_s, arrivals, seed)
    destination.check_server(server)
    if server == "triton":
        settings, target = None, destination.triton_target(url, model, models, protocol)
    else:
        configuration = read_configuration(config)
        target = destination.target(configuration, model, models, protocol=protocol, channels=channels)
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

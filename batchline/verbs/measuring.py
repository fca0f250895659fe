"""Verbs that find out what a batch costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from batchline.verbs import CONFIG, MODELS, STORE, Config, Models, Store

app = typer.Typer()


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
    quick: Annotated[bool, typer.Option("--quick", help="One to two minutes on two cores; wider intervals.")] = False,
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

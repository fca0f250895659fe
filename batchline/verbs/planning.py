"""Verbs that choose settings, hold them against a server, and draw it all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from batchline.errors import SimulateError
from batchline.verbs import CONFIG, MODELS, STORE, Config, Models, Store

app = typer.Typer()


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
    quick: Annotated[bool, typer.Option("--quick", help="Measure in one to two minutes on two cores; wider intervals.")] = False,
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

    from batchline import queueing, showsimulate, simulated
    from batchline import simulate as simulator

    service = queueing.on_cores(queueing.Service.line(c_ms, m_ms, batch_size, front_end_ms=front_end_ms), cores)
    setting = queueing.Setting(batch_size, max_batch_delay_ms, workers, queue_limit=queue_limit)
    kind, pattern = queueing.known_server(server), queueing.known_arrivals(arrivals)
    found = simulator.simulate(service, setting, rate_per_s, requests=requests, seed=seed, arrivals=pattern, server=kind)
    if as_json:
        typer.echo(json.dumps(simulated.as_json(found), allow_nan=False, indent=1))
        raise typer.Exit(0 if found.stable else 1)
    if not found.stable:
        raise SimulateError(found.note)
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

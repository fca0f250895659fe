"""docs/walkthrough.md and docs/figures/, drawn from results/: `make docs-figures`. No number in the page is typed.

The page holds what report.html holds. Pictures are SVG, light; the hero, latency against load, is light and dark.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.progress import track

from batchline.report import offered
from batchline.report.data import Evidence, gather
from batchline.report.steps import Step, cautions, chapters, comparison, decide
from batchline.report.style import DARK, LIGHT, Figure, Missing, svg

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FIGURES = DOCS / "figures"
KINDS = ("measure", "stages", "load", "plan", "verify", "sweep")
HERO = "minilm"
HEAD = """# The walkthrough, measured

What a batch costs and where a request's time goes, on the three models of this repository and the machine they were measured on.
`make docs-figures` draws this page from [results/](../results); every number in it comes from there. `batchline report` makes the same
page of your models.
"""


def picture(figure: Figure, name: str) -> str:
    """Draws the figure; the Markdown that shows it."""
    file = FIGURES / f"{name}-{figure.key}.svg"
    file.write_bytes(svg(figure, LIGHT))
    return f'<img src="figures/{file.name}" alt="{html.escape(figure.alt)}">\n\n<sub>{html.escape(figure.caption)}</sub>\n'


def step_lines(step: Step, name: str) -> Iterator[str]:
    """A step as Markdown."""
    yield step.sentence + "\n"
    if isinstance(step.figure, Missing):
        yield f"*No figure: {step.figure.sentence}*\n"
    else:
        yield f"**{step.figure.title}**\n"
        yield picture(step.figure, name)


def model_lines(evidence: Evidence) -> Iterator[str]:
    """A model's part of the page."""
    decision = decide(evidence)
    yield f"## {evidence.model}\n"
    rows = {"Settings": decision.settings, "Promise": decision.promise, "Kept?": decision.kept, "Fix this one": decision.fix}
    yield "| | |\n| --- | --- |\n" + "".join(f"| **{name}** | {text} |\n" for name, text in rows.items() if text)
    if said := cautions(evidence):
        yield "Careful: " + "; ".join(said) + ".\n"
    for chapter in chapters(evidence):
        yield f"### {chapter.title}\n"
        for step in chapter.steps:
            yield from step_lines(step, evidence.model)


def hero(everything: Sequence[Evidence]) -> None:
    """The README's picture, light and dark."""
    found = [offered.load(each) for each in everything if each.model == HERO]
    for figure in found:
        if isinstance(figure, Figure):
            for look in (LIGHT, DARK):
                (FIGURES / f"hero-{look.name}.svg").write_bytes(svg(figure, look))


def main() -> None:
    """Draws everything."""
    FIGURES.mkdir(exist_ok=True)
    everything = gather(sorted(path for kind in KINDS for path in (ROOT / "results").glob(f"{kind}-*.json")))
    lines = [HEAD]
    for evidence in track(everything, "models"):
        lines += model_lines(evidence)
    lines.append("## All models together\n")
    for step in comparison(everything):
        lines += step_lines(step, "together")
    hero(everything)
    (DOCS / "walkthrough.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()

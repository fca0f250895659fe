"""report.html: one file that reads as the walkthrough of the user's own models, with no need of anything outside it."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from batchline.errors import MeasureError
from batchline.report.data import Evidence
from batchline.report.steps import Chapter, Step, cautions, chapters, comparison, decide
from batchline.report.style import DARK, DPI, LIGHT, Figure, Look, Missing, drawn, png, spots, svg

PAGE = "report.html"
FIGURES = "figures"
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Report:
    """What was written.

    Attributes:
        page: report.html.
        figures: SVG of each figure, light and dark, and PNG, light.
        missing: what was not drawn, and the command that supplies it.
    """

    page: Path
    figures: tuple[Path, ...]
    missing: tuple[Missing, ...]


def write(everything: Sequence[Evidence], folder: Path, progress: Progress | None = None) -> Report:
    """Draws everything that the evidence has data for.

    Args:
        everything: of data.gather, a model each.
        folder: where report.html and figures/ go; what is there is replaced.
        progress: told how many figures are drawn, of how many, and which is next.

    Raises:
        MeasureError: no evidence, or the folder cannot be written to.
    """
    if not everything:
        raise MeasureError("a report needs at least one file: `batchline measure MODEL -o run.json` writes one.")
    read = {each.model: chapters(each) for each in everything}
    together = comparison(everything)
    drawing = _Drawing(_folder(folder), _count(read, together), progress)
    models = [_model(each, read[each.model], drawing) for each in everything]
    last = [drawing.step(step, "together") for step in together]
    page = folder / PAGE
    _put(page, _html(everything, models, last).encode("utf-8"))
    return Report(page, tuple(drawing.written), tuple(drawing.missing))


class _Drawing:
    """Draws figures into a folder and into the page, and counts them."""

    def __init__(self, folder: Path, count: int, progress: Progress | None) -> None:
        self.folder, self.count, self.progress = folder, count, progress
        self.written: list[Path] = []
        self.missing: list[Missing] = []
        self.done = 0

    def step(self, step: Step, name: str) -> dict[str, Any]:
        """A step as the template wants it."""
        figure = step.figure
        if isinstance(figure, Missing):
            self.missing.append(figure)
            return {"sentence": step.sentence, "missing": figure}
        if self.progress:
            self.progress(self.done, self.count, f"{name}: {figure.title}")
        self.done += 1
        light, dark = (self._draw(figure, look, name) for look in (LIGHT, DARK))
        width, height = _size(figure)
        told = {"sentence": step.sentence, "missing": None, "key": figure.key, "title": figure.title, "alt": figure.alt}
        shown = {"caption": figure.caption, "light": light, "dark": dark, "width": width, "height": height}
        return {**told, **shown, "spots": spots(figure)}

    def _draw(self, figure: Figure, look: Look, name: str) -> str:
        content = svg(figure, look)
        self._keep(f"{name}-{figure.key}-{look.name}.svg", content)
        if look is LIGHT:
            self._keep(f"{name}-{figure.key}.png", png(figure, look))
        return "data:image/svg+xml;base64," + base64.b64encode(content).decode("ascii")

    def _keep(self, file: str, content: bytes) -> None:
        _put(self.folder / file, content)
        self.written.append(self.folder / file)


def _model(evidence: Evidence, read: Sequence[Chapter], drawing: _Drawing) -> dict[str, Any]:
    steps = [{"title": chapter.title, "steps": [drawing.step(step, evidence.model) for step in chapter.steps]} for chapter in read]
    return {
        "name": evidence.model,
        "decision": decide(evidence),
        "cautions": cautions(evidence),
        "chapters": steps,
        "unplanned": f"none chosen yet: `batchline plan run-{evidence.model}.json --p99-ms 100 --rate-per-s 50 --json`",
        "unstaged": f"not known yet: `batchline stages {evidence.model} --json`",
    }


def _html(everything: Sequence[Evidence], models: list[dict[str, Any]], together: list[dict[str, Any]]) -> str:
    place = files("batchline.report")
    texts = {name: (place / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["code"] = _code
    template = environment.from_string(texts["page.html"])
    names = [each.model for each in everything]
    title = f"What a batch costs: {', '.join(names)}"
    sources = [source.path for each in everything for source in each.sources if source.path]
    parts = {"css": Markup(texts["page.css"]), "script": Markup(texts["page.js"])}  # ours, and no user's word in them
    return template.render(
        title=title, files=[Path(path).name for path in sources], models=models, together=together, version=version("batchline"), **parts
    )


def _code(text: str) -> Markup:
    """Words with what stands between backticks as code; everything escaped."""
    parts = [escape(part) if number % 2 == 0 else Markup("<code>{}</code>").format(part) for number, part in enumerate(text.split("`"))]
    return Markup("").join(parts)


def _count(read: dict[str, list[Chapter]], together: Sequence[Step]) -> int:
    steps = [step for known in read.values() for chapter in known for step in chapter.steps]
    return sum(isinstance(step.figure, Figure) for step in (*steps, *together))


def _size(figure: Figure) -> tuple[int, int]:
    width, height = drawn(figure).get_size_inches() * DPI
    return round(width), round(height)


def _folder(folder: Path) -> Path:
    figures = folder / FIGURES
    try:
        figures.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MeasureError(f"cannot write to {folder}: {error.strerror}; name another folder with -o.") from None
    return figures


def _put(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    arriving = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        arriving.write_bytes(content)
        os.replace(arriving, path)
    except OSError as error:
        raise MeasureError(f"cannot write {path}: {error.strerror}; name another folder with -o.") from None
    finally:
        arriving.unlink(missing_ok=True)

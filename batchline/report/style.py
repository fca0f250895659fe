"""How every figure looks: colours, fonts, sizes, light and dark; and how it is written, the same bytes for the same data.

The colours are Okabe and Ito's (Color Universal Design, 2008), told apart with every common kind of colour blindness. A thing has the
same colour in every figure, and a label as well, so that nothing depends on colour alone. Nothing depends on the machine: the fonts
are matplotlib's own, the user's matplotlibrc is not read, files hold no date and no version.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib import figure as mpl_figure
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from batchline.runfile import Machine

Canvas = mpl_figure.Figure
WIDTH, HEIGHT = 7.5, 4.2  # inches
DPI = 160
FONT = "DejaVu Sans"  # ships with matplotlib, so that every machine has it
ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#999999"
READ_IN_BLACK = 0.18  # relative luminance from which black words have more contrast than white ones (WCAG 2.2)

COLOURS = {
    "c": ORANGE,  # paid once a batch
    "m": BLUE,  # paid for every request
    "w": PURPLE,
    "wait": PURPLE,  # the name that w has among the stages
    "network": YELLOW,
    "deserialize": SKY,
    "preprocess": GREEN,
    "inference": BLUE,  # the model's own work, as m is
    "serialize": "#A9DBF7",  # packing, the twin of unpacking
    "front end": GREY,
    "worker": BLUE,
    "rest": GREY,
    "default": GREY,
    "tuned": BLUE,
    "target": VERMILION,
    "choice": VERMILION,
    "good": GREEN,
}
ON_DARK = {BLUE: "#3D9BD9"}  # blue lines are lost on dark paper
SERIES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)  # models side by side
MARKERS = ("o", "s", "^", "D", "v", "P")


@dataclass(frozen=True)
class Look:
    """Paper and ink, light or dark.

    Attributes:
        name: "light" or "dark".
        paper, text, muted, grid: colours of what is no data; `muted` words are readable too.
        small: size of small words, points.
    """

    name: str
    paper: str
    text: str
    muted: str
    grid: str
    small: float = 8.5

    def colour(self, thing: str) -> str:
        """The one colour of a thing; what was measured has that of words, what theory says that of quiet words."""
        if thing in ("measured", "theory"):
            return self.text if thing == "measured" else self.muted
        return self._shown(COLOURS[thing])

    def series(self, number: int) -> str:
        """The colour of the n-th of several models."""
        return self._shown(SERIES[number % len(SERIES)])

    def on(self, thing: str) -> str:
        """Black or white: the words that are read on a block of this thing's colour."""
        return "#000000" if _luminance(self.colour(thing)) > READ_IN_BLACK else "#ffffff"

    def _shown(self, colour: str) -> str:
        return ON_DARK.get(colour, colour) if self.name == "dark" else colour


LIGHT = Look("light", "#ffffff", "#1b1b1b", "#5f5f5f", "#dddddd")
DARK = Look("dark", "#14171a", "#ececec", "#a5a5a5", "#3a3f44")
LOOKS = (LIGHT, DARK)


class Point(NamedTuple):
    """What a pointer over the figure is told: x and y in data units of the panel, panels counted in the order they were added."""

    x: float
    y: float
    words: str
    panel: int = 0


@dataclass(frozen=True)
class Figure:
    """A figure that can be drawn in either look.

    Attributes:
        key: its name in files and links, such as "speedup".
        title: a sentence that says what is seen.
        alt: the figure in words, with its values.
        caption: model, machine, versions, n, date, seed; and what a reader must know.
        draw: makes it anew; a pure function of the look.
        points: what a pointer is told where.
    """

    key: str
    title: str
    alt: str
    caption: str
    draw: Callable[[Look], Canvas]
    points: Sequence[Point | tuple[float, float, str]] = ()


@dataclass(frozen=True)
class Missing:
    """A figure that the data at hand cannot fill.

    Attributes:
        key: of the figure.
        command: supplies what is missing.
        sentence: what that is.
        title: the figure's.
    """

    key: str
    command: str
    sentence: str
    title: str = ""


@dataclass(frozen=True)
class Spot:
    """A point as a page needs it: where it is, as shares of width and height from the upper left corner, and its words."""

    left: float
    top: float
    words: str


def canvas(look: Look, width: float = WIDTH, height: float = HEIGHT) -> Canvas:
    """An empty picture, inches; no window system has a part in it."""
    figure = Canvas(figsize=(width, height), facecolor=look.paper, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@contextmanager
def rules(figure: Figure, look: Look) -> Iterator[None]:
    """While the block runs, matplotlib is set as this figure wants it, whatever matplotlibrc the machine has."""
    with mpl.rc_context():
        mpl.rcParams.update({name: value for name, value in mpl.rcParamsDefault.items() if not name.startswith("backend")})
        mpl.rcParams.update(_rules(figure, look))
        yield


def drawn(figure: Figure, look: Look = LIGHT) -> Canvas:
    """The figure's artists, laid out."""
    with rules(figure, look):
        found = figure.draw(look)
        found.draw_without_rendering()
    return found


def png(figure: Figure, look: Look = LIGHT, dpi: int = DPI) -> bytes:
    """The figure as PNG."""
    return _saved(figure, look, format="png", dpi=dpi, metadata={"Software": None})


def svg(figure: Figure, look: Look = LIGHT) -> bytes:
    """The figure as SVG, its words as outlines, so that it looks the same without its fonts."""
    return _saved(figure, look, format="svg", metadata={"Date": None, "Creator": None})


def spots(figure: Figure, look: Look = LIGHT) -> list[Spot]:
    """Where the figure's points are in the picture."""
    if not figure.points:
        return []
    shown = drawn(figure, look)
    width, height = shown.bbox.width, shown.bbox.height
    found = []
    for point in (Point(*each) for each in figure.points):
        x, y = shown.axes[point.panel].transData.transform((point.x, point.y))
        found.append(Spot(float(x / width), float(1 - y / height), point.words))
    return found


def bare(axes: Any, *sides: str) -> None:
    """No frame but on these sides."""
    for side in ("left", "right", "top", "bottom"):
        axes.spines[side].set_visible(side in sides)
    if "left" not in sides:
        axes.set_yticks([])
    if "bottom" not in sides:
        axes.set_xticks([])


def provenance(machine: Machine, versions: Mapping[str, str], written_unix_s: float | None, *more: str) -> str:
    """The end of a caption: where the values come from.

    Args:
        machine: that they were measured on.
        versions: by package.
        written_unix_s: when; None where the file does not say.
        more: n, seed and what else belongs there; it comes first.
    """
    cores = f"{machine.cores} core{'s' * (machine.cores != 1)}"
    named = [f"{name} {versions[key]}" for key, name in (("torchserve", "TorchServe"), ("torch", "torch")) if key in versions]
    day = [datetime.fromtimestamp(written_unix_s, timezone.utc).strftime("%Y-%m-%d")] if written_unix_s else []
    return "; ".join([*more, f"{machine.cpu}, {cores}", *named, *day]) + "."


def _saved(figure: Figure, look: Look, **options: Any) -> bytes:
    out = io.BytesIO()
    with rules(figure, look):
        figure.draw(look).savefig(out, **options)
    return out.getvalue()


def _rules(figure: Figure, look: Look) -> dict[Any, Any]:
    ink = dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor"), look.text)
    quiet = dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "hatch.color"), look.muted)
    paper = dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), look.paper)
    frame = {"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "grid.color": look.grid}
    words = {"font.family": FONT, "font.size": 9.5, "mathtext.fontset": "dejavusans"}
    return {**ink, **quiet, **paper, **frame, **words, "svg.hashsalt": f"{figure.key}-{look.name}", "svg.fonttype": "path"}


def _luminance(colour: str) -> float:
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def apart(values: Sequence[float], least: float) -> list[float]:
    """The values moved upwards where they would be closer than `least`."""
    order = sorted(range(len(values)), key=values.__getitem__)
    placed, below = list(values), -math.inf
    for index in order:
        placed[index] = below = max(values[index], below + least)
    return placed


def draw_dots(axes: Any, x: Any, y: Any, spread: Any, colour: str, name: str) -> None:
    """Points with their bars; the points' gid is the name."""
    bars = axes.errorbar(x, y, spread, color=colour, linestyle="none", marker="o", markersize=5.5, capsize=2.5, elinewidth=1)
    bars.lines[0].set_gid(name)


def bar_around(value: float, interval: tuple[float, float] | None) -> tuple[float, float]:
    """An interval as an error bar has it: how far below and how far above."""
    return (max(0.0, value - interval[0]), max(0.0, interval[1] - value)) if interval else (0.0, 0.0)

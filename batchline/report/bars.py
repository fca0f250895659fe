"""A request's bar: blocks side by side, labels beneath that do not run into each other, brackets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.patches import Patch

from batchline.report.style import Look
from batchline.stages import Journey

WORDS = {
    "network": "network",
    "wait": "wait for the batch",
    "deserialize": "unpack the request",
    "preprocess": "shape it for the model",
    "inference": "the model thinks",
    "serialize": "pack the answer",
    "front end": "TorchServe's front end",
    "worker": "worker and handler",
}
SYMBOLS = {name: rf"$T_{{\mathrm{{{name}}}}}$" for name in ("network", "deserialize", "preprocess", "inference", "serialize")}
SYMBOLS |= {"wait": "$w$", "front end": "front end", "worker": "worker"}


@dataclass(frozen=True)
class Block:
    """One stage on the axis: start and width are in the axis' unit."""

    name: str
    start: float
    width: float
    ms: float
    share: float

    @property
    def middle(self) -> float:
        """Where a label points to."""
        return self.start + self.width / 2

    @property
    def end(self) -> float:
        """Where the next one starts."""
        return self.start + self.width


def blocks(journey: Journey, unit_ms: float = 1.0) -> list[Block]:
    """The journey's parts end to end; what is less than nothing has no width.

    Args:
        journey: the sum.
        unit_ms: milliseconds of one unit of the axis.
    """
    found, at = [], 0.0
    for part in journey.parts:
        width = max(part.ms, 0.0) / unit_ms
        found.append(Block(part.name, at, width, part.ms, part.share))
        at += width
    return found


def draw_bar(axes: Any, found: Sequence[Block], look: Look, bottom: float, height: float, only: str = "") -> None:
    """The blocks; one artist each, its gid the stage's name. With `only`, all others are pale."""
    for block in found:
        alpha = 0.35 if only and block.name != only else 1.0
        colour = look.colour(block.name)
        (bar,) = axes.barh(bottom, block.width, height, block.start, align="edge", color=colour, alpha=alpha, linewidth=0)
        bar.set_gid(block.name)


def draw_labels(
    axes: Any, found: Sequence[Block], words: Sequence[str], look: Look, place: tuple[float, float], span: tuple[float, float]
) -> None:
    """A label in a slot of its own under each block, slots evenly over the span, a line from the block to it.

    `words` has one for each block, `place` is the bars' lower edge and how far under it the labels are, `span` the slots' two ends.
    """
    (top, drop), slot = place, (span[1] - span[0]) / len(found)
    for number, (block, text) in enumerate(zip(found, words, strict=True)):
        x = span[0] + (number + 0.5) * slot
        across, down = [block.middle, block.middle, x, x], [top, top - 0.15 * drop, top - 0.8 * drop, top - 0.95 * drop]
        axes.plot(across, down, color=look.muted, linewidth=0.8, clip_on=False)
        axes.text(x, top - 1.05 * drop, text, ha="center", va="top", color=look.text, fontsize=look.small, linespacing=1.35)


def draw_bracket(axes: Any, start: float, end: float, y: float, depth: float, text: str, look: Look) -> None:
    """A bracket that opens upwards, with words under its middle."""
    axes.plot([start, start, end, end], [y, y - depth, y - depth, y], color=look.text, linewidth=1.2, clip_on=False)
    axes.text((start + end) / 2, y - 1.5 * depth, text, ha="center", va="top", color=look.text, linespacing=1.5)


def draw_key(figure: Any, words: Mapping[str, str], look: Look) -> None:
    """What the colours mean, in one or two lines under the picture: stage -> words."""
    marks = [Patch(color=look.colour(name), label=text) for name, text in words.items()]
    figure.legend(
        handles=marks, loc="outside lower center", ncols=4, frameon=False, fontsize=look.small, labelcolor=look.text, handlelength=1.0,
        handleheight=1.0, columnspacing=1.4,
    )  # fmt: skip

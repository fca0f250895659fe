"""Rows of numbers: an instance is one, an answer is the best labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch

from .batch import BatchHandler
from .classify import top_labels
from .errors import BadInput, ModelLoadError
from .payload import Raw, kind_of

FLOAT32_MAX = torch.finfo(torch.float32).max


class VectorClassifier(BatchHandler):
    """A class from a fixed number of numbers.

    model-config.yaml: `shapes` (the nestings accepted, such as [[64], [8, 8]], all of one size), `range` ([low, high],
    optional), `top_k` (5).
    """

    raw: ClassVar[Raw] = "json"

    def prepare(self) -> None:
        """Reads shapes, range and top_k."""
        self.shapes = [tuple(shape) for shape in self.config.get("shapes", [])]
        if not self.shapes or len({math.prod(shape) for shape in self.shapes}) != 1:
            raise ModelLoadError(
                "model-config.yaml: shapes must list the accepted shapes of an instance, all of one size, such as [[64], [8, 8]]"
            )
        self.size = math.prod(self.shapes[0])
        self.low: float
        self.high: float
        self.low, self.high = self.config.get("range") or (-math.inf, math.inf)
        self.top_k = self.setting("top_k", 5, at_least=1)
        self.expects = f"{self.size} numbers" + (f" from {self.low:g} to {self.high:g}" if math.isfinite(self.low) else "")  # type: ignore[misc]

    def preprocess(self, data: Sequence[Any]) -> torch.Tensor:
        """Rows -> float32 (B, size)."""
        batch = self._at_once(data)
        if batch is None:
            batch = torch.tensor(self.each(self.decode, data), dtype=torch.float32)
        return self.to_device(batch)  # type: ignore[no-any-return]

    def _at_once(self, data: Sequence[Any]) -> torch.Tensor | None:
        """All rows looked at together; None where `decode` must see each, because one is wrong or a subclass has its own."""
        if type(self).decode is not VectorClassifier.decode:
            return None
        flat = [next((row for shape in self.shapes if (row := _flat(value["data"], shape)) is not None), ()) for value in data]
        if not set(map(type, chain.from_iterable(flat))) <= {int, float}:
            return None
        try:
            numbers = np.array(flat, dtype=np.float64)
        except (ValueError, OverflowError):  # rows of unequal length; an integer of hundreds of digits
            return None
        if numbers.shape != (len(data), self.size) or not max(self.low, -FLOAT32_MAX) <= numbers.min() <= numbers.max() <= min(
            self.high, FLOAT32_MAX
        ):
            return None
        return torch.from_numpy(numbers.astype(np.float32))

    def postprocess(self, data: torch.Tensor) -> list[Any]:
        """Logits (B, classes) -> the best labels a row."""
        return top_labels(data, self.top_k, self.mapping)

    def decode(self, value: Any) -> list[float]:
        """Nested lists -> `size` numbers, row by row. Raises BadInput naming the number that is wrong."""
        shape = _shape(value)
        if shape not in self.shapes:
            raise self._wrong_shape(value, shape)
        flat: list[Any] = value
        for _ in shape[1:]:
            flat = [number for row in flat for number in row]
        if (
            not {type(number) for number in flat} <= {int, float}
            or not self.low <= min(flat) <= max(flat) <= self.high
            or not _finite(flat)
        ):
            self._name_the_wrong(flat, shape)
        return flat

    def _wrong_shape(self, value: Any, shape: tuple[int, ...] | None) -> BadInput:
        accepted = " or ".join("x".join(map(str, s)) for s in self.shapes)
        got = f"{kind_of(value)}" if shape == () else "lists of unequal length or depth" if shape is None else "x".join(map(str, shape))
        hint = '; several instances go as {"instances": [...]}' if shape and shape[1:] in self.shapes else ""
        return BadInput(f"must be {self.expects} as {accepted}, not {got}{hint}", kind="shape")

    def _name_the_wrong(self, flat: list[Any], shape: tuple[int, ...]) -> None:
        for index, number in enumerate(flat):
            at = "".join(f"[{i}]" for i in _unravel(index, shape))
            if type(number) not in (int, float):
                raise BadInput(f"must be a number, not {kind_of(number)}", at=at, kind="type")
            if not _finite([number]):
                raise BadInput("must be a finite number (float32)", at=at, kind="range")
            if not self.low <= number <= self.high:
                raise BadInput(f"is {number:.6g}, must be from {self.low:g} to {self.high:g}", at=at, kind="range")


def _flat(value: Any, shape: tuple[int, ...]) -> list[Any] | None:
    """Nested lists of this shape -> what stands in them, row by row; None for anything else."""
    if type(value) is not list or len(value) != shape[0]:
        return None
    for size in shape[1:]:
        if set(map(type, value)) != {list} or set(map(len, value)) != {size}:
            return None
        value = list(chain.from_iterable(value))
    return value  # type: ignore[no-any-return]


def _finite(numbers: list[Any]) -> bool:
    """Finite in float32 too, which 1e300 and an integer of a thousand digits are not."""
    return all(-FLOAT32_MAX <= number <= FLOAT32_MAX for number in numbers)


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of regular nested lists, () for anything that is no list, None for ragged ones."""
    shape: list[int] = []
    level = [value]
    while level and any(isinstance(part, list) for part in level):
        sizes = {len(part) if isinstance(part, list) else -1 for part in level}
        if len(sizes) != 1 or len(shape) > 8:
            return None
        shape.append(sizes.pop())
        level = [inner for part in level for inner in part]
    return tuple(shape)


def _unravel(index: int, shape: tuple[int, ...]) -> list[int]:
    places: list[int] = []
    for size in reversed(shape):
        index, rest = divmod(index, size)
        places.insert(0, rest)
    return places

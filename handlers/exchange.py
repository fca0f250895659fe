"""One request of a batch, its rows, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .answer import JSON_TYPE
from .errors import RequestError
from .payload import Request


@dataclass(eq=False, slots=True)
class Exchange:
    """One request of a batch and what becomes of it."""

    index: int
    headers: dict[str, str]
    request: Request | None = None
    rows: list[Row] = field(default_factory=list)
    error: RequestError | None = None
    place: str = ""
    status: int = 200
    body: bytes = b""
    content_type: str = JSON_TYPE

    @property
    def explains(self) -> bool:
        """Whether it came to /explanations: TorchServe's front end says so in a header."""
        return self.headers.get("explain") == "True"

    def fail(self, error: RequestError, place: str = "") -> None:
        """The first error stands."""
        if self.error is None:
            self.error, self.place = error, place


class Row(dict[str, Any]):
    """One instance, in the form TorchServe gives a request: {"data": value}; what a stock preprocess reads works here too.

    Attributes:
        owner: the request it came in.
        place: where it stood there, such as "instances[2]".
        notes: what preprocess has to say of it; merged into its answer.
        answer: what postprocess made of it.
    """

    def __init__(self, value: Any, owner: Exchange, place: str) -> None:
        super().__init__(data=value)
        self.owner = owner
        self.place = place
        self.notes: dict[str, Any] = {}
        self.answer: Any = None

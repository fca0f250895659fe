"""The file of one request's journey: what `batchline stages MODEL --json` prints, read back for figures."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from batchline.journey import Settings
from batchline.runfile import Machine, machine, versions
from batchline.stages import STRICT, Journey, as_json
from batchline.typed import read_typed

FORMAT = "batchline-stages/1"
BESIDE = ("settings", "note", "machine", "versions")


@dataclass(frozen=True)
class Staged:
    """One file.

    Attributes:
        journey: the sum.
        settings: the model's; None where the file does not say.
        note: what a reader should know of the way to the server, such as a slowed link.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    journey: Journey
    settings: Settings | None = None
    note: str = ""
    machine: Machine = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=versions)


STAGED = TypeAdapter(Staged)


def staged_json(staged: Staged) -> dict[str, Any]:
    """The journey at the top, as `batchline stages --json` prints it, what is beside it, and the moment."""
    beside = {key: value for key, value in asdict(staged).items() if key in BESIDE}
    return {"format": FORMAT, "written_unix_s": time.time(), **as_json(staged.journey), **beside}


def read_staged(path: Path) -> Staged:
    """Reads the file; raises MeasureError where it is none."""
    return read_typed(path, FORMAT, STAGED, "batchline stages MODEL --json", _nested)


def _nested(content: dict[str, Any]) -> dict[str, Any]:
    """The journey apart from what is beside it, and its `stages` by name as parts in their order."""
    beside = {key: content.pop(key) for key in BESIDE if key in content}
    if isinstance(stages := content.pop("stages", None), dict):
        content["parts"] = [{"name": name, **part} if isinstance(part, dict) else part for name, part in stages.items()]
    return {"journey": content, **beside}

"""JSON files that name their format, read strictly: what is there is what the format says, or the reader hears where it is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from batchline.errors import MeasureError

Content = TypeVar("Content")
OWN = ("format", "written_unix_s")


def _as_it_is(content: dict[str, Any]) -> dict[str, Any]:
    return content


def read_typed(
    path: Path,
    wanted: str,
    adapter: TypeAdapter[Content],
    command: str,
    reshape: Callable[[dict[str, Any]], dict[str, Any]] = _as_it_is,
) -> Content:
    """Reads a file.

    Args:
        path: the file.
        wanted: its format, such as "batchline-sweep/1".
        adapter: of what stands in it beside its format and date.
        command: what writes one.
        reshape: brings the content into the adapter's form; it must bear content of any form.

    Raises:
        MeasureError: no such file, cut, of another format, or with values that nothing of that format has.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise MeasureError(f"cannot read {path}: {reason}; `{command}` writes one.") from None
    except (ValueError, RecursionError) as error:
        raise MeasureError(f"{path} is cut or no JSON ({error}); `{command}` writes one.") from None
    said = content.get("format") if isinstance(content, dict) else None
    if said != wanted:
        raise MeasureError(f"{path}: its format is {said!r}, not {wanted!r}; `{command}` writes one.")
    try:
        return adapter.validate_json(json.dumps(reshape({key: value for key, value in content.items() if key not in OWN})))
    except ValidationError as error:
        raise MeasureError(f"{path} is no whole {wanted}: {first_fault(error)}; `{command}` writes one.") from None


def first_fault(error: ValidationError) -> str:
    """Where a file first is not what it should be, and what is wrong there."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'its top'}: {first['msg']}"

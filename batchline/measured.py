"""run.json: every raw value of a measurement, the plan that it followed, and the machine it was made on.

The file is written whole after every step, so that what was done is never lost and a half-done measurement is a valid one.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from batchline.errors import MeasureError
from batchline.runfile import Machine, machine, put, versions
from batchline.typed import first_fault

FORMAT = "batchline-measure/1"
Place = Literal["server", "handler"]
SERVER: Place = "server"
HANDLER: Place = "handler"
Count = Annotated[int, Field(ge=1, le=10**6)]
Amount = Annotated[float, Field(gt=0, lt=1e12, allow_inf_nan=False)]
STRICT = ConfigDict(strict=True, extra="forbid")


@dataclass(frozen=True)
class Plan:
    """What is measured, fixed before it begins.

    Attributes:
        batch_sizes: B, each on the server and through the handler alone.
        rounds: how often every batch size has its turn; each round has its own random order.
        warm_up_s: seconds of load on each batch size before the first round: the JVM compiles what it runs often.
        slot_s: seconds of a turn; a slow model takes the time of its least batches instead.
        least_batches: batches in a turn that count.
        settings: (workers, threads a worker) whose throughput is measured.
        setting_batch_size: the batch size that it is measured at.
        settings_of_one: whether it is measured with batches of one request too; False in files from before that was.
        setting_s: seconds each.
        setting_visits: how often each.
        pauses: single requests a round, each after a pause; 0 in files from before that was measured.
        pause_ms: shortest and longest of these pauses.
        threads: threads a worker while batches are timed.
        seed: of the random order.
        samples: how many request bodies take turns.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    batch_sizes: tuple[Count, ...]
    samples: Count
    rounds: Count
    warm_up_s: Amount
    slot_s: Amount
    least_batches: Count
    settings: tuple[tuple[Count, Count], ...]
    setting_batch_size: Count
    setting_s: Amount
    setting_visits: Count
    threads: Count = 1
    seed: int = 1
    pauses: Annotated[int, Field(ge=0, le=10**6)] = 0
    pause_ms: tuple[Amount, Amount] = (1.0, 100.0)
    settings_of_one: bool = False

    @property
    def setting_batch_sizes(self) -> tuple[int, ...]:
        """Every batch size that throughput is measured at, the largest first."""
        return (self.setting_batch_size, 1) if self.settings_of_one and self.setting_batch_size > 1 else (self.setting_batch_size,)

    def turn(self, batch_size: int) -> int:
        """Batches of this size in which every sample has been sent."""
        return math.ceil(self.samples / batch_size)


@dataclass(frozen=True)
class BatchTime:
    """One batch of exactly batch_size requests.

    Attributes:
        place: "server", from one batch's last answer to the next one's while more are waiting; or "handler", alone.
        round: which round of the plan; -1 while the server warms up.
        batch_ms: how long it took.
        warm_up: kept, not fitted; also the first of every turn.
        stages_ms: by stage, where the handler says so.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    place: Place
    batch_size: Count
    round: int
    batch_ms: Amount
    warm_up: bool
    stages_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestTime:
    """A request that was alone on the server, batchSize 1: milliseconds from its send to its last byte."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    round: int
    latency_ms: Amount
    warm_up: bool
    stages_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RestedTime:
    """A request that was alone on a server with nothing to do since the last one's answer, pause_ms before; else as RequestTime."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    round: int
    pause_ms: Amount
    latency_ms: Amount
    warm_up: bool
    stages_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SettingRun:
    """Saturated throughput of one worker count and thread count.

    Attributes:
        per_s: requests answered a second.
        requests: how many it was measured on.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    workers: Count
    threads: Count
    batch_size: Count
    visit: int
    per_s: Amount
    requests: int


@dataclass
class Measured:
    """One run.json; it grows while it is measured.

    Attributes:
        model, model_version: as in the archive.
        archive_sha256: of the archive that was measured; --resume goes on with no other.
        worker_mib: resident memory of the largest of its workers after its batches, MiB; None in files from before it was measured.
        gpu: whether its workers ran on a GPU; None in such files.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    model: str
    model_version: str
    archive_sha256: str
    plan: Plan
    machine: Machine = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=versions)
    complete: bool = False
    batches: list[BatchTime] = field(default_factory=list)
    requests: list[RequestTime] = field(default_factory=list)
    settings: list[SettingRun] = field(default_factory=list)
    rested: list[RestedTime] = field(default_factory=list)
    worker_mib: Amount | None = None
    gpu: bool | None = None

    def times_ms(self, place: str) -> dict[int, list[list[float]]]:
        """Batch size -> round -> milliseconds of its batches, warm-ups left out.

        Samples differ in size and take turns, so a batch that is smaller than their number holds some of them only. Such
        batches are averaged over one turn of all samples: what is left is a batch of the mean sample.
        """
        found: dict[int, dict[int, list[float]]] = {}
        for batch in self.batches:
            if batch.place == place and not batch.warm_up:
                found.setdefault(batch.batch_size, {}).setdefault(batch.round, []).append(batch.batch_ms)
        return {size: [self._mean_samples(size, rounds[r]) for r in sorted(rounds)] for size, rounds in sorted(found.items())}

    def _mean_samples(self, batch_size: int, times: list[float]) -> list[float]:
        turn = self.plan.turn(batch_size)
        return [sum(times[i : i + turn]) / turn for i in range(0, len(times) - turn + 1, turn)] or times


MEASURED = TypeAdapter(Measured)


def write_measured(path: Path, measured: Measured) -> None:
    """Writes run.json, whole or not at all."""
    put(path, {"format": FORMAT, "written_unix_s": time.time(), **asdict(measured)})


def read_measured(path: Path) -> Measured:
    """Reads run.json.

    Raises:
        MeasureError: no such file, cut, of another format or version, or with values that no measurement writes.
    """
    content = _content(path)
    for own in ("format", "written_unix_s"):
        content.pop(own, None)
    try:
        return MEASURED.validate_json(json.dumps(content))
    except ValidationError as error:
        raise MeasureError(f"{path} is no whole run.json: {first_fault(error)}; measure again.") from None


def _content(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise MeasureError(f"cannot read {path}: {reason}; `batchline measure MODEL -o {path}` writes one.") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MeasureError(f"{path} is cut or no JSON ({error}); measure again.") from None
    said = content.get("format") if isinstance(content, dict) else None
    if said != FORMAT:
        what = f"its format is {said!r}" if said else "it names no format"
        raise MeasureError(f"{path} is no measurement that this batchline reads: {what}, not {FORMAT!r}; measure again.")
    return dict(content)

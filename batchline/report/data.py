"""What figures read: the files of one model, each of them as it was measured, and which command supplies a file that is not there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from batchline import fit as fitting
from batchline.errors import MeasureError
from batchline.fit import Fit
from batchline.load import LoadRun, RequestRecord
from batchline.measured import FORMAT as MEASURE
from batchline.measured import Measured, read_measured
from batchline.promise import Promise
from batchline.report.style import Missing, provenance
from batchline.runfile import FORMAT as LOAD
from batchline.runfile import Machine
from batchline.staged import FORMAT as STAGES
from batchline.staged import Staged, read_staged
from batchline.swept import FORMAT as SWEEP
from batchline.swept import Sweep, read_sweep
from batchline.targets import Predicted
from batchline.typed import first_fault, read_typed
from batchline.verify import Seen

Content = TypeVar("Content")
PLAN, VERIFY = "batchline-plan/1", "batchline-verify/1"  # their --json names no format in older versions
COMMANDS = {
    "measure": "batchline measure {model} -o run-{model}.json",
    "load": "batchline load {model} --rate-per-s 50 -o load-{model}.json",
    "stages": "batchline stages {model} --json > stages-{model}.json",
    "sweep": "batchline sweep {model} -o sweep-{model}.json",
    "plan": "batchline plan run-{model}.json --p99-ms 100 --rate-per-s 50 --json > plan-{model}.json",
    "verify": "batchline verify {model} --p99-ms 100 --rate-per-s 50 --plan plan-{model}.json -o verify-{model}.json",
}


@dataclass(frozen=True)
class Served:
    """What the server had in effect for the model; None where it does not say."""

    batch_size: int | None
    max_batch_delay_ms: int | None
    workers: int | None


@dataclass(frozen=True)
class Loaded:
    """A run of load, `batchline load MODEL -o FILE`.

    Attributes:
        records: one a request, in order of their intended times.
        offered_per_s: None in a closed loop.
        settings: None in files from before they were written down.
        seed: of Poisson arrivals; None where there were none, or the file does not say.
    """

    model: str
    machine: Machine
    versions: dict[str, str]
    planned_s: float
    duration_s: float
    offered_per_s: float | None
    most_in_flight: int
    generator_cpu_share: float
    records: list[RequestRecord]
    settings: Served | None = None
    seed: int | None = None

    @property
    def run(self) -> LoadRun:
        """As load.py made it: what summary.summarise wants."""
        return LoadRun(self.records, self.duration_s, self.planned_s, self.offered_per_s, self.most_in_flight, self.generator_cpu_share)


@dataclass(frozen=True)
class Planned:
    """A model's plan, `batchline plan RUN --json`; the parts that figures and the page use. Words are as in targets.Plan."""

    model: str
    p99_ms: float
    rate_per_s: float | None
    goal: str
    batch_size: int
    max_batch_delay_ms: int
    workers: int
    threads_per_worker: int
    feasible: bool
    predicted: Predicted | None
    max_rate_per_s: float
    binding: str
    reason: str
    remedies: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    runner_up: dict[str, Any] | None = None
    replicas: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Kept:
    """A promise held against the server, `batchline verify MODEL -o FILE`; the parts that are used. Words are as in verify.Verified.

    Attributes:
        requests, over: how many were counted, and how many of them were over the limit.
        machine, versions, records: in files of -o only.
    """

    model: str
    limit_ms: float
    rate_per_s: float
    outcome: str
    kept: bool
    requests: int
    over: int
    seen: Seen
    settings: dict[str, int | None] | None = None
    promised: Promise | None = None
    invalid: list[str] = field(default_factory=list)
    bounded: str = ""
    machine: Machine | None = None
    versions: dict[str, str] = field(default_factory=dict)
    records: list[RequestRecord] = field(default_factory=list)


LOADED, PLANNED, KEPT = TypeAdapter(Loaded), TypeAdapter(Planned), TypeAdapter(Kept)


@dataclass(frozen=True)
class Source:
    """A file that was read.

    Attributes:
        path: as it was given; "" for what came from no file.
        content: Measured, Loaded, Staged, Sweep, Planned or Kept.
        written_unix_s: when it was measured; None where the file does not say.
    """

    path: str
    content: Any
    written_unix_s: float | None = None


@dataclass(frozen=True)
class Evidence:
    """All that is known of one model. Of two files of a kind the newer one counts, and of equals the later given.

    Attributes:
        model: its name.
        sources: its files, in the order they were given.
    """

    model: str
    sources: tuple[Source, ...] = ()

    def of(self, kind: type[Content]) -> list[Content]:
        """Everything of a kind, the newest last."""
        found = [source for source in self.sources if isinstance(source.content, kind)]
        return [source.content for source in sorted(found, key=lambda source: source.written_unix_s or 0.0)]

    def newest(self, kind: type[Content]) -> Content | None:
        """The newest of a kind; None where there is none."""
        found = self.of(kind)
        return found[-1] if found else None

    def written_unix_s(self, content: Any) -> float | None:
        """When something that `of` gave was measured."""
        return next((source.written_unix_s for source in self.sources if source.content is content), None)

    @property
    def measured(self) -> Measured | None:
        """The measurement."""
        return self.newest(Measured)

    @property
    def loads(self) -> list[Loaded]:
        """All runs of load."""
        return self.of(Loaded)

    @property
    def staged(self) -> list[Staged]:
        """All journeys of a request."""
        return self.of(Staged)

    @property
    def sweep(self) -> Sweep | None:
        """Latency against rate."""
        return self.newest(Sweep)

    @property
    def plan(self) -> Planned | None:
        """The plan."""
        return self.newest(Planned)

    @property
    def kept(self) -> Kept | None:
        """The promise, held against the server."""
        return self.newest(Kept)

    @cached_property
    def fit(self) -> Fit | None:
        """What the measurement says; None without one, or where it holds too little for a line (`unfit` says what)."""
        return self._fitted[0]

    @cached_property
    def unfit(self) -> str:
        """Why there is no fit."""
        return self._fitted[1]

    @cached_property
    def _fitted(self) -> tuple[Fit | None, str]:
        if self.measured is None:
            return None, "it was not measured"
        try:
            return fitting.fit(self.measured), ""
        except MeasureError as error:
            return None, str(error)


def missing(key: str, title: str, evidence: Evidence, kind: str, why: str = "") -> Missing:
    """What stands in a figure's place: the sentence names what is not there and the command that supplies it.

    Args:
        key: as the figure's would be.
        title: as well.
        evidence: that lacks it.
        kind: of COMMANDS.
        why: what is the matter with the file that is there; else it is said that there is none.
    """
    command = COMMANDS[kind].format(model=evidence.model)
    reason = f": {why.rstrip('.')}" if why else ""
    lacks = "the data do not suffice" if why else f"no {kind} file of {evidence.model} was given"
    return Missing(key, command, f"{title}: {lacks}{reason}; `{command}` supplies it.", title)


def gather(paths: Iterable[Path]) -> list[Evidence]:
    """Files of any kind and order -> what is known of each model, in the order the models first came.

    Raises:
        MeasureError: a file cannot be read, or is of no kind that a report is made of.
    """
    found: dict[str, list[Source]] = {}
    for path in paths:
        for source in read(path):
            found.setdefault(_model(source.content), []).append(source)
    return [Evidence(model, tuple(sources)) for model, sources in found.items()]


def read(path: Path) -> list[Source]:
    """One file; several sources where it is a plan of several models. Raises MeasureError as `gather` does."""
    content = _content(path)
    said, written = content.get("format"), content.get("written_unix_s")
    when = float(written) if isinstance(written, (int, float)) and math.isfinite(written) else None
    readers = {MEASURE: read_measured, LOAD: read_loaded, STAGES: read_staged, SWEEP: read_sweep}
    if isinstance(said, str) and said in readers:
        return [Source(str(path), readers[said](path), when)]
    if said == PLAN or (said is None and ("models" in content or "max_rate_per_s" in content)):
        models = content.get("models")
        plans = models.values() if isinstance(models, dict) else [content]
        return [Source(str(path), _checked(path, PLANNED, plan, "plan"), when) for plan in plans]
    if said == VERIFY or (said is None and "limit_ms" in content):
        kept = [Source(str(path), _checked(path, KEPT, content, "verify"), when)]
        return kept + ([Source(str(path), _counted(path, content), when)] if "records" in content else [])
    known = "a file of `batchline measure`, `load -o`, `sweep`, `stages --json`, `plan --json` or `verify --json`"
    raise MeasureError(f"{path}: its format is {said!r}, and a report is made of {known}.")


def _counted(path: Path, content: dict[str, Any]) -> Loaded:
    """The requests that a verification counted, as a run of load; its settings stand with the verdict."""
    own = {each.name for each in fields(Loaded)} - {"settings"}
    return _checked(path, LOADED, {key: value for key, value in content.items() if key in own}, "verify")


def read_loaded(path: Path) -> Loaded:
    """Reads a run of load; raises MeasureError where the file is none."""
    found = read_typed(path, LOAD, LOADED, "batchline load MODEL -o FILE")
    for number, record in enumerate(found.records):
        times = (record.intended_s, record.sent_s, record.first_byte_s, record.done_s, *record.stages_ms.values())
        if not all(map(math.isfinite, times)) or record.done_s < record.sent_s:
            raise MeasureError(f"{path}: request {number} has times that no clock gives; `batchline load MODEL -o FILE` writes one.")
    return found


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise MeasureError(f"cannot read {path}: {reason}; give files that batchline wrote.") from None
    except (ValueError, RecursionError) as error:
        raise MeasureError(f"{path} is cut or no JSON ({error}); write it again.") from None
    if not isinstance(content, dict):
        raise MeasureError(f"{path} is JSON, but no file that batchline wrote: it holds no names; give another.")
    return content


def _checked(path: Path, adapter: TypeAdapter[Content], content: Any, verb: str) -> Content:
    try:
        return adapter.validate_python(content)
    except ValidationError as error:
        raise MeasureError(f"{path} is nothing that `batchline {verb} --json` prints: {first_fault(error)}; print it again.") from None


def _model(content: Any) -> str:
    return str(content.journey.model if isinstance(content, Staged) else content.model)


def figures_or_missing(found: Sequence[Any]) -> tuple[list[Any], list[Missing]]:
    """The figures that could be drawn, and what stands in the others' places; both in their order."""
    return [each for each in found if not isinstance(each, Missing)], [each for each in found if isinstance(each, Missing)]


def where_measured(evidence: Evidence, content: Measured | Sweep) -> str:
    """Where and when it was measured, as captions end."""
    return provenance(content.machine, content.versions, evidence.written_unix_s(content))

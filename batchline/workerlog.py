"""What a TorchServe run wrote to its logs: a worker's own traceback, and why a model was not registered."""

from __future__ import annotations

import re
from pathlib import Path

# 2026-01-31T12:00:00,000 [INFO ] W-9001-digits_1.0-stdout MODEL_LOG - text. The name after the id is cut at 25 characters: never parse it.
WORKER_LINE = re.compile(r"^\S+ \[\w+ *\] W-(?P<id>\d+)-.*?-std(?:out|err) MODEL_LOG - (?P<text>.*)$")
LOADS = re.compile(r"Failed to load model: (?P<url>\S+)")
TRACEBACK = "Traceback (most recent call last):"
DIED = "Backend worker process died."
CHAINED = "During handling of the above exception, another exception occurred:"
DISGUISE = re.compile(r"No module named 'ts\.torch_handler\.")
NO_TRACEBACK = "(the worker ended without a traceback: killed, crashed or out of time; `make archive` imports the handler and shows more)"
NO_CAUSE = "(TorchServe hides the ImportError behind this line; `make archive` imports the handler and shows it)"


class WorkerLog:
    """The logs of one run in a folder that also keeps those of earlier runs.

    Args:
        folder: LOG_LOCATION of the server; made before TorchServe starts, so that what is there already is left out.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._skip = {name: _size(folder / name) for name in ("model_log.log", "ts_log.log", "console.log")}

    def read(self, name: str) -> str:
        """The text that this run added to one log; empty when there is none."""
        path, skip = self.folder / name, self._skip.get(name, 0)
        try:
            with path.open("rb") as log:
                log.seek(skip if skip <= path.stat().st_size else 0)  # smaller than before: it was rolled over
                return log.read().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def worker_lines(self, worker: str, pid: int | None = None) -> list[str]:
        """What a worker printed, without the log's prefix.

        Args:
            worker: TorchServe's id of it, the number at the end of its socket's name.
            pid: keep only the lines of that process, not those of its successors.
        """
        matches = (WORKER_LINE.match(line) for line in self.read("model_log.log").splitlines())
        lines = [match["text"] for match in matches if match and match["id"] == worker]
        starts = [at for at, line in enumerate(lines) if line.startswith("s_name_part0=")]
        mine = next((at for at in starts if pid is not None and lines[at].endswith(f"pid={pid}")), None)
        if mine is None:
            return lines
        return lines[mine : next((at for at in starts if at > mine), len(lines))]

    def unregistered(self) -> dict[str, str]:
        """For each entry of load_models that TorchServe passed over: the reason it logged."""
        lines = self.read("ts_log.log").splitlines()
        found = {}
        for at, line in enumerate(lines):
            if match := LOADS.search(line):
                reason = lines[at + 1] if at + 1 < len(lines) else ""
                found[match["url"]] = reason.split(": ", 1)[-1]
        return found

    def tail(self, count: int = 15) -> str:
        """The last lines that the JVM printed and logged, for a server that would not start."""
        shown = [line for name in ("ts_log.log", "console.log") for line in self.read(name).splitlines()[-count:] if line.strip()]
        return "\n".join(shown) or "(it printed nothing)"


def own_traceback(lines: list[str]) -> str:
    """The traceback that says why a worker died, out of what it printed.

    TorchServe's own follow-ups are left out: the "500 - Unknown exception" it raises after a RuntimeError in the handler, and the
    "No module named 'ts.torch_handler...'" that covers an ImportError.
    """
    starts = [at for at, line in enumerate(lines) if line == TRACEBACK]
    if not starts:
        return "\n".join([*lines[-20:], NO_TRACEBACK])
    block = lines[starts[0] :]
    if DIED in block:  # the first traceback was logged by load_model; the one after this line is about TorchServe itself
        block = block[: block.index(DIED)]
    if block and DISGUISE.search(block[-1]):
        cut = [at for at, line in enumerate(block) if line == CHAINED]
        block = block[: cut[-1]] if cut else [*block, NO_CAUSE]
    return "\n".join(block).strip()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

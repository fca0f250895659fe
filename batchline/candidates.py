"""One archive under several settings on a TorchServe of its own, so that they can take turns within a second.

Each setting is a model of its own there: an archive may be registered under any name. Workers of settings whose turn it is not are
idle and cost memory only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil

from batchline.errors import MeasureError
from batchline.load import Target
from batchline.properties import Configuration
from batchline.ready import Progress
from batchline.swept import Candidate
from batchline.variants import WORKER_BYTES, Variants


class Candidates(Variants):
    """The server, a context manager; what Variants does for batch sizes it does for settings, by their place in `candidates`.

    Args:
        archive: NAME.mar.
        version: its version.
        candidates: with names that differ.
        base: the user's configuration; what does not name models or ports is taken over.
        threads: of every worker.
        queue: requests that may wait for each.
        progress: called while it starts.
    """

    def __init__(
        self,
        archive: Path,
        version: str,
        candidates: Sequence[Candidate],
        base: Configuration,
        threads: int,
        queue: int,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(archive, version, range(len(candidates)), base, threads, progress, queue)
        self.candidates = candidates
        _check_memory(archive, sum(candidate.workers for candidate in candidates))

    def target(self, candidate: Candidate, bodies: Sequence[bytes]) -> Target:
        """Where requests for a candidate go."""
        return Target(f"{self.server.inference}{self.path(self.candidates.index(candidate))}", bodies)

    def _variant(self, batch_size: int) -> str:
        return f"{self.name}_{self.candidates[batch_size].name}"

    def _settings(self, batch_size: int) -> dict[str, int]:
        if batch_size >= len(self.candidates) or batch_size < 0:
            return super()._settings(batch_size)
        own = self.candidates[batch_size]
        fixed = {"minWorkers": own.workers, "maxWorkers": own.workers, "batchSize": own.batch_size}
        return {**super()._settings(own.batch_size), **fixed, "maxBatchDelay": own.max_batch_delay_ms}

    def _check_effective(self) -> None:
        """model-config.yaml in the archive would silently win over what was just configured."""
        client = self.server.client(self.home)
        for number, own in enumerate(self.candidates):
            (found,) = client.describe(self._variant(number))
            effective = (found["batchSize"], found["maxBatchDelay"], len(found["workers"]))
            if effective != (own.batch_size, own.max_batch_delay_ms, own.workers):
                raise MeasureError(
                    f"{self.archive} makes batchSize, maxBatchDelay and workers {effective} where {own} was configured: "
                    f"take them out of its model-config.yaml and build it again."
                )


def _check_memory(archive: Path, workers: int) -> None:
    wanted, free = workers * (WORKER_BYTES + archive.stat().st_size), psutil.virtual_memory().available
    if wanted > free:
        raise MeasureError(
            f"{workers} workers of {archive.name} need about {wanted / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free: "
            f"compare fewer settings at once, or end what else runs."
        )

"""A lock between measurements on one machine: only one measures, and none for so long that the others never do."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

YIELD_S = 0.5


@dataclass
class Turns:
    """A file that is locked while something is measured; None for none.

    Attributes:
        lock: the file.
        hold_s: seconds after which it is let go between turns; a turn is not broken off.
        held: the file while it is locked.
        since_s: when it was.
    """

    lock: Path | None = None
    hold_s: float = 60.0
    held: TextIO | None = None
    since_s: float = 0.0

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """One measurement. The lock is let go after it, once it has been held for a while."""
        if self.lock and self.held is None:
            self.held = self.lock.open("a")
            fcntl.flock(self.held, fcntl.LOCK_EX)
            self.since_s = time.monotonic()
        yield
        if self.held and time.monotonic() - self.since_s > self.hold_s:
            self.let_go()
            time.sleep(YIELD_S)

    def let_go(self) -> None:
        """Unlocks."""
        if self.held:
            self.held.close()
            self.held = None

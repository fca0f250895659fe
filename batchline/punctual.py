"""A load generator that is on time although the server under load keeps every core busy."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

PRIORITY = 1  # the least of the real-time ones is ahead of every ordinary process


@contextlib.contextmanager
def punctual() -> Iterator[bool]:
    """Runs the block in this thread ahead of ordinary processes, and without pauses to look for cyclic garbage.

    A thread that wakes to send while all cores compute waits for the end of somebody's time slice, about 3 ms, and niceness does
    not help where each session is a scheduling group of its own (autogroups). Real-time priority does. Whoever spins
    in the block takes a core from the server, so it must sleep whenever it has nothing to do (alarm.py).

    Yields:
        whether the priority was granted: Linux gives it to root and to those with CAP_SYS_NICE or an rtprio limit. Where not, the
        block runs as it is, and its own lateness tells.
    """
    collecting, before = gc.isenabled(), _raise()
    gc.disable()
    try:
        yield before is not None
    finally:
        if collecting:
            gc.enable()
        if before is not None:
            _restore(*before)


def _raise() -> tuple[int, os.sched_param] | None:
    """Round robin, for this thread and none that it starts; what it had before, or None where that is not to be had."""
    try:
        before = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))
    except (OSError, AttributeError):  # no permission, or no Linux
        return None
    return before


def _restore(policy: int, parameters: os.sched_param) -> None:
    try:
        os.sched_setscheduler(0, policy, parameters)
    except PermissionError:  # an rtprio limit allows to raise and to lower, but to have children inherit again takes CAP_SYS_NICE
        os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, parameters)

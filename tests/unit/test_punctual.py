"""The generator's priority: had within the block, gone after it, and no condition for working."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from batchline.punctual import punctual

LINUX = pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="real-time priorities are Linux's")


def policy() -> int:
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK


@LINUX
def test_within_the_block_it_is_ahead_and_afterwards_as_before() -> None:
    before = policy()
    with pytest.raises(ZeroDivisionError), punctual() as granted:
        assert (policy() == os.SCHED_RR) is granted
        assert not gc.isenabled()
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(policy()))
        thread.start()
        thread.join()
        assert found == [os.SCHED_OTHER]  # what it starts is ordinary
        raise ZeroDivisionError
    assert policy() == before
    assert gc.isenabled()


@LINUX
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_who_may_not_runs_without() -> None:
    code = (
        "import os, resource\n"
        "from batchline.punctual import punctual\n"
        "resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0)); os.setuid(65534)\n"
        "with punctual() as granted: print(granted, os.sched_getscheduler(0) == os.SCHED_OTHER)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.split() == ["False", "True"], done.stderr


@LINUX
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_who_may_by_a_limit_alone_comes_back_too() -> None:
    code = (
        "import os, resource\n"
        "from batchline.punctual import punctual\n"
        "resource.setrlimit(resource.RLIMIT_RTPRIO, (1, 1)); os.setuid(65534)\n"
        "with punctual() as granted: pass\n"
        "print(granted, os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    if "not allowed to raise maximum limit" in done.stderr:
        pytest.skip("this root may not raise limits")
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_garbage_stays_as_it_was_set() -> None:
    gc.disable()
    try:
        with punctual():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()

"""Threads within the cores, and a part of the cores for each worker."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from batchline.handlers import cores as module
from batchline.handlers.cores import Share, part_of
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("cores", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("limit", [None, 1, 4, 100])
def test_all_workers_together_never_exceed_the_cores(cores: int, workers: int, limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda _: cores)
    monkeypatch.setattr(module, "live_workers", lambda: workers)
    share = Share(limit).share()
    assert share >= 1
    assert share * workers <= max(cores, workers)
    assert share <= (limit or share)


def test_the_share_follows_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [1]
    monkeypatch.setattr(module, "cores", lambda _: 2)
    monkeypatch.setattr(module, "live_workers", lambda: workers[0])
    share = Share()
    share.keep()
    assert torch.get_num_threads() == 2
    workers[0] = 2
    share.keep()
    assert torch.get_num_threads() == 2  # looked at a moment ago
    share.looked_s -= share.every_s
    share.keep()
    assert torch.get_num_threads() == 1


def test_outside_torchserve_there_is_one_worker() -> None:
    assert module.live_workers() == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_cores_follow_the_affinity() -> None:
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        assert module.cores() == 1
    finally:
        os.sched_setaffinity(0, mine)
    assert 1 <= module.cores() <= len(mine)


@pytest.mark.parametrize(
    ("text", "wanted"), [("max 100000", 4), ("150000 100000", 1), ("50000 100000", 1), ("200000 100000", 2), ("900000 100000", 4), ("", 4)]
)
def test_cores_follow_the_containers_quota(text: str, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: Path, *args: Any, **kwargs: Any) -> str:
        if self.name == "cpu.max":
            return text
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert module.cores() == wanted


@given(st.lists(st.integers(0, 255), min_size=1, max_size=64, unique=True), st.integers(1, 80))
def test_parts_are_disjoint_and_of_one_size(cores: list[int], workers: int) -> None:
    parts = [part_of(cores, place, workers) for place in range(workers)]
    if workers > len(cores):
        assert all(part == cores for part in parts)
    else:
        assert {len(part) for part in parts} == {len(cores) // workers}
        assert len({core for part in parts for core in part}) == sum(len(part) for part in parts)
        assert all(set(part) <= set(cores) for part in parts)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_a_pinned_worker_stays_on_its_part_and_shares_threads_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """All its threads do; and it is let go where the workers have become more than the cores."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("one core has no parts")
    place = [(1, 2)]
    monkeypatch.setattr(module, "place_among_own", lambda: place[0])
    monkeypatch.setattr(module, "live_workers", lambda: 2)
    share, done = Share(pin=True), threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        share.keep()
        assert len(os.listdir("/proc/self/task")) > 1
        where = [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]
        assert all(each == set(part_of(mine, 1, 2)) for each in where)
        assert share.current == max(1, module.cores(len(mine)) // 2)
        place[0] = (1, len(mine) + 1)
        share.looked_s -= share.every_s
        share.keep()
        assert sorted(os.sched_getaffinity(0)) == mine
    finally:
        done.set()
        other.join()
        module._move_to(mine)


def test_nobody_is_pinned_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    before = module._affinity()
    monkeypatch.setattr(module, "place_among_own", lambda: (1, 2))
    Share().keep()
    assert module._affinity() == before


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_a_kernel_that_refuses_is_no_requests_fault(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Such cores do not exist: the worker goes on where it is and says so; once the cores are there again it moves."""
    mine = module._affinity()
    monkeypatch.setattr(module, "place_among_own", lambda: (1, 2))
    share = Share(pin=True)
    monkeypatch.setattr(share, "allowed", lambda: [4096, 4097])
    share.keep()
    assert module._affinity() == mine
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    monkeypatch.setattr(share, "allowed", lambda: mine)
    share.looked_s -= share.every_s
    try:
        share.keep()
        assert module._affinity() == part_of(mine, 1, 2)
    finally:
        module._move_to(mine)


def test_the_hyper_threads_of_a_core_are_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbered i and i + 4, as on many a server; and by number where the kernel tells nothing."""
    monkeypatch.setattr(module, "_topology", lambda cpu, name, default: cpu % 4 if name == "core_id" else 0)
    assert module.side_by_side(range(8)) == [0, 4, 1, 5, 2, 6, 3, 7]
    monkeypatch.setattr(module, "_topology", lambda cpu, name, default: default)
    assert module.side_by_side([3, 1, 2]) == [1, 2, 3]


def test_a_place_is_among_the_workers_of_ones_own_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model's are not counted; started at one moment, the lower pid is first; and a worker that is not there has all."""

    @dataclass(frozen=True)
    class Worker:
        pid: int
        since_s: float
        folder: str

        def create_time(self) -> float:
            return self.since_s

    me = os.getpid()
    workers = [Worker(me, 5.0, "/a"), Worker(me - 1, 5.0, "/a"), Worker(me + 1, 1.0, "/a"), Worker(me + 2, 0.0, "/b"), Worker(7, 0.0, "")]
    monkeypatch.setattr(module, "_workers", lambda: workers)
    monkeypatch.setattr(module, "_folder", lambda worker: worker.folder)
    assert module.place_among_own() == (2, 3)
    monkeypatch.setattr(module, "_workers", lambda: workers[1:])
    assert module.place_among_own() == (0, 1)

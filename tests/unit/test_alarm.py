"""A loop wakes when it is told to: never before, at once where the moment is past, and no descriptor is left."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import pytest

from batchline.alarm import Alarm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")


def woken(waits_s: list[float]) -> list[float]:
    """How much later than its moment each wait ended, seconds."""

    async def run() -> list[float]:
        alarm, late = Alarm(), []
        for wait_s in waits_s:
            moment_s = time.perf_counter() + wait_s
            await alarm.until(moment_s)
            late.append(time.perf_counter() - moment_s)
        alarm.close()
        return late

    return asyncio.run(run())


def test_it_never_rings_early() -> None:
    assert min(woken([0.0, 1e-5, 3e-4, 9e-4, 1.7e-3, 0.02] * 20)) >= 0


def test_finer_than_the_loops_own_sleep() -> None:
    """Of many waits of 0.2 ms the best is nearer to its moment than the best sleep, which epoll makes a whole millisecond."""

    async def slept() -> float:
        moment_s = time.perf_counter() + 2e-4
        await asyncio.sleep(2e-4)
        return time.perf_counter() - moment_s

    assert min(woken([2e-4] * 50)) < min(asyncio.run(slept()) for _ in range(50))


def test_a_past_moment_rings_at_once() -> None:
    async def run() -> None:
        alarm = Alarm()
        await asyncio.wait_for(alarm.until(time.perf_counter() - 5.0), timeout=30.0)
        await asyncio.wait_for(alarm.until(0.0), timeout=30.0)
        alarm.close()

    asyncio.run(run())


def test_others_run_meanwhile_and_no_descriptor_is_left() -> None:
    async def run() -> list[str]:
        alarm, order = Alarm(), []

        async def wait() -> None:
            await alarm.until(time.perf_counter() + 0.05)
            order.append("alarm")

        async def other() -> None:
            await asyncio.sleep(0)
            order.append("other")

        await asyncio.gather(wait(), other())
        alarm.close()
        return order

    before = len(os.listdir("/proc/self/fd"))
    assert asyncio.run(run()) == ["other", "alarm"]
    assert len(os.listdir("/proc/self/fd")) == before

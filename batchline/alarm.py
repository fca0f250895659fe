"""Waking an event loop at a moment, to some ten microseconds: epoll by itself knows milliseconds only."""

from __future__ import annotations

import asyncio
import ctypes
import os

MONOTONIC, ABSOLUTE = 1, 1  # CLOCK_MONOTONIC, which time.perf_counter() is on Linux; TFD_TIMER_ABSTIME
SECOND_NS = 1_000_000_000


class Alarm:
    """A timer of the kernel (timerfd_create(2)) as a descriptor that the running event loop watches. Python has it from 3.13 only.

    Raises:
        OSError: the system has none, or no descriptor is left.
    """

    def __init__(self) -> None:
        try:
            self.libc = ctypes.CDLL(None, use_errno=True)
            descriptor = self.libc.timerfd_create(MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        except AttributeError:
            raise OSError("this system has no timerfd") from None
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.descriptor = descriptor
        self.rung: asyncio.Future[None] | None = None
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(descriptor, self._ring)

    async def until(self, moment_s: float) -> None:
        """Returns at a moment of time.perf_counter(), at once where it is past. One wait at a time."""
        seconds, nanoseconds = divmod(max(1, round(moment_s * SECOND_NS)), SECOND_NS)  # 0 would disarm it
        self.rung = self.loop.create_future()
        once_at = (ctypes.c_long * 4)(0, 0, seconds, nanoseconds)
        if self.libc.timerfd_settime(self.descriptor, ABSOLUTE, once_at, None) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        await self.rung

    def close(self) -> None:
        """Gives the descriptor back."""
        self.loop.remove_reader(self.descriptor)
        os.close(self.descriptor)

    def _ring(self) -> None:
        os.read(self.descriptor, 8)
        if self.rung and not self.rung.done():
            self.rung.set_result(None)

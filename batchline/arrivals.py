"""When requests are due: drawn beforehand from a rate, or read from a file of arrival times (a trace)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from batchline.errors import LoadError

Times = np.ndarray[Any, np.dtype[np.float64]]
DRAWN = ("poisson", "constant")
LONGEST_WAIT_S = 86400.0  # a first time beyond it is a clock's time, such as unix seconds, and no waiting time


def draw(arrivals: str, rate_per_s: float, duration_s: float, seed: int) -> Times:
    """Intended send times in [0, duration_s), seconds.

    Raises:
        LoadError: a rate or duration that is not positive, or that leaves no request to send.
    """
    if not rate_per_s > 0 or not duration_s > 0:
        raise LoadError(f"rate and duration must be positive, not {rate_per_s:g} req/s for {duration_s:g} s.")
    if arrivals not in DRAWN:
        raise LoadError(f"arrivals are poisson or constant, not {arrivals!r}.")
    if arrivals == "constant":
        times = np.arange(0.0, duration_s, 1.0 / rate_per_s)
    else:
        chance = np.random.default_rng(seed)
        often = int(rate_per_s * duration_s + 10 * np.sqrt(rate_per_s * duration_s) + 20)
        times = np.cumsum(chance.exponential(1.0 / rate_per_s, often))
    times = times[times < duration_s]
    if not len(times):
        raise LoadError(f"{rate_per_s:g} req/s for {duration_s:g} s is no request; raise one of them.")
    return times


def replay(trace: Path, rate_per_s: float | None = None, duration_s: float | None = None) -> Times:
    """A trace's times, stretched to a mean rate where one is given, then cut at a duration where one is given.

    The mean rate of a trace is its requests over its last time: both count from 0.

    Raises:
        LoadError: the file is no trace, or rate or duration do not fit it.
    """
    times = read_trace(trace)
    if rate_per_s is not None:
        if not rate_per_s > 0:
            raise LoadError(f"a rate must be positive, not {rate_per_s:g} req/s.")
        if not times[-1] > 0:
            raise LoadError(f"{trace}: all times are 0, which has no rate to change; leave --rate-per-s out.")
        times = times / times[-1] * (len(times) / rate_per_s)
    if duration_s is not None:
        first_s, times = times[0], times[times < duration_s]
        if not len(times):
            raise LoadError(f"{trace}: the first request is due after {first_s:g} s, and {duration_s:g} s were to be run.")
    return times


def read_trace(path: Path) -> Times:
    """A text file of arrival times: seconds from the start of the run, one a line, ascending; blank lines and # comments may stand between.

    Raises:
        LoadError: no such file, no time in it, or a line that is no time or goes back.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise LoadError(f"arrivals are poisson, constant or a file of times; there is no file {str(path)!r}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{path}: cannot be read as a text of arrival times: {error}") from None
    times: list[float] = []
    for number, line in enumerate(lines, 1):
        if text := line.partition("#")[0].strip():
            times.append(_time(text, f"{path}:{number}", times))
    if not times:
        raise LoadError(f"{path}: holds no arrival time; write one a line, in seconds.")
    return np.array(times)


def _time(text: str, place: str, before: list[float]) -> float:
    try:
        time_s = float(text)
    except ValueError:
        time_s = math.nan
    if not math.isfinite(time_s):
        raise LoadError(f"{place}: {text[:40]!r} is no number; write one arrival time a line, in seconds.")
    if time_s < 0:
        raise LoadError(f"{place}: {text} is negative; times count from the start of the run, 0.")
    if before and time_s < before[-1]:
        raise LoadError(f"{place}: {text} comes after {before[-1]!r}; times must ascend, so sort the file (sort -g).")
    if not before and time_s > LONGEST_WAIT_S:
        raise LoadError(f"{place}: {text} s is more than a day of waiting; times count from 0, so subtract the first from each.")
    return time_s

"""How fast the simulator is: requests simulated a second on one core, `python benchmarks/simulate.py`.

What counts is wall time on a machine that has nothing else to do; CPU time stands beside it, which other work disturbs less. Each
setting is run several times and the median is shown, warm-ups counted as the work they are. Compiling, or reading the compiled code
from disk, is done before and said by itself.
"""

from __future__ import annotations

import os
import resource
import statistics
import time

from rich import box
from rich.console import Console
from rich.table import Table

from batchline.queueing import Server, Service, Setting
from batchline.simulate import simulate

REQUESTS = int(os.environ.get("BENCH_REQUESTS", "2000000"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
LINE = Service.line(10, 1, 8)
NOISY = Service.line(10, 1, 8, slowdown=(1.0, 1.1, 1.6), noise=(0.95, 0.98, 1.0, 1.02, 1.3), front_end_ms=(0.5, 0.6, 0.9))
CASES: list[tuple[str, Service, Setting, float, Server]] = [
    ("", LINE, Setting(1, 1, 1), 0.7, "torchserve"),
    ("", LINE, Setting(8, 5, 1), 0.7, "torchserve"),
    ("", LINE, Setting(1, 1, 4), 0.7, "torchserve"),
    ("", LINE, Setting(8, 5, 4), 0.7, "torchserve"),
    ("", LINE, Setting(8, 5, 4), 0.1, "torchserve"),
    ("all", NOISY, Setting(8, 5, 4), 0.4, "torchserve"),
    ("", LINE, Setting(8, 5, 4), 0.7, "triton"),
]


def main() -> None:
    """A row a setting."""
    console, table = Console(), Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    begun_s = time.perf_counter()
    simulate(LINE, Setting(8, 5, 1), 100, requests=1000)
    console.print(f"compiled, or read from disk: {time.perf_counter() - begun_s:.1f} s", highlight=False)
    for column in ("b", "D", "N", "load", "rule", "wall", "CPU", "with"):
        table.add_column(column, justify="left" if column in ("rule", "with") else "right")
    for with_what, service, setting, load, server in CASES:
        wall, cpu = zip(*(timed(service, setting, load, server) for _ in range(ROUNDS)), strict=True)
        given = (setting.batch_size, f"{setting.max_batch_delay_ms:g}", setting.workers, f"{load:.0%}", server)
        table.add_row(*map(str, given), told(wall), told(cpu), with_what)
    console.print(table)
    console.print("b batch size, D delay in ms, N workers, all: noise, contention, front end;", highlight=False)
    console.print(f"millions of requests a second, {REQUESTS:,} in a run: median (least .. most) of {ROUNDS} runs", highlight=False)
    console.print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB", highlight=False)


def timed(service: Service, setting: Setting, load: float, server: Server) -> tuple[float, float]:
    """Requests a second of wall time and of CPU time."""
    one_ms = service.batch_ms[setting.batch_size - 1] * service.slow(setting.workers, setting.batch_size)
    rate_per_s = load * setting.workers * setting.batch_size / one_ms * 1e3
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    found = simulate(service, setting, rate_per_s, requests=REQUESTS, server=server)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    assert found.stable
    done = found.requests + found.replications * found.warm_up
    return done / wall_s, done / cpu_s


def told(per_s: tuple[float, ...]) -> str:
    """Median and spread."""
    return f"{statistics.median(per_s) / 1e6:.1f} ({min(per_s) / 1e6:.1f} .. {max(per_s) / 1e6:.1f})"


if __name__ == "__main__":
    main()

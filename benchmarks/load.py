"""How fast the load generator itself is: `make bench-load`.

Open loop, Poisson, to a server that answers at once, in a process of its own; the server is aiohttp too, on another core
where there is one. What counts is whether the sends were on time: the generator calls its own run INVALID when not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from batchline.load import Target, draw, open_loop
from batchline.summary import summarise

RATES = (500, 1000, 2000, 3000, 4000)
SECONDS = float(os.environ.get("BENCH_SECONDS", "5"))
KNOWN = Path(__file__).resolve().parents[1] / "tests" / "server" / "known.py"


def main() -> None:
    """A row a rate."""
    table = Table(title="open loop, Poisson, to a server that answers at once")
    for column in ("offered/s", "achieved/s", "send lag p99 ms", "latency p50 ms", "latency p99 ms", "of a core", "verdict"):
        table.add_column(column, justify="right")
    with subprocess.Popen([sys.executable, str(KNOWN), "0"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        for rate in RATES:
            run = open_loop(Target(url, [b"x"]), draw("poisson", rate, SECONDS, seed=1))
            told = summarise(run)
            figures = (told.achieved_per_s, told.lag_p99_ms, told.latency_ms["p50"], told.latency_ms["p99"])
            shown = [f"{told.offered_per_s:.0f}", *(f"{figure:.2f}" for figure in figures), f"{run.cpu_share:.0%}"]
            table.add_row(*shown, "INVALID" if told.invalid else "valid")
        server.kill()
    Console().print(table)


if __name__ == "__main__":
    main()

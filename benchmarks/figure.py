"""A stored run of compare.py as a figure: `python benchmarks/figure.py results/bench-*.json` writes docs/figures/bench-MODEL.{png,svg}."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from prepare import ROOT
from showcompare import by_round, label

FIGURES = ROOT / "docs" / "figures"
CLIENTS = (8, 32)
OURS, OURS_TRITON, BARE, OTHERS = "#0072B2", "#56B4E9", "#000000", "#8C8C8C"  # Okabe and Ito's, told apart without red and green
ROOM = 1.15  # of the longest bar, for its label
OFF_SCALE = 2.0  # times the fastest server; the loop without one is then named and not drawn

Result = dict[str, Any]


def main(paths: list[str]) -> None:
    """A figure a run."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    plt.rcParams.update(
        {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "batchline", "axes.spines.top": False, "axes.spines.right": False}
    )
    for path in paths:
        run = json.loads(Path(path).read_text(encoding="utf-8"))
        figure = draw(run)
        clients = run["plan"]["clients"]
        name = f"bench-{run['model']}" + (f"-{clients[0]}-clients" if len(clients) == 1 else "")
        for kind, extra in (("png", {"dpi": 160}), ("svg", {"metadata": {"Date": None}})):
            figure.savefig(FIGURES / f"{name}.{kind}", **extra)  # type: ignore[arg-type]
        plt.close(figure)
        print(FIGURES / f"{name}.png")


def draw(run: Result) -> plt.Figure:
    """Requests a second of every server with 8 and with 32 clients as far as they were driven, the fastest with the most on top."""
    servers = [server for server in run["servers"] if any(told["loop"] in ("closed", "bare") for told in server["rounds"])]
    driven = [clients for clients in CLIENTS if clients in run["plan"]["clients"]]
    servers.sort(key=lambda server: middle(server, driven[-1]))
    size = (11, 1.7 + 0.27 * len(servers))
    figure, grid = plt.subplots(1, len(driven), figsize=size, sharey=True, layout="constrained", squeeze=False)
    panels = grid[0]
    for axes, clients in zip(panels, driven, strict=True):
        panel(axes, servers, clients)
    panels[0].set_yticks(range(len(servers)), [titled(server) for server in servers])
    for tick, server in zip(panels[0].get_yticklabels(), servers, strict=True):
        tick.set_color(colour(server) if colour(server) != OTHERS else "#333333")
        tick.set_fontweight("bold" if server["name"] == "ours" else "normal")
    machine, plan = run["machine"], run["plan"]
    figure.suptitle(f"{run['model']}: answered requests per second", fontweight="bold")
    said = f"median, least and most of {plan['rounds']} rounds of {plan['seconds']:g} s; in brackets processes x batch size, as tuned; "
    said += f"{machine['cores']} cores of {machine['cpu']}, the load on the same cores"
    figure.supxlabel(said, fontsize=8, color="#555555")
    return figure


def panel(axes: Axes, servers: list[Result], clients: int) -> None:
    """Bars from zero, the spread over the rounds on each, its median beside it."""
    served = [value for server in servers if server["name"].partition(":")[0] != "bare" for value in by_round(server, clients).values()]
    highest = max(served)
    for place, server in enumerate(servers):
        values = list(by_round(server, clients).values())
        median = statistics.median(values)
        if median > OFF_SCALE * highest:
            axes.text(0.02 * highest, place, f"{number(median)}: beyond the scale", va="center", color=BARE, fontsize=8)
            continue
        axes.barh(place, median, height=0.62, color=colour(server), alpha=0.3 if server["name"].startswith("bare") else 1.0)
        axes.plot([min(values), max(values)], [place, place], color="#222222", linewidth=1.4, solid_capstyle="butt")
        axes.text(max(median, *values) + 0.015 * highest, place, number(median), va="center", fontsize=8)
    shown = [value for server in servers for value in by_round(server, clients).values() if value <= OFF_SCALE * highest]
    axes.set_xlim(0, max(shown) * ROOM)
    axes.set_ylim(-0.6, len(servers) - 0.3)
    axes.set_title(f"{clients} clients", loc="left", fontsize=10)
    axes.set_xlabel("requests/s")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)


def titled(server: Result) -> str:
    """Its name, with processes and batch size as tuned."""
    batch = f" x {server['batch_size']}" if server["batch_size"] > 1 else ""
    return f"{label(server)}  [{server['processes']}{batch}]"


def middle(server: Result, clients: int) -> float:
    """Median requests a second; 0 where that was not measured."""
    return statistics.median(by_round(server, clients).values() or [0.0])


def colour(server: Result) -> str:
    """Ours stand out."""
    plain = server["name"].partition(":")[0]
    return {"ours": OURS, "ours-triton": OURS_TRITON, "bare": BARE}.get(plain, OTHERS)


def number(value: float) -> str:
    """With thousands apart; small ones with a decimal."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    main(sys.argv[1:])

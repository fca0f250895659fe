"""The load generator against servers whose times are known."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.arrivals import read_trace, replay
from batchline.errors import LoadError
from batchline.load import LoadRun, RequestRecord, Target, closed_loop, draw, drive, offer, open_loop, schedule
from batchline.summary import quantile_interval, summarise

Known = Callable[[float], tuple[str, int]]


@pytest.fixture
def known() -> Iterator[Known]:
    """Starts servers with a delay; (URL, pid) each."""
    servers: list[subprocess.Popen[str]] = []

    def start(delay_s: float) -> tuple[str, int]:
        command = [sys.executable, str(Path(__file__).with_name("known.py")), str(delay_s)]
        servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stdout = servers[-1].stdout
        assert stdout is not None
        return f"http://127.0.0.1:{int(stdout.readline())}", servers[-1].pid

    yield start
    for server in servers:
        server.kill()
        server.wait()


def test_a_known_delay_is_measured(known: Known) -> None:
    """To within a millisecond in the median; a busy machine's hiccups are in the tail."""
    url, _ = known(0.02)
    quick, _ = known(0.0)
    run = open_loop(Target(url, [b"x"]), draw("poisson", 100, 3, seed=1))
    bare = open_loop(Target(quick, [b"x"]), draw("poisson", 100, 3, seed=1))
    delay = float(np.median([r.latency_ms for r in run.records]) - np.median([r.latency_ms for r in bare.records]))
    assert delay == pytest.approx(20, abs=1.0)
    assert {r.status for r in run.records} == {200}
    assert run.records[0].stages_ms == {"inference": 20.0} and run.records[0].batch_size == 1


def test_a_stalled_server_shows_in_the_tail(known: Known) -> None:
    """Coordinated omission: a server stopped for one second in a 10 s run. The requests that were due meanwhile waited, and p99 says so."""
    url, pid = known(0.002)
    stop = threading.Timer(4.0, os.kill, (pid, signal.SIGSTOP))
    go = threading.Timer(5.0, os.kill, (pid, signal.SIGCONT))
    stop.start(), go.start()
    run = open_loop(Target(url, [b"x"]), draw("constant", 50, 10, seed=1))
    summary = summarise(run)
    assert len(run.records) == 500 and summary.statuses == {200: 500}
    assert summary.latency_ms["p99"] >= 800, "six requests were due in the first 120 ms of the second"
    assert summary.latency_ms["p95"] >= 400, "a tenth of the run was due during the second"
    assert summary.latency_ms["p50"] < 300


def test_nothing_is_dropped_and_the_cap_fails_the_run(known: Known) -> None:
    url, _ = known(30.0)
    with pytest.raises(LoadError, match="20 requests in flight"):
        open_loop(Target(url, [b"x"]), draw("constant", 200, 5, seed=1), cap=20)


def test_more_than_a_hundred_at_once(known: Known) -> None:
    """A client library's own limit of connections (aiohttp: 100) would hold the others back without a word."""
    url, _ = known(1.0)
    run = open_loop(Target(url, [b"x"]), draw("constant", 300, 1, seed=1))
    assert run.most_in_flight > 250
    assert max(r.sent_s - r.intended_s for r in run.records) < 0.5


def test_refusals_reconnect_and_are_no_failures_of_the_connection(known: Known) -> None:
    url, _ = known(0.0)
    run = open_loop(Target(f"{url}/refuses", [b"x"]), draw("constant", 50, 1, seed=1))
    assert {r.status for r in run.records} == {400}
    assert summarise(run).reconnects == len(run.records)
    assert summarise(open_loop(Target(url, [b"x"]), draw("constant", 50, 1, seed=1))).reconnects < 25


def test_closed_loop_keeps_its_clients_busy(known: Known) -> None:
    url, _ = known(0.05)
    run = closed_loop(Target(url, [b"a", b"b"]), clients=4, duration_s=2)
    assert run.most_in_flight == 4
    assert run.offered_per_s is None
    assert len(run.records) <= 4 * (2 / 0.05 + 1)
    assert all(r.latency_ms >= 50 for r in run.records)


def test_no_server(unused: str) -> None:
    run = open_loop(Target(unused, [b"x"]), draw("constant", 20, 0.5, seed=1))
    assert {r.status for r in run.records} == {0} and all(r.error for r in run.records)
    assert any("no request was answered" in reason for reason in summarise(run).invalid)


@pytest.fixture
def unused() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_arrivals_are_drawn_from_their_seed() -> None:
    assert draw("poisson", 50, 10, 1).tolist() == draw("poisson", 50, 10, 1).tolist() != draw("poisson", 50, 10, 2).tolist()
    constant = draw("constant", 100, 1, 1)
    assert len(constant) == 100 and np.allclose(np.diff(constant), 0.01)
    gaps = np.diff(draw("poisson", 1000, 100, 3))
    assert gaps.mean() == pytest.approx(1e-3, rel=0.02) and gaps.std() == pytest.approx(1e-3, rel=0.02)


@given(st.floats(0.5, 2000), st.floats(0.1, 5), st.integers(0, 2**32 - 1), st.sampled_from(["poisson", "constant"]))
def test_arrivals_lie_within_the_run(rate: float, duration_s: float, seed: int, arrivals: str) -> None:
    try:
        times = draw(arrivals, rate, duration_s, seed)
    except LoadError as error:
        assert "is no request" in str(error)
        return
    assert np.all(np.diff(times) > 0) and times[0] >= 0 and times[-1] < duration_s


@pytest.mark.parametrize(
    ("rate", "duration_s", "arrivals"),
    [(0, 1, "poisson"), (-1, 1, "poisson"), (1, 0, "poisson"), (1, 1, "bursts"), (float("nan"), 1, "poisson")],
)
def test_load_that_cannot_be_offered(rate: float, duration_s: float, arrivals: str) -> None:
    with pytest.raises(LoadError):
        draw(arrivals, rate, duration_s, 1)


def test_a_rate_or_clients() -> None:
    for rate, clients in ((None, None), (1.0, 1)):
        with pytest.raises(LoadError, match="one of them"):
            offer(Target("http://x", [b""]), rate, clients, 1)


@given(st.lists(st.floats(0, 1e4), min_size=1).map(sorted), st.data())
def test_a_trace_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, times: list[float], data: st.DataObject) -> None:
    noise = st.sampled_from(["", "  ", "# a comment", "\t# 7"])
    lines = [line for time_s in times for line in (data.draw(noise), f" {time_s!r}{data.draw(st.sampled_from(['', ' # due']))}")]
    trace = tmp_path_factory.getbasetemp() / "trace.txt"
    trace.write_text("\n".join(lines), encoding="utf-8")
    assert read_trace(trace).tolist() == times


@given(st.lists(st.floats(0, 1e4), min_size=1).map(sorted), st.floats(0.1, 1e4), st.floats(0.1, 1e4))
def test_a_trace_is_stretched_to_a_rate_and_cut_at_a_duration(
    tmp_path_factory: pytest.TempPathFactory, times: list[float], rate: float, duration_s: float
) -> None:
    trace = tmp_path_factory.getbasetemp() / "trace.txt"
    trace.write_text("\n".join(map(repr, times)))
    if not times[-1]:
        with pytest.raises(LoadError, match="no rate to change"):
            replay(trace, rate)
        return
    stretched = replay(trace, rate)
    assert len(stretched) / stretched[-1] == pytest.approx(rate)
    assert stretched / stretched[-1] == pytest.approx(np.array(times) / times[-1])
    kept = stretched[stretched < duration_s]
    if len(kept):
        assert replay(trace, rate, duration_s).tolist() == kept.tolist()
    else:
        with pytest.raises(LoadError, match="were to be run"):
            replay(trace, rate, duration_s)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("0\n0.5\n\n0.4\n", "times.txt:4: 0.4 comes after 0.5; times must ascend"),
        ("0\nsoon\n", "times.txt:2: 'soon' is no number"),
        ("0 0.5\n", "times.txt:1: '0 0.5' is no number"),
        ("nan", "times.txt:1: 'nan' is no number"),
        ("0\ninf", "times.txt:2: 'inf' is no number"),
        ("# head\n-1", "times.txt:2: -1 is negative"),
        ("1764665295.2\n1764665295.9", "times.txt:1: 1764665295.2 s is more than a day"),
        ("\n# nothing\n", "times.txt: holds no arrival time"),
        ("", "times.txt: holds no arrival time"),
        ("\x00\xff", "is no number"),
    ],
)
def test_a_file_that_is_no_trace(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "times.txt").write_text(content)
    with pytest.raises(LoadError) as raised:
        read_trace(tmp_path / "times.txt")
    assert said in str(raised.value)


def test_a_trace_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="poisson, constant or a file of times; there is no file"):
        schedule(None, None, arrivals=str(tmp_path / "bursts"))
    with pytest.raises(LoadError, match="cannot be read"):
        read_trace(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LoadError, match="cannot be read"):
        read_trace(tmp_path / "binary")


def test_a_trace_needs_no_rate_and_no_duration(known: Known, tmp_path: Path) -> None:
    """Two requests due at once are both sent, then none for half a second."""
    url, _ = known(0.0)
    times = [0.1, 0.1, 0.6, *(0.6 + n / 100 for n in range(1, 60))]
    (tmp_path / "times.txt").write_text("\n".join(map(str, times)))
    planned = schedule(None, None, arrivals=str(tmp_path / "times.txt"))
    assert planned.duration_s == pytest.approx(times[-1])
    run = drive(Target(url, [b"x"]), planned)
    assert [r.intended_s for r in run.records] == times
    assert all(r.sent_s >= r.intended_s for r in run.records)
    assert run.offered_per_s == pytest.approx(len(times) / times[-1])


def test_a_trace_is_an_open_loop(tmp_path: Path) -> None:
    (tmp_path / "times.txt").write_text("0\n1\n")
    with pytest.raises(LoadError, match="one of them"):
        schedule(None, 4, arrivals=str(tmp_path / "times.txt"))


def records(latencies_ms: list[float], lag_ms: float = 0.0, gap_s: float = 0.01) -> list[RequestRecord]:
    made = []
    for turn, latency_ms in enumerate(latencies_ms):
        due = (turn + 1) * gap_s
        made.append(RequestRecord(due, due + lag_ms / 1e3, due + latency_ms / 1e3, due + latency_ms / 1e3, 200))
    return made


def test_latency_counts_from_the_intended_send() -> None:
    (record,) = records([10.0], lag_ms=4.0)
    assert (record.latency_ms, record.lag_ms) == (pytest.approx(10.0), pytest.approx(4.0))


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (LoadRun(records([20.0] * 500, lag_ms=2.0), 5, 5, 100.0, 1, 0.1), "late"),
        (LoadRun(records([20.0] * 500), 5, 5, 110.0, 1, 0.1), "were due"),
        (LoadRun(records([20.0] * 500), 5, 5, 100.0, 1, 0.99), "of a core"),
    ],
)
def test_a_generator_that_could_not_keep_up_says_so(run: LoadRun, reason: str) -> None:
    (said,) = summarise(run).invalid
    assert reason in said


def test_a_good_run_is_valid() -> None:
    summary = summarise(LoadRun(records([20.0] * 500, lag_ms=0.5), 5, 5, 100.0, 1, 0.1))
    assert summary.invalid == []
    assert summary.achieved_per_s == pytest.approx(100.0, rel=0.01)
    slow = summarise(LoadRun(records([200.0] * 500, lag_ms=5.0), 5, 5, 100.0, 1, 0.1))
    assert slow.invalid == [], "5 ms late is little where the median is 200 ms"


def test_the_interval_of_p99_holds_the_true_one_as_often_as_it_says() -> None:
    chance = np.random.default_rng(0)
    true, held, trials = float(-np.log(0.01)), 0, 400
    for _ in range(trials):
        low, high = quantile_interval(chance.exponential(1, 1000), 0.99) or (0, 0)
        held += low <= true <= high
    assert held / trials >= 0.93
    assert quantile_interval(np.ones(100), 0.99) is None
    assert quantile_interval(np.array([]), 0.99) is None


def test_the_file_holds_every_request(known: Known, tmp_path: Path) -> None:
    from batchline import runfile

    url, _ = known(0.0)
    run = open_loop(Target(url, [b"x"]), draw("constant", 50, 1, seed=1))
    runfile.write(tmp_path / "run.json", "known", run)
    read = json.loads((tmp_path / "run.json").read_text())
    assert len(read["records"]) == len(run.records) == 50
    assert read["records"][0]["intended_s"] == run.records[0].intended_s
    assert read["machine"]["cores"] >= 1 and read["versions"]["httptools"]
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]

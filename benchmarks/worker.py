"""What surrounds a tiny model, before and after a change: two servers, one archive each, the same load in turns.

    python benchmarks/worker.py fast_wire=false,log=stock fast_wire=true

A variant is a list of key=value. `handlers=FOLDER` takes the handlers from there, `log=stock` is TorchServe's own log configuration,
a key of config.properties (metrics_mode, vmargs, number_of_netty_threads) goes there, `workers=2` and `batch_size=16` are the
model's, and anything else (fast_wire, metrics) goes into the archive's model-config.yaml.
Both servers stand ready the whole time and one is busy; rounds alternate who goes first, so a machine whose speed drifts slows both
alike, and what counts is the ratio within a round. The load comes from this process, on the same cores.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import javaproperties
import psutil
from rich.console import Console
from rich.progress import track

from batchline import server
from batchline.ports import free_ports
from batchline.properties import ModelSettings, read_configuration, write_models
from batchline.saturate import saturate

ROOT = Path(__file__).resolve().parents[1]
IN_PROPERTIES = {"metrics_mode", "vmargs", "number_of_netty_threads", "netty_client_threads", "prefer_direct_buffer"}
NOT_IN_ARCHIVE = {*IN_PROPERTIES, "log", "batch_size", "workers"}
HANDLERS = "batchline/handlers/"


class Run(NamedTuple):
    """One measurement: answers a second, and microseconds of the server's CPU time an answer, which other load disturbs least."""

    per_s: float
    cpu_us: float


class Variant:
    """One server.

    Args:
        text: key=value,key=value.
        model: whose archive and samples.
        batch_size: of the model.
        folder: where its files go.
    """

    def __init__(self, text: str, model: str, batch_size: int, folder: Path) -> None:
        self.settings = dict(part.split("=", 1) for part in text.split(",") if part)
        self.model, self.home = model, folder
        self.batch_size, self.workers = int(self.settings.get("batch_size", batch_size)), int(self.settings.get("workers", 1))
        self.store = folder / "model_store"
        self.store.mkdir(parents=True)
        self._archive(Path(self.settings.pop("handlers", ROOT / "handlers")))
        self.running = server.launch(read_configuration(self._configure()), self.store, self.home)
        host, _, port = self.running.inference.rpartition("//")[2].rpartition(":")
        self.address = host, int(port)

    def _archive(self, handlers: Path) -> None:
        """The built archive with these handlers, and with the variant's lines at the end of its model-config.yaml."""
        own = {key: value for key, value in self.settings.items() if key not in NOT_IN_ARCHIVE}
        source = ROOT / "model_store" / f"{self.model}.mar"
        with zipfile.ZipFile(source) as built, zipfile.ZipFile(self.store / source.name, "w") as changed:
            for entry in built.infolist():
                content = built.read(entry)
                if entry.filename == "model-config.yaml":
                    content += "".join(f"\n{key}: {value}" for key, value in own.items()).encode()
                if not entry.filename.startswith(HANDLERS):
                    changed.writestr(entry, content)
            for path in sorted(handlers.glob("*.py")):
                changed.write(path, HANDLERS + path.name)

    def _configure(self) -> Path:
        ports = free_ports(5)
        values = {f"{kind}_address": f"http://127.0.0.1:{port}" for kind, port in zip(server.APIS, ports, strict=False)}
        values |= {"grpc_inference_port": str(ports[3]), "grpc_management_port": str(ports[4]), "disable_token_authorization": "true"}
        values |= {"load_models": f"{self.model}.mar", "job_queue_size": "1000", "decode_input_request": "false"}
        values |= {"metrics_mode": "prometheus", "metrics_config": str(ROOT / "metrics.yaml")}
        values |= {key: value for key, value in self.settings.items() if key in IN_PROPERTIES}
        if self.settings.get("log") == "stock":
            values["vmargs"] = f"-Dlog4j2.configurationFile={self._stock_log()}"
        path = self.home / "config.properties"
        path.write_text(javaproperties.dumps(values, timestamp=None), encoding="iso-8859-1")
        write_models(path, [ModelSettings(self.model, "1.0", self.batch_size, 1, self.workers, self.workers, 60)])
        return path

    def _stock_log(self) -> Path:
        """TorchServe's own, less its copy of everything on stdout."""
        import ts

        with zipfile.ZipFile(Path(ts.__file__).parent / "frontend" / "model-server.jar") as jar:
            text = jar.read("log4j2.xml").decode()
        path = self.home / "log4j2.xml"
        path.write_text(text.replace('<AppenderRef ref="STDOUT"/>', ""))
        return path

    def run(self, bodies: list[bytes], clients: int, seconds: float) -> Run:
        """Every client busy for so long."""
        before_s = self._cpu_s()
        replies = saturate(self.address, f"/predictions/{self.model}", bodies, clients, seconds)
        return Run(len(replies) / replies[-1].done_s, (self._cpu_s() - before_s) / len(replies) * 1e6)

    def _cpu_s(self) -> float:
        """CPU time that the JVM and its workers have used."""
        jvm = psutil.Process(self.running.pid)
        times = [process.cpu_times() for process in (jvm, *jvm.children())]
        return sum(found.user + found.system for found in times)

    def stop(self) -> None:
        """Ends it."""
        server.stop(self.home)


def main() -> None:
    """Serves both, measures in turns, prints the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("before", help='such as "fast_wire=false,log=stock", or "" for what is in the checkout')
    parser.add_argument("after", nargs="?", default="")
    parser.add_argument("--model", default="digits")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--clients", default="32", help="such as 1,32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    asked = parser.parse_args()
    bodies = [path.read_bytes() for path in sorted((ROOT / "models" / asked.model / "samples").iterdir())]
    clients = [int(text) for text in asked.clients.split(",")]
    scratch = Path(tempfile.mkdtemp(prefix="batchline-bench-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        variants = []
        for name, text in (("before", asked.before), ("after", asked.after)):
            variants.append(Variant(text, asked.model, asked.batch_size, scratch / name))
            stack.callback(variants[-1].stop)
        found = {count: measure(variants, bodies, count, asked.rounds, asked.seconds) for count in clients}
    for count, pairs in found.items():
        Console().print(summary(count, pairs))


def measure(variants: list[Variant], bodies: list[bytes], clients: int, rounds: int, seconds: float) -> list[tuple[Run, Run]]:
    """(before, after) a round; two rounds more warm the JVMs up."""
    pairs = []
    for number in track(range(rounds + 2), description=f"{clients} clients"):
        order = (0, 1) if number % 2 else (1, 0)
        runs = {index: variants[index].run(bodies, clients, seconds) for index in order}
        if number > 1:
            pairs.append((runs[0], runs[1]))
    return pairs


def summary(clients: int, pairs: list[tuple[Run, Run]]) -> str:
    """Medians of both, and the ratio after / before a round: median (least .. most)."""
    lines = [f"{clients} clients, {len(pairs)} rounds"]
    for name, unit in (("per_s", "req/s"), ("cpu_us", "us of CPU a request (JVM and workers)")):
        before, after = ([getattr(pair[index], name) for pair in pairs] for index in (0, 1))
        ratios = [later / earlier for earlier, later in zip(before, after, strict=True)]
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} .. {max(ratios):.3f})"
        lines.append(f"  {statistics.median(before):.0f} before, {statistics.median(after):.0f} after, ratio {spread}: {unit}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

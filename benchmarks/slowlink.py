"""One request's stages behind a slow link: a TCP relay in front of the running server that passes on so many bits a second.

    python benchmarks/slowlink.py MODEL --mbit-per-s 10 > stages-MODEL-slow.json

The relay limits each direction and adds no delay of its own: it could delay what is sent, but not the handshake of a connection,
from which `batchline stages` has its round trip. The file is one of `batchline stages MODEL --json`, with a note that says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import javaproperties

from batchline import journey
from batchline.errors import BatchlineError
from batchline.properties import Configuration, read_configuration
from batchline.staged import Staged, staged_json
from batchline.stages import add_up

CHUNK = 1460  # bytes, a packet's
AHEAD_S = 0.002  # asyncio wakes to the millisecond


@dataclass
class Direction:
    """One way of a link that all connections share."""

    bytes_per_s: float
    free_s: float = 0.0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes on what comes, no faster than the link."""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                now_s = time.perf_counter()
                self.free_s = max(self.free_s, now_s) + len(data) / self.bytes_per_s
                if self.free_s - now_s > AHEAD_S:
                    await asyncio.sleep(self.free_s - now_s)
                writer.write(data)
                await writer.drain()
        writer.close()


async def relay(port: asyncio.Future[int], host: str, to: int, bytes_per_s: float) -> None:
    """Listens on a free port of 127.0.0.1, which `port` gets."""
    there, back = Direction(bytes_per_s), Direction(bytes_per_s)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, to)
        await asyncio.gather(there.carry(reader, far_writer), back.carry(far_reader, writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=CHUNK)
    port.set_result(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


@contextlib.contextmanager
def slowed(configuration: Configuration, bytes_per_s: float, folder: Path) -> Iterator[Configuration]:
    """The configuration with a relay's port in place of the inference API's."""
    host, to = configuration.address("inference")
    loop = asyncio.new_event_loop()
    port: asyncio.Future[int] = loop.create_future()
    task = loop.create_task(relay(port, host, to, bytes_per_s))
    loop.run_until_complete(port)
    thread = threading.Thread(target=_run, args=(loop, task), daemon=True)
    thread.start()
    path = folder / f".slow.{port.result()}.properties"
    values = dict(configuration.values) | {"inference_address": f"http://127.0.0.1:{port.result()}"}
    try:
        path.write_text(javaproperties.dumps(values, timestamp=None), encoding="iso-8859-1")
        yield read_configuration(path)
    finally:
        path.unlink(missing_ok=True)
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


def _run(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(task)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--mbit-per-s", type=float, default=10.0)
    parser.add_argument("--duration-s", type=float, default=10.0)
    parser.add_argument("--config", type=Path, default=Path("config.properties"))
    parser.add_argument("--models", type=Path, default=Path("models"))
    given = parser.parse_args()
    if not given.mbit_per_s > 0:
        parser.error("--mbit-per-s must be positive")
    note = f"behind a link of {given.mbit_per_s:g} Mbit/s each way, made with a relay (benchmarks/slowlink.py)"
    home = given.config.resolve().parent
    with slowed(read_configuration(given.config), given.mbit_per_s * 1e6 / 8, home) as configuration:
        subject = journey.subject(configuration, given.model, given.models, home)
        measured = journey.measure(subject, journey.Offered(given.duration_s))
    print(json.dumps(staged_json(Staged(add_up(measured), measured.settings, note)), allow_nan=False, indent=1))


if __name__ == "__main__":
    try:
        main()
    except BatchlineError as error:
        sys.exit(f"slowlink: {error}")

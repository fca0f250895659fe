"""Ray Serve: an HTTP proxy, and replicas with @serve.batch. Ends its own Ray when it ends."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from typing import Any

# Ray Serve's own advice for throughput; no reports sent home; and not the niceness of 15 that Ray gives its workers, for the load
# generator on the same cores has none.
os.environ.update({"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"})

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response
from work import encode, load_for, settings

given = settings()
ONGOING = 256  # requests at a replica; the default of 5 would keep batches small


@serve.deployment(
    num_replicas=given.processes,
    max_ongoing_requests=ONGOING,
    ray_actor_options={"num_cpus": 0},
    logging_config={"enable_access_log": False, "log_level": "WARNING"},
)
class Predictor:
    """A request's bytes -> its answer."""

    def __init__(self) -> None:
        self.compute = load_for(given)

    @serve.batch(max_batch_size=given.batch_size, batch_wait_timeout_s=given.delay_ms / 1e3)
    async def batched(self, bodies: list[bytes]) -> list[Any]:
        """What has gathered."""
        return [encode(answer) for answer in self.compute(bodies)]

    async def __call__(self, request: Request) -> Response:
        """HTTP in and out."""
        return Response(await self.batched(await request.body()), media_type="application/json")


def main() -> None:
    """Serves until a signal comes."""
    with tempfile.TemporaryDirectory(prefix="bray-", dir="/tmp") as scratch:  # Ray's sockets need a short path
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _temp_dir=scratch, _node_ip_address="127.0.0.1")
        serve.start(http_options={"host": "127.0.0.1", "port": given.port}, logging_config={"enable_access_log": False})
        serve.run(Predictor.bind(), route_prefix="/predict")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            signal.pause()
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()

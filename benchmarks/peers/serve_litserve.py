"""LitServe: an API server process, and workers that take what has gathered as one batch."""

from __future__ import annotations

from typing import Any

import litserve as ls
from work import instance_bytes, load_for, settings


class Api(ls.LitAPI):
    """JSON {"input": ...} -> the answer."""

    def setup(self, device: str) -> None:
        """Once in each worker."""
        self.given = settings()
        self.compute = load_for(self.given)

    def decode_request(self, request) -> bytes:  # LitServe takes an annotation for FastAPI's
        """LitServe reads JSON or forms, not plain bodies."""
        return instance_bytes(self.given.model, request["input"])

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        """The list as it is; LitServe's own makes a tensor or array of it."""
        return inputs

    def predict(self, batch: list[bytes] | bytes) -> Any:
        """A batch, or one request where it was told not to batch."""
        return self.compute([batch])[0] if isinstance(batch, bytes) else self.compute(batch)

    def unbatch(self, output: list[Any]) -> list[Any]:
        """One answer a request."""
        return output

    def encode_response(self, output: Any) -> Any:
        """Plain values; LitServe makes JSON of them."""
        return output


if __name__ == "__main__":
    given = settings()
    api = Api(max_batch_size=given.batch_size, batch_timeout=given.delay_ms / 1e3)
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=given.processes, timeout=120)
    server.run(host="127.0.0.1", port=given.port, num_api_servers=1, generate_client_file=False, log_level="warning")

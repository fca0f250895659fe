"""MLServer: a custom MLModel behind its adaptive batching, over KServe v2."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput
from work import encode, hand_down, instance_bytes, load_for, settings


class Model(MLModel):
    """One tensor named input -> one tensor named answer, an answer's JSON a row."""

    async def load(self) -> bool:
        """Once in each process."""
        self.given = settings()
        self.compute = load_for(self.given)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """A batch that MLServer put together."""
        (tensor,) = payload.inputs
        rows = list(tensor.data)
        if self.given.model == "digits":
            rows = [row if isinstance(row, list) else None for row in rows]
            if None in rows:
                flat = list(tensor.data)
                rows = [flat[i : i + 64] for i in range(0, len(flat), 64)]
        else:
            rows = [row.decode() if isinstance(row, bytes) else row for row in rows]
        answers = self.compute([instance_bytes(self.given.model, row) for row in rows])
        data = [encode(answer).decode() for answer in answers]
        return InferenceResponse(
            model_name=self.name, outputs=[ResponseOutput(name="answer", shape=[len(data)], datatype="BYTES", data=data)]
        )


def main() -> None:
    """Writes MLServer's two settings files and becomes `mlserver start`."""
    given = settings()
    folder = Path(tempfile.mkdtemp(prefix="bench-mlserver-", dir=Path.cwd()))
    ports = {"http_port": given.port, "grpc_port": given.port + 1, "metrics_port": given.port + 2}
    quiet = {"debug": False, "use_structured_logging": False, "metrics_endpoint": None}
    (folder / "settings.json").write_text(json.dumps({"host": "127.0.0.1", **ports, **quiet, "parallel_workers": given.processes - 1}))
    batching = {"max_batch_size": given.batch_size, "max_batch_time": given.delay_ms / 1e3}
    (folder / "model-settings.json").write_text(json.dumps({"name": given.model, "implementation": "serve_mlserver.Model", **batching}))
    environment = hand_down(given) | {"PYTHONPATH": str(Path(__file__).parent)}
    mlserver = str(Path(sys.executable).with_name("mlserver"))
    os.execve(mlserver, [mlserver, "start", str(folder)], environment)


if __name__ == "__main__":
    main()

"""A hand-written Python model for Triton: dynamic batching in front, one batch a call."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

sys.path[:0] = os.environ["BENCH_PATHS"].split(os.pathsep)  # the stub's Python starts without PYTHONPATH

import numpy as np  # noqa: E402
import triton_python_backend_utils as pb_utils  # noqa: E402
from work import encode, load_for, settings  # noqa: E402


class TritonPythonModel:
    """One tensor named input -> one tensor named answer, an answer's JSON a row."""

    def initialize(self, args: dict[str, str]) -> None:
        """Once in each instance."""
        self.given = settings()
        self.compute = load_for(self.given)

    def execute(self, requests: list[Any]) -> list[Any]:
        """All requests of a batch as one; each holds one instance or more."""
        arrays = [pb_utils.get_input_tensor_by_name(request, "input").as_numpy() for request in requests]
        answers = iter(self.compute([self.body(row) for array in arrays for row in array]))
        return [self.response([next(answers) for _ in array]) for array in arrays]

    def body(self, row: Any) -> bytes:
        """A row of the tensor -> a request body."""
        return json.dumps(row.tolist()).encode() if self.given.model == "digits" else row[0]

    def response(self, answers: list[Any]) -> Any:
        """One request's answers."""
        rows = np.array([[encode(answer)] for answer in answers], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("answer", rows)])

"""model.py of an exported model: Triton's Python backend on one side, a TorchServe handler on the other.

`batchline export triton` copies this file to REPOSITORY/NAME/VERSION/model.py; beside it, in archive/, lies the unpacked
archive with handler, weights and samples. Nothing here is imported by the rest of batchline, and it imports nothing of it.

A row of the input `body` is one request body, as TorchServe would get it; a row of the output `answer` is one answer's
body. The parameters of a KServe v2 request are the request's headers: `content_type` is the type of its bodies.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import types
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# The stub's own Python looks at no PYTHONPATH. Before numpy, so that the user's choice of it counts.
sys.path[:0] = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry not in sys.path]

import numpy as np  # noqa: E402
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # noqa: E402

ARCHIVE = Path(__file__).resolve().parent / "archive"
STUB = "triton_python_backend_stub"  # the process that runs one instance
ENVELOPE = {"content-type", "content-length", "inference-header-content-length"}  # forwarded, these are of the KServe request
MAX_MESSAGE = 4000  # characters of an error that is not the handlers' own
# What Triton makes of an error: INVALID_ARG goes out as 400, NOT_FOUND as 404, UNSUPPORTED as 501, UNAVAILABLE as 503, INTERNAL as 500.
CODES = {404: "NOT_FOUND", 501: "UNSUPPORTED", 503: "UNAVAILABLE"}

logger = logging.getLogger("batchline.triton")
Handle = Callable[[list[dict[str, Any]], Any], Any]


class TritonPythonModel:
    """One instance: what a worker is in TorchServe."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the handler and lets it warm up; what it raises keeps the model from being READY."""
        name = args["model_name"]
        logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {args['model_instance_name']} %(name)s: %(message)s")
        check_numpy()
        sys.path.insert(0, str(ARCHIVE))
        stand_in_for_ts()
        manifest = json.loads((ARCHIVE / "MAR-INF" / "MANIFEST.json").read_text(encoding="utf-8"))
        gpu = int(args["model_instance_device_id"]) if args["model_instance_kind"] == "GPU" else None
        batch_size = json.loads(args["model_config"])["max_batch_size"]
        self.context = Context(name, manifest, gpu, batch_size)
        self.handle = load_handler(manifest, self.context)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """A batch of requests in, as many responses out; each row of each request stands alone in it."""
        data: list[dict[str, Any]] = []
        headers: list[dict[str, str]] = []
        spans: list[range] = []
        for request in requests:
            bodies = pb_utils.get_input_tensor_by_name(request, "body").as_numpy().reshape(-1).tolist()
            spans.append(range(len(data), len(data) + len(bodies)))
            data += [{"body": body} for body in bodies]
            headers += [headers_of(request.parameters())] * len(bodies)
        self.context.begin(headers)
        answers = self.answers(data)
        return [self.respond(answers, span) for span in spans]

    def answers(self, data: list[dict[str, Any]]) -> list[Any]:
        """What the handler answers. A handler that raises, or miscounts, fails the batch as it would in TorchServe."""
        try:
            answers = self.handle(data, self.context)
            if not isinstance(answers, list) or len(answers) != len(data):
                raise TypeError(f"the handler must return a list of {len(data)} answers, not {type(answers).__name__}")
        except Exception:
            logger.exception("the handler failed on a batch of %d", len(data))
            self.context.set_all_response_status(503)
            return ["Prediction failed"] * len(data)
        return answers

    def respond(self, answers: list[Any], span: range) -> Any:
        """The response to the request whose rows are `span`: all its answers, or the error of the first row that has one."""
        for place, index in enumerate(span):
            status, _ = self.context.get_response_status(index)
            if status >= 400:
                message = error_text(status, to_bytes(answers[index]), f"body[{place}]: " if len(span) > 1 else "")
                return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, error_code(status)))
        rows = np.array([[to_bytes(answers[index])] for index in span], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("answer", rows)])


class Context:
    """What a handler asks for, as ts.context.Context of TorchServe 0.12.0 gives it.

    Args:
        name: the model's.
        manifest: MAR-INF/MANIFEST.json.
        gpu: index of the instance's GPU; None on the CPU.
        batch_size: most requests in a batch.
    """

    def __init__(self, name: str, manifest: dict[str, Any], gpu: int | None, batch_size: int) -> None:
        self.model_name = name
        self.manifest = manifest
        self.system_properties = {
            "model_dir": str(ARCHIVE),
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "Triton",
            "server_version": "",
            "limit_max_image_pixels": True,
        }
        self.model_yaml_config = read_yaml(manifest.get("model", {}).get("configFile"))
        self.metrics = NoMetrics()
        self.begin([])

    def begin(self, headers: list[dict[str, str]]) -> None:
        """A new batch: request headers of each row."""
        self.headers = headers
        self.request_ids: dict[int, str] = {}
        self.statuses: dict[int, tuple[int, str]] = {}
        self.response_headers: dict[int, dict[str, str]] = {}

    def get_request_id(self, idx: int = 0) -> str:
        """An id of the row's own, to find a traceback in the log by."""
        return self.request_ids.setdefault(idx, str(uuid.uuid4()))

    def get_request_header(self, idx: int, key: str) -> str | None:
        """One header of a row's request."""
        return self.headers[idx].get(key)

    def get_all_request_header(self, idx: int) -> dict[str, str]:
        """All of them."""
        return self.headers[idx]

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """400 and above make an error of the row's request."""
        self.statuses[idx] = (code, phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """The same for every row."""
        self.statuses = dict.fromkeys(range(len(self.headers)), (code, phrase))

    def get_response_status(self, idx: int) -> tuple[int, str]:
        """Code and phrase."""
        return self.statuses.get(idx, (200, ""))

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Kept for the handler to read; Triton sends no headers of a model's."""
        self.response_headers.setdefault(idx, {})[key] = value

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """What was set."""
        return self.response_headers.get(idx, {})

    def set_response_content_type(self, idx: int, value: str) -> None:
        """A header as any other."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """What was set."""
        return self.get_response_headers(idx).get("content-type")


class NoMetrics:
    """TorchServe's older metric calls, which a handler may make on context.metrics; Triton counts and times requests itself."""

    def _ignore(self, *args: Any, **kwargs: Any) -> None: ...

    add_counter = add_time = add_size = add_percent = add_error = add_metric = _ignore


def check_numpy() -> None:
    """Refuses a numpy that the stub misreads: one built for numpy 1 finds a stride of 0 in arrays of numpy 2, so all bytes are equal."""
    import torch

    seen = pb_utils.Tensor.from_dlpack("probe", torch.arange(4, dtype=torch.uint8)).as_numpy().tolist()
    if seen != [0, 1, 2, 3]:
        raise RuntimeError(f"this Triton's Python stub cannot read numpy {np.__version__} ({np.__file__}): pip install 'numpy<2' for it")


def stand_in_for_ts() -> None:
    """Where TorchServe is not installed, the one class of it that handlers derive from."""
    try:
        importlib.import_module("ts.torch_handler.base_handler")
    except ImportError:
        _module("ts")
        _module("ts.torch_handler")
        _module("ts.torch_handler.base_handler", BaseHandler=type("BaseHandler", (), {}))
        _module("batchline.handlers.wire", install=lambda: False)  # it speeds up TorchServe's socket, which is not here either


def _module(name: str, **members: Any) -> None:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(members)


def load_handler(manifest: dict[str, Any], context: Context) -> Handle:
    """The archive's handler, initialised: a module with a function `handle`, or the only class that a module defines."""
    file, _, function = manifest["model"]["handler"].partition(":")
    module = importlib.import_module(Path(file).stem)
    count_instances()
    entry = getattr(module, function or "handle", None)
    if entry:
        entry(None, context)  # TorchServe's way to let a function load its model
        return entry  # type: ignore[no-any-return]
    classes = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    if len(classes) != 1:
        raise RuntimeError(f"{module.__file__} must define exactly one class, as for TorchServe; it has {len(classes)}")
    handler = classes[0]()
    handler.initialize(context)
    return handler.handle  # type: ignore[no-any-return]


def count_instances() -> None:
    """Instances share the cores as workers do: batchline's handlers count the processes beside their own, which have another name here."""
    cores: Any = sys.modules.get("batchline.handlers.cores")
    if cores:
        cores.WORKER_SCRIPT = STUB
        cores.place_among_own = lambda: (0, 1)  # instances of all models run in one folder: nobody is pinned


def read_yaml(name: str | None) -> dict[str, Any]:
    """model-config.yaml; empty where the archive has none."""
    if not name:
        return {}
    import yaml

    return dict(yaml.safe_load((ARCHIVE / name).read_text(encoding="utf-8")) or {})


def headers_of(parameters: str) -> dict[str, str]:
    """A request's parameters, which may be headers that Triton forwards -> the headers of each of its bodies."""
    if parameters in ("", "{}"):
        return {}
    given = {str(name).lower(): str(value) for name, value in json.loads(parameters).items()}
    headers = {name: value for name, value in given.items() if name not in ENVELOPE}
    if "content_type" in headers:
        headers["content-type"] = headers.pop("content_type")
    return headers


def to_bytes(answer: Any) -> bytes:
    """An answer as TorchServe would send it."""
    if isinstance(answer, (bytes, bytearray)):
        return bytes(answer)
    return answer.encode() if isinstance(answer, str) else json.dumps(answer, indent=2).encode()


def error_text(status: int, body: bytes, place: str = "") -> str:
    """The words of an error: `400 BadInput: what is wrong`; a body of another form as it is."""
    text = body.decode("utf-8", "replace")
    try:
        said = json.loads(text)
        return f"{said['code']} {said['type']}: {place}{said['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{status}: {place}{text[:MAX_MESSAGE]}"


def error_code(status: int) -> Any:
    """The code of Triton's that comes nearest to an HTTP status."""
    return getattr(pb_utils.TritonError, CODES.get(status, "INVALID_ARG" if status < 500 else "INTERNAL"))

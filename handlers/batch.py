"""The one batch loop: each request of a batch stands alone, the model runs once.

TorchServe hands a worker a batch of requests and wants a list of as many answers. Whatever goes wrong with one request
stays with that request: it gets a 4xx or 5xx of its own, and its batch-mates get their answers.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar

import torch

from . import answer, payload, runtime, wire
from .base import BaseHandler
from .classify import read_labels
from .clock import StageClock, queue_seconds, with_queue
from .cores import Share
from .errors import BadInput, BadRows, ModelLoadError, NotSupported, RequestError, ServerFault
from .exchange import Exchange, Row
from .metrics import Metrics

logger = logging.getLogger(__name__)

ERROR_STATUSES = {status.value for status in HTTPStatus if status >= 400}
RESPONSE_TIMEOUT_S = 120  # TorchServe's own default: a batch that takes longer costs the worker its life
BUDGET = 0.5  # of it: what is not begun by then is refused
MAX_RESPONSE_BYTES = 6_553_500  # TorchServe's own default; a longer answer kills the worker


class BatchHandler(BaseHandler):  # type: ignore[misc]
    """Serves any model; subclasses say what an instance is and what an answer is.

    The three stages, each free to be overridden alone:

        preprocess(rows)    list of {"data": instance} -> batch for the model
        inference(batch)    batch -> the model's outputs
        postprocess(out)    outputs -> list of answers, one a row

    A preprocess that works row by row calls `self.each(decode, rows)`: a row whose decode raises fails alone. Raise
    BadInput for the caller's faults. Any other stage that raises for a batch is tried again on halves of it, so that one
    bad row cannot take the others along.

    Class attributes:
        raw: what a body that is not JSON is: an instance of "bytes" or "text", or never an instance ("json").
        expects: what a request should hold, for error messages.
        chunk: `max_instances` where model-config.yaml does not say.
    """

    raw: ClassVar[payload.Raw] = "bytes"
    expects: ClassVar[str] = "one instance as bytes or JSON"
    chunk: ClassVar[int] = 64
    _torch_model: Any = None
    deadline_s = math.inf  # time.monotonic() after which nothing of the batch is begun; none while the model loads

    # ---- loading

    def initialize(self, context: Any) -> None:
        """Loads the model and warms it up. Raises ModelLoadError, the kind of error that TorchServe reports."""
        try:
            self._initialize(context)
        except Exception as error:
            logger.error("MODEL_LOAD_FAILED %s: %s", getattr(context, "model_name", "?"), error)
            if isinstance(error, ModelLoadError):
                raise
            raise ModelLoadError(f"{type(error).__name__}: {error}") from error

    def _initialize(self, context: Any) -> None:
        os.environ["TS_DECODE_INPUT_REQUEST"] = "false"  # bodies reach us as bytes: TorchServe's own decoding logs a traceback a bad body
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.context, self.manifest = context, context.manifest
        properties = context.system_properties
        self.model_dir = Path(properties["model_dir"])
        self.config: dict[str, Any] = dict(context.model_yaml_config or {})
        self.model_yaml_config = self.config
        self.batch_size = int(properties.get("batch_size") or 1)
        self.max_instances = self.setting("max_instances", self.chunk, at_least=1)
        self.max_request_instances = self.setting("max_request_instances", payload.MOST, at_least=1)
        self.budget_s = self.setting("responseTimeout", RESPONSE_TIMEOUT_S, at_least=1) * BUDGET
        self.max_response_bytes = self.setting("max_response_size", MAX_RESPONSE_BYTES, at_least=1)
        if self.setting("fast_wire", True):
            wire.install()
        self.metrics = Metrics(context.metrics if self.setting("metrics", True) else None, context.model_name)
        self.device = runtime.pick_device(properties.get("gpu_id"))
        self.map_location = self.device.type
        self.cores = Share(self.setting("threads", 0, at_least=0) or None, self.setting("pin_cores", False))
        self.cores.keep()
        runtime.keep_freed_memory()
        self.model = runtime.load_model(self.model_dir, self.manifest, self.config, self.device)
        self.model_pt_path = str(self.model_dir / self.manifest["model"]["serializedFile"])
        self.mapping = read_labels(self.model_dir)
        self.prepare()
        self.initialized = True
        self.warm_up()

    def prepare(self) -> None:
        """For subclasses: what else is read from the archive or model-config.yaml, once, after the model."""

    def setting(self, key: str, default: Any, at_least: float | None = None) -> Any:
        """A value of model-config.yaml; a wrong type or range is refused at load, not at the first request."""
        value = self.config.get(key, default)
        if type(default) is bool and type(value) is not bool:
            raise ModelLoadError(f"model-config.yaml: {key} must be true or false, not {value!r}")
        if type(default) is int and type(value) is not int:
            raise ModelLoadError(f"model-config.yaml: {key} must be a whole number, not {value!r}")
        numeric = isinstance(default, (int, float)) and not isinstance(default, bool)
        if numeric and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ModelLoadError(f"model-config.yaml: {key} must be a number, not {value!r}")
        if at_least is not None and not value >= at_least:  # also NaN
            raise ModelLoadError(f"model-config.yaml: {key} must be at least {at_least}, not {value}")
        return value

    def warm_up(self) -> None:
        """Runs the archive's samples alone and as a full batch, so that the first user waits for nothing.

        Raises:
            ModelLoadError: a sample is refused or fails, so real requests would be too.
        """
        paths = [path for path in sorted((self.model_dir / "samples").glob("*")) if path.is_file()]
        names, bodies = [path.name for path in paths], [path.read_bytes() for path in paths]
        for size in sorted({1, self.batch_size}) if bodies else ():
            exchanges = [Exchange(i, {}) for i in range(size)]
            for exchange in exchanges:
                self._guard(exchange, self._read, {"body": bodies[exchange.index % len(bodies)]}, exchange)
            self._run_all(exchanges, StageClock())
            failed = next((e for e in exchanges if e.error), None)
            if failed and failed.error:
                sample, cause = names[failed.index % len(names)], failed.error.__cause__ or failed.error
                raise ModelLoadError(f"warm-up on samples/{sample} failed: {type(cause).__name__}: {cause}") from failed.error.__cause__

    # ---- one batch

    def handle(self, data: Sequence[dict[str, Any]], context: Any) -> list[bytes]:
        """TorchServe's entry point: a list of requests in, a list of as many bodies out. Raises nothing."""
        begin_s, clock = time.time(), StageClock()
        self.context = context
        exchanges = [Exchange(i, _headers(context, i)) for i in range(len(data))]
        try:
            self.cores.keep()
            self.deadline_s = time.monotonic() + self.budget_s
            with clock.stage("deserialize"):
                for exchange, fields in zip(exchanges, data, strict=True):
                    self._guard(exchange, self._read, fields, exchange)
            self._run_all(exchanges, clock)
        except BaseException as fault:
            if isinstance(fault, KeyboardInterrupt):
                raise
            self._fail_all(exchanges, fault)
        with clock.stage("serialize"):
            for exchange in exchanges:
                self._write(exchange)
        self._report(exchanges, clock, begin_s)
        if any(runtime.is_fatal(e.error.__cause__) for e in exchanges if e.error):
            runtime.exit_soon()
        return [exchange.body for exchange in exchanges]

    def _read(self, fields: dict[str, Any], exchange: Exchange) -> None:
        """Bytes -> rows; answers at once what needs no model."""
        if exchange.headers.get("describe") == "True":
            exchange.body = answer.dump(answer.to_jsonable(self.describe_handle()))
            return
        exchange.request = payload.parse(fields, exchange.headers, self.raw, self.expects, self.max_request_instances)
        if exchange.explains and len(exchange.request.instances) > 1:
            raise BadInput("an explanation is of one instance; send one", kind="explain")
        pairs = zip(exchange.request.instances, exchange.request.places, strict=True)
        exchange.rows = [Row(value, exchange, place) for value, place in pairs]

    def _run_all(self, exchanges: Iterable[Exchange], clock: StageClock) -> None:
        """All rows through the model, `max_instances` at a time; requests for an explanation one by one.

        Requests with few instances come first: one that brings thousands, and may run into the deadline, keeps nobody waiting.
        """
        rows = [row for e in sorted(exchanges, key=lambda e: len(e.rows)) if not e.explains for row in e.rows]
        for start in range(0, len(rows), self.max_instances):
            chunk = [row for row in rows[start : start + self.max_instances] if not row.owner.error]
            self._check_time(chunk)
            self._run([row for row in chunk if not row.owner.error], clock)
            for row in chunk:
                row.pop("item", None)  # decoded pictures of thousands of instances would not fit
        for exchange in (e for e in exchanges if e.explains and not e.error):
            with clock.stage("inference"):
                for row in exchange.rows:
                    self._guard(exchange, self._explain, row)

    def _check_time(self, rows: list[Row]) -> None:
        """Past the deadline a request fails by its own size, before TorchServe ends the worker and all its requests with it."""
        if time.monotonic() > self.deadline_s:
            for row in rows:
                self._fail(row.owner, self._too_slow(), row.place)

    def _too_slow(self) -> BadInput:
        limit = f"the {self.budget_s:g} s that a batch may take (half of responseTimeout)"
        return BadInput(f"the request was not done within {limit}; send fewer or smaller instances", 413, kind="too_slow")

    def _run(self, rows: list[Row], clock: StageClock) -> None:
        """The three stages; what fails is narrowed down to the rows whose fault it is."""
        if not rows:
            return
        try:
            self._stages(rows, clock)
        except BadRows as bad:
            for index, error in bad.errors.items():
                self._fail(rows[index].owner, error, rows[index].place)
            self._run([row for row in rows if not row.owner.error], clock)
        except _WrongCount as fault:
            for row in rows:
                self._fail(row.owner, fault)
        except BaseException as fault:
            if isinstance(fault, KeyboardInterrupt):
                raise
            if len(rows) == 1:
                self._fail(rows[0].owner, fault, rows[0].place)
                return
            half = len(rows) // 2
            self._run(rows[:half], clock)
            self._run([row for row in rows[half:] if not row.owner.error], clock)

    def _stages(self, rows: list[Row], clock: StageClock) -> None:
        with torch.inference_mode():
            with clock.stage("preprocess"):
                batch = self.preprocess(rows)
            with clock.stage("inference"):
                outputs = self.inference(batch)
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)  # kernels run on after their launch: without it their time would be serialize's
            with clock.stage("serialize"):
                answers = self.postprocess(outputs)
        if not hasattr(answers, "__len__") or isinstance(answers, (dict, str, bytes)) or len(answers) != len(rows):
            raise _WrongCount(answers, len(rows))
        for row, result in zip(rows, answers, strict=True):
            row.answer = result

    def each(self, decode: Callable[[Any], Any], rows: Sequence[Any]) -> list[Any]:
        """decode(instance) for every row.

        Raises:
            BadRows: some rows failed. The batch loop fails those alone and comes again with the others, whose decoded
                form is kept, so that nothing is decoded twice.
        """
        errors: dict[int, BaseException] = {}
        failed_owners: set[int] = set()
        for index, row in enumerate(rows):
            owner = id(getattr(row, "owner", row))
            if "item" in row or owner in failed_owners:
                continue
            try:
                if time.monotonic() > self.deadline_s:
                    raise self._too_slow()
                row["item"] = decode(row["data"])
            except Exception as error:
                errors[index] = error
                failed_owners.add(owner)
        if errors:
            raise BadRows(errors)
        return [row["item"] for row in rows]

    # ---- the stages, by default

    def preprocess(self, data: Sequence[Any]) -> Any:
        """Rows of {"data": numbers} -> one float tensor (B, ...) on the device."""
        return self.to_device(torch.stack(self.each(_as_tensor, data)))

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """One forward pass. A tuple of tensors goes to the model as its arguments, anything else as its one argument."""
        inputs = data if isinstance(data, tuple) else (data,)
        return self.model(*(self.to_device(value) for value in inputs), *args, **kwargs)

    def postprocess(self, data: Any) -> list[Any]:
        """Outputs (B, ...) -> nested lists, one a row."""
        return list(data.tolist())

    def explain_row(self, row: Row) -> Any:
        """Why the model answered so. Raises NotSupported: a plain model has no explanation."""
        raise NotSupported("this model has no explanations; ask /predictions instead", kind="unsupported")

    def describe_handle(self) -> dict[str, Any]:
        """What GET /models/NAME?customized=true shows."""
        return {"handler": type(self).__name__, "about": (type(self).__doc__ or "").strip(), "expects": self.expects}

    def differentiable(self) -> Any:
        """The model as torch's own, through which gradients flow; loaded when it is first asked for where another form serves."""
        if isinstance(self.model, torch.nn.Module):
            return self.model
        if self._torch_model is None:
            self._torch_model = runtime.load_weights(self.model_dir, self.manifest, self.config, self.device)
        return self._torch_model

    def to_device(self, value: Any) -> Any:
        """A CPU tensor on its way to the GPU goes through pinned memory, so that the copy does not wait for it."""
        if not isinstance(value, torch.Tensor) or value.device == self.device:
            return value
        if self.device.type == "cuda" and value.device.type == "cpu":
            value = value.pin_memory()
        return value.to(self.device, non_blocking=True)

    # ---- answers and errors

    def _explain(self, row: Row) -> None:
        try:
            with torch.inference_mode(False), torch.enable_grad():
                row.answer = self.explain_row(row)
        except BadRows as bad:  # the one row
            self._fail(row.owner, next(iter(bad.errors.values())), row.place)

    def _guard(self, exchange: Exchange, step: Callable[..., None], *args: Any) -> None:
        """Runs a step of one request; what it raises is that request's."""
        try:
            step(*args)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self._fail(exchange, error)

    def _fail(self, exchange: Exchange, error: BaseException, place: str = "") -> None:
        if not isinstance(error, RequestError):
            request_id = self.context.get_request_id(exchange.index) if self.context else None
            logger.error("request %s failed", request_id, exc_info=error)
            fault = ServerFault(f"the model failed on this request; the log has the traceback under request {request_id}")
            fault.__cause__ = error
            error, place = fault, ""
        exchange.fail(error, place)

    def _fail_all(self, exchanges: list[Exchange], fault: BaseException) -> None:
        for exchange in exchanges:
            if exchange.request is None or any(row.answer is None for row in exchange.rows):
                self._guard(exchange, self._fail, exchange, fault)

    def _write(self, exchange: Exchange) -> None:
        """Answers -> bytes, each request by itself."""
        if not exchange.error and exchange.request:
            self._guard(exchange, self._encode, exchange)
        if exchange.error:
            exchange.status, exchange.content_type = _status(exchange.error), answer.JSON_TYPE
            exchange.body = answer.dump(exchange.error.body(exchange.place))

    def _encode(self, exchange: Exchange) -> None:
        assert exchange.request is not None
        facts = self.manifest.get("model", {}) if self.manifest else {}
        answers = [answer.annotate(row.answer, row.notes) for row in exchange.rows]
        name = getattr(self.context, "model_name", None) or str(facts.get("modelName", ""))
        exchange.body, exchange.content_type = answer.encode(exchange.request, answers, name, str(facts.get("modelVersion", "")))
        if len(exchange.body) > self.max_response_bytes:
            size, limit = len(exchange.body), self.max_response_bytes
            exchange.error = BadInput(
                f"the answer has {size} bytes, more than the {limit} that max_response_size allows", 413, kind="too_large"
            )

    def _report(self, exchanges: list[Exchange], clock: StageClock, begin_s: float) -> None:
        """Status, headers and metrics."""
        timing = clock.server_timing(len(exchanges))
        for exchange in exchanges:
            index, status = exchange.index, exchange.status
            queue_s = queue_seconds(exchange.headers.get("x-request-start"), begin_s)
            if status != 200:
                self.context.set_response_status(status, HTTPStatus(status).phrase, index)
            self.context.set_response_content_type(index, exchange.content_type)
            self.context.set_response_header(index, "Server-Timing", with_queue(timing, queue_s))
            if exchange.error and status < 500:
                self.metrics.bad_input(exchange.error.kind)
        self.metrics.batch(clock.seconds, len(exchanges))


class _WrongCount(Exception):
    """A subclass's postprocess is wrong for every batch: halving it would only hide that."""

    def __init__(self, answers: Any, wanted: int) -> None:
        got = f"{len(answers)} answers" if hasattr(answers, "__len__") else "no list"
        super().__init__(
            f"postprocess returned a {type(answers).__name__} with {got} for {wanted} instances; it must return a list of {wanted}"
        )


def _status(error: RequestError) -> int:
    """The error's status; 500 for one that HTTP does not know, which would fail the whole batch."""
    return int(error.status) if error.status in ERROR_STATUSES else 500


def _headers(context: Any, index: int) -> dict[str, str]:
    return payload.lower_headers(context.get_all_request_header(index))


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, (bytes, str)):
        raise BadInput("must be a JSON number or nested lists of numbers", kind="type")
    try:
        tensor = torch.as_tensor(value, dtype=torch.float32)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise BadInput(f"must be a JSON number or nested lists of numbers, all of one length: {error}", kind="type") from None
    if not tensor.isfinite().all():
        raise BadInput("must hold only finite numbers (float32)", at=_where(~tensor.isfinite()), kind="range")
    return tensor


def _where(wrong: torch.Tensor) -> str:
    """The place of the first true value, such as "[3][5]"."""
    return "".join(f"[{i}]" for i in wrong.nonzero()[0].tolist())

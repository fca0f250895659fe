"""Requests over TorchServe's gRPC inference API, for the load generator.

TorchServe drops a handler's status and headers on this way (its GRPCJob): an error comes as OK, with the error as the
body, and nothing tells the stages or the batch. Needs the extra `grpc`; inference_pb2*.py are made when batchline is built.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from batchline.errors import LoadError
from batchline.transport import NO_ANSWER, Reply

FIELD = "data"  # the input's name; the handlers take any one
ERROR_KEYS = {"code", "type", "message"}  # of TorchServe's own error bodies, and ours
LONGEST_ERROR = 65536  # a body longer than this is an answer
# The inverse of TorchServe's GRPCUtils.getGRPCStatusCode.
STATUSES = {
    "OK": 200,
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,  # also what a wrong token gets
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "OUT_OF_RANGE": 416,
    "UNIMPLEMENTED": 501,
    "RESOURCE_EXHAUSTED": 503,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": NO_ANSWER,
    "CANCELLED": NO_ANSWER,  # at the deadline TorchServe cancels the call too, and may be the first to say so
}
# A fault of TorchServe's front end comes as INTERNAL, and only the last line of its details tells which; the numbers are REST's.
REASONS = {
    "org.pytorch.serve.archive.model.ModelNotFoundException": 404,
    "org.pytorch.serve.archive.model.ModelVersionNotFoundException": 404,
    "InternalServerException.()": 503,  # the queue is full, or there is no worker
}
LOST = ("Stream removed", "Socket closed", "onnection reset", "failed to connect")  # grpc's own words for a connection that is gone
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # else all channels of a process share one connection
    ("grpc.enable_retries", 0),  # a retry would hide an error
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),  # a server that is back is found again at once, as over HTTP
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),  # how long an answer may be is the server's to say
    ("grpc.max_send_message_length", -1),
)


class GrpcTransport:
    """Predictions over `channels` connections, taken in turn; each carries many requests at once.

    Args:
        address: host:port.
        model: the model's name.
        bodies: sent in turn.
        headers: with every request, as metadata; TorchServe hands none of it to a handler.
        timeout_s: an answer later than this counts as none.
        channels: how many connections.

    Raises:
        LoadError: the extra `grpc` is not installed, or there is no channel.
    """

    def __init__(
        self, address: str, model: str, bodies: Sequence[bytes], headers: dict[str, str], timeout_s: float, channels: int = 1
    ) -> None:
        if channels < 1:
            raise LoadError(f"the number of channels must be positive, not {channels}.")
        self.grpc, self.protos, self.services = _modules()
        self.requests = [self.protos.PredictionsRequest(model_name=model, input={FIELD: body}) for body in bodies]
        self.metadata = {name.lower(): value for name, value in headers.items()}
        self.address, self.timeout_s, self.count = address, timeout_s, channels

    async def __aenter__(self) -> GrpcTransport:
        """Opens channels, which connect when the first request needs them."""
        self.channels = [self.grpc.aio.insecure_channel(self.address, options=OPTIONS) for _ in range(self.count)]
        stubs = [self.services.InferenceAPIsServiceStub(channel) for channel in self.channels]
        self.turns = itertools.cycle(zip(self.channels, stubs, strict=True))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for channel in self.channels:
            await channel.close()

    async def send(self, turn: int, headers: dict[str, str]) -> Reply:
        """See Transport. grpc tells headers and body at once: first_byte_s is done_s."""
        channel, stub = next(self.turns)
        state = channel.get_state()
        reused = state in (self.grpc.ChannelConnectivity.READY, self.grpc.ChannelConnectivity.CONNECTING)
        metadata = tuple((self.metadata | {name.lower(): value for name, value in headers.items()}).items())
        try:
            answer = await stub.Predictions(self.requests[turn % len(self.requests)], timeout=self.timeout_s, metadata=metadata)
            done_s, body = time.perf_counter(), answer.prediction
            return Reply(done_s, done_s, status_of(body), len(body), reused=reused)
        except self.grpc.aio.AioRpcError as error:
            done_s = time.perf_counter()
            connected = channel.get_state() == self.grpc.ChannelConnectivity.READY
            status = status_of_error(error.code().name, error.details() or "", connected)
            return Reply(done_s, done_s, status, reused=reused, error=f"{error.code().name}: {error.details()}")


def status_of(body: bytes) -> int:
    """The status that a body says: an error's own code, else 200."""
    if not body.startswith(b"{") or b'"code"' not in body or len(body) > LONGEST_ERROR:
        return 200
    try:
        said = json.loads(body)
    except ValueError:
        return 200
    if set(said) != ERROR_KEYS or not isinstance(said["type"], str) or not isinstance(said["message"], str):
        return 200
    code = said["code"]
    return code if type(code) is int and 400 <= code <= 599 else 200


def status_of_error(code: str, details: str, connected: bool) -> int:
    """The HTTP status that a gRPC error amounts to.

    Args:
        code: the name of its StatusCode.
        details: its words.
        connected: whether the channel still stands. grpc says UNAVAILABLE for a server that it cannot reach, as a server
            may say that it is busy; a lost connection may be told a moment before the channel knows, hence the words too.
    """
    if code == "UNAVAILABLE" and (not connected or any(word in details for word in LOST)):
        return NO_ANSWER
    return REASONS.get(details.rpartition("\n")[2], STATUSES.get(code, 500))


def _modules() -> tuple[Any, Any, Any]:
    """The package grpc and the generated stubs, imported only where they are used."""
    try:
        import grpc
        from google.protobuf.runtime_version import VersionError
    except ImportError:
        raise LoadError("load over gRPC needs the packages grpcio and protobuf: pip install 'batchline[grpc]'.") from None
    try:
        import batchline.inference_pb2 as protos
        import batchline.inference_pb2_grpc as services
    except ImportError:
        raise LoadError("batchline's gRPC stubs are missing; installing it makes them: make setup, or pip install --editable .") from None
    except (VersionError, RuntimeError) as error:
        raise LoadError(f"grpcio or protobuf is older than batchline's gRPC stubs: pip install 'batchline[grpc]' ({error})") from None
    return grpc, protos, services

"""TorchServe's socket protocol at less cost: the same requests in, the same bytes out.

TorchServe reads a batch in pieces of 4 bytes, two calls of the kernel for each header, and writes the answers field by field. For a
small model that is more than the model. Here a batch is read with as few calls as it arrives in. Where anything is other than usual
TorchServe's own functions do the work, on the same bytes. They are replaced in this process only, and only where they are known to
the letter: TorchServe 0.12.0 is its last release.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import struct
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import ts
from ts import service
from ts.context import RequestProcessor
from ts.protocol import otf_message_handler as stock

logger = logging.getLogger(__name__)

KNOWN = {  # sha256 of the source of what is replaced, and of what calls it
    "retrieve_msg": "3b7f3c97cccd94d80b44321f9e891dc4feaf738c4f881d39399195c6ac05f5f6",
    "create_predict_response": "728708fe6b98746510a8d31007f5aa364dcd01436fddfdd460a7dc7540cedea6",
    "retrieve_data_for_inference": "3b5ceaf1100213403620a83ef709c6bc4605c2155c9f06327b882010494d8d2b",
    "predict": "630da7c260bdab9128733a010a84980ff2cd89fb61c8bf5df98a6b846a642fd0",
    "handle_connection": "e9bec927b9f4948c8487f23e54da0d44cb4152724b48e625e2a57adb22ae6f4f",
}
READ = 1 << 16  # bytes asked of the socket at a time
INTEGER = struct.Struct("!i")
END = INTEGER.pack(-1)  # of a list
DECODES, DECODING = "TS_DECODE_INPUT_REQUEST", (None, "true")  # with one of these values TorchServe decodes JSON and text itself
STREAM = "ts_stream_next"

_stock_read, _stock_write, _stock_unpack = stock.retrieve_msg, stock.create_predict_response, service.Service.retrieve_data_for_inference
_sources: WeakKeyDictionary[Any, Source] = WeakKeyDictionary()


def install() -> bool:
    """Puts this module's functions in the place of TorchServe's, where this process is one of its workers.

    Returns:
        Whether they stand there: False outside a worker, and where TorchServe is another than the one known here, which the log says.
    """
    worker = sys.modules["__main__"]
    current = getattr(worker, "retrieve_msg", None)
    if current is not _stock_read:
        return current is read
    if stranger := unknown(worker.TorchModelServiceWorker):  # type: ignore[attr-defined]
        logger.warning("fast_wire is off: TorchServe's %s is not the one known here", stranger)
        return False
    worker.retrieve_msg = read  # type: ignore[attr-defined]
    service.create_predict_response = write
    service.Service.retrieve_data_for_inference = staticmethod(unpack)
    return True


def unknown(worker: Any) -> str:
    """What of TorchServe differs from what this module stands in for; empty when nothing does.

    Args:
        worker: its class TorchModelServiceWorker.
    """
    if ts.__version__ != "0.12.0":
        return f"version {ts.__version__}"
    kept = (_stock_read, _stock_write, _stock_unpack, service.Service.predict, worker.handle_connection)
    return next((function.__name__ for function in kept if fingerprint(function) != KNOWN[function.__name__]), "")


def fingerprint(function: Any) -> str:
    """sha256 of its source; empty where there is none."""
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        return ""


# ---- requests


class Batch:
    """A batch in the three forms that Service.predict takes it apart into.

    Attributes:
        fields: of each request, as handlers get them.
        headers: of each request.
        ids: by index.
    """

    __slots__ = ("fields", "headers", "ids")

    def __init__(self) -> None:
        self.fields: list[dict[str, Any]] = []
        self.headers: list[RequestProcessor] = []
        self.ids: dict[int, str] = {}

    def add(self, named: list[bytearray], parameters: list[bytearray]) -> None:
        """One request: its id and its headers' names and values, and each parameter's name, type and value."""
        request_id, *texts = [part.decode() for part in named]
        fields: dict[str, Any] = {}
        headers: dict[str, Any] = {}
        for at in range(0, len(parameters), 3):
            name = parameters[at].decode()
            fields[name], headers[name] = parameters[at + 2], {"content-type": parameters[at + 1].decode()}
        headers.update(zip(texts[::2], texts[1::2], strict=True))
        self.ids[len(self.fields)] = request_id
        self.fields.append(fields)
        self.headers.append(RequestProcessor(headers))


def unpack(batch: Any) -> Any:
    """TorchServe's retrieve_data_for_inference, of a batch from either reader."""
    return (batch.headers, batch.fields, batch.ids) if type(batch) is Batch else _stock_unpack(batch)


def read(connection: Any) -> tuple[Any, Any]:
    """TorchServe's retrieve_msg: the next command and its message.

    Raises:
        SystemExit: the front end has closed the connection.
        ValueError: an unknown command.
    """
    source = _sources.get(connection)
    if source is None:
        source = _sources[connection] = Source(connection.recv)
    return source.message()


class Source:
    """What has come from a connection and was not read yet.

    Attributes:
        receive: the connection's recv.
        data, at: the bytes, and where the next message begins.
    """

    def __init__(self, receive: Callable[[int], bytes]) -> None:
        self.receive = receive
        self.data = bytearray()
        self.at = 0

    def message(self) -> tuple[Any, Any]:
        """The next message: a usual batch is read here; a load command, an odd or a broken message by TorchServe's reader."""
        if self.at == len(self.data):
            self.data, self.at = bytearray(self.receive(READ)), 0
        if self.data[self.at : self.at + 1] == stock.PREDICT_MSG and os.environ.get(DECODES) not in DECODING:
            batch = self._batch()
            if batch is not None:
                return bytearray(stock.PREDICT_MSG), batch
        return _stock_read(self)  # type: ignore[no-any-return]

    def recv(self, size: int) -> bytes:
        """A socket's recv, for TorchServe's reader."""
        if self.at == len(self.data):
            return self.receive(size)
        piece = bytes(self.data[self.at : self.at + size])
        self.at += len(piece)
        return piece

    def _batch(self) -> Batch | None:
        """The batch that begins at `at`; None, and nothing taken, where only TorchServe's reader may judge."""
        batch, at = Batch(), self.at + 1
        while self.data[at : at + INTEGER.size] != END:
            try:
                named, then = _fields(self.data, at)
                parameters, then = _fields(self.data, then)
                if len(named) % 2 == 0 or len(parameters) % 3:
                    return None
                batch.add(named, parameters)
                at = then
            except _Short as short:
                if not self._more(short.until):
                    return None
            except ValueError:  # not UTF-8
                return None
        self.at = at + INTEGER.size
        return batch

    def _more(self, until: int) -> bool:
        """Waits for the bytes up to `until`; False where none come any more."""
        while (missing := until - len(self.data)) > 0:
            piece = self.receive(max(missing, READ))
            if not piece:
                return False
            self.data += piece
        return True


class _Short(Exception):
    """There are fewer bytes than `until`."""

    def __init__(self, until: int) -> None:
        self.until = until


def _fields(data: bytearray, at: int) -> tuple[list[bytearray], int]:
    """The list of byte strings at a place, each behind its length, -1 behind the last; and the place after it.

    Raises:
        _Short: it is not all here.
        ValueError: a negative length.
    """
    found: list[bytearray] = []
    size, integer = len(data), INTEGER.unpack_from
    while True:
        begin = at + 4
        if begin > size:
            raise _Short(begin)
        (length,) = integer(data, at)
        if length < 0:
            if length == -1:
                return found, begin
            raise ValueError("a negative length")
        at = begin + length
        if at > size:
            raise _Short(at)
        found.append(data[begin:at])


# ---- answers


def write(ret: Any, req_id_map: dict[int, str], message: str, code: int, context: Any = None, ts_stream_next: bool = False) -> Any:
    """TorchServe's create_predict_response: the same bytes for a list of bytes; anything else, streams too, it encodes itself."""
    usual = context is not None and ts_stream_next is False and not context.stopping_criteria and type(ret) is list
    if usual and os.getenv("LOCAL_RANK", "0") == "0":
        try:
            return b"".join(_answers(ret, req_id_map, message, code, context))
        except _Unusual:
            pass
    return _stock_write(ret, req_id_map, message, code, context, ts_stream_next)


class _Unusual(Exception):
    """An answer that TorchServe's own function is to encode."""


def _answers(ret: list[Any], ids: dict[int, str], message: str, code: int, context: Any) -> list[bytes]:
    known = _Texts()
    parts = [INTEGER.pack(code), known[message]]
    for index, request_id in ids.items():
        body, headers = ret[index], context.get_response_headers(index)
        status, phrase = context.get_response_status(index)
        content_type, phrase = headers.get("content-type") or "", phrase or ""
        if type(body) is not bytes or STREAM in headers or not (content_type.isascii() and phrase.isascii()):
            raise _Unusual  # of a content type and a phrase TorchServe counts the letters, not the bytes
        parts += (_sized(request_id.encode()), known[content_type], INTEGER.pack(200 if status is None else status), known[phrase])
        parts.append(INTEGER.pack(len(headers)))
        for name, value in headers.items():
            parts += (known[name], known[value])
        parts += (INTEGER.pack(len(body)), body)
    parts.append(END)
    return parts


class _Texts(dict[str, bytes]):
    """Texts as they are sent: what the answers of a batch have in common is encoded once."""

    def __missing__(self, text: str) -> bytes:
        found = self[text] = _sized(text.encode())
        return found


def _sized(value: bytes) -> bytes:
    return INTEGER.pack(len(value)) + value

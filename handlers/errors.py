"""Faults that belong to one request.

RequestError             one request's fault: status, and a message its sender can act on
├── BadInput             the caller's: 4xx
├── NotSupported         a thing this server cannot do for anyone: 501
└── ServerFault          ours: 5xx; the traceback is in the log under the id in the message
ModelLoadError           the model cannot be loaded; TorchServe reports a RuntimeError, and only that, before the worker ends
"""

from __future__ import annotations


class RequestError(Exception):
    """One request's fault.

    Args:
        message: what is wrong and what would be right.
        status: HTTP status code.
        at: where inside the instance, such as "[3][5]".
        kind: a short word that the bad-input metric counts by.
    """

    status = 500

    def __init__(self, message: str, status: int | None = None, at: str = "", kind: str = "malformed") -> None:
        super().__init__(message)
        self.message = message
        self.status = self.status if status is None else status
        self.at = at
        self.kind = kind

    def body(self, place: str = "") -> dict[str, object]:
        """The JSON answer. `place` names the instance, such as "instances[2]"."""
        where = f"{place}{self.at}"
        message = f"{where}: {self.message}" if where else self.message
        return {"code": self.status, "type": type(self).__name__, "message": message}


class BadInput(RequestError):
    """The caller's fault."""

    status = 400


class NotSupported(RequestError):
    """A thing that this server cannot do."""

    status = 501


class ServerFault(RequestError):
    """Our fault; the caller gets an id to find the traceback by, and nothing of our insides."""

    status = 500


class ModelLoadError(RuntimeError):
    """The model cannot be loaded."""


class BadRows(Exception):
    """Some rows of a batch failed in preprocess; the others can go on without them.

    Args:
        errors: the error of each failed row, by its position in the batch.
    """

    def __init__(self, errors: dict[int, BaseException]) -> None:
        super().__init__(f"{len(errors)} rows of the batch failed")
        self.errors = errors

"""Every exception that batchline raises on purpose.

BatchlineError                 one clear sentence; the command line prints it and exits 1
├── ConfigError                config.properties or model-config.yaml: line, key, remedy
├── ArchiveError               an archive could not be built, read or imported
├── ServerError                TorchServe could not be started, reached or stopped
│   ├── WorkerFailed           a worker died while loading; carries its own traceback
│   └── PortInUse              names the port
├── RequestFailed              the server answered a request with 4xx or 5xx
├── LoadError                  load that cannot be offered as asked
│   └── Outrun                 more requests in flight than the generator holds
├── MeasureError               a measurement that cannot be made, read or concluded from
│   └── PlanError              a target or limits that no plan can be made for
└── SimulateError              a queue that cannot be simulated

A bug in batchline itself is none of these and keeps its traceback.
"""

from __future__ import annotations


class BatchlineError(Exception):
    """What the user can act on; str(error) is the whole message."""


class ConfigError(BatchlineError):
    """A configuration that TorchServe would misread or refuse."""


class ArchiveError(BatchlineError):
    """A model archive that could not be built, read or imported."""


class ServerError(BatchlineError):
    """TorchServe could not be started, reached or stopped."""


class WorkerFailed(ServerError):
    """A worker died while it loaded its model.

    Args:
        model: the name of the model whose worker died.
        traceback: what the worker printed, ending in the exception.
    """

    def __init__(self, model: str, traceback: str) -> None:
        super().__init__(f"{traceback.rstrip()}\n\nA worker of model {model!r} could not load (its own traceback above).")
        self.model = model
        self.traceback = traceback


class PortInUse(ServerError):
    """Something else listens where the configuration wants TorchServe to."""

    def __init__(self, port: int, key: str) -> None:
        super().__init__(f"port {port} ({key} in the configuration) is in use; stop what listens there or change {key}.")
        self.port = port


class LoadError(BatchlineError):
    """Load that cannot be offered as asked."""


class Outrun(LoadError):
    """More requests in flight than the generator holds: the server, or the generator itself, does not keep up."""


class MeasureError(BatchlineError):
    """A measurement that cannot be made, read or concluded from."""


class RequestFailed(BatchlineError):
    """The server refused a request or failed on it.

    Args:
        status: HTTP status code.
        message: what the server said.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class SimulateError(BatchlineError):
    """A queue that cannot be simulated."""

"""TorchServe's BaseHandler, without the libraries that its module imports only because they are installed.

None of them is used by a handler of ours before runtime.py asks for it, and each costs every worker memory for as long as
it lives: openvino.torch alone some 200 MiB.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

OPTIONAL = ("openvino.torch", "onnxruntime", "torch_tensorrt", "torch_xla.core.xla_model")
MODULE = "ts.torch_handler.base_handler"


@contextmanager
def absent(names: tuple[str, ...]) -> Iterator[None]:
    """Modules that cannot be imported within the block; those imported before stay what they are."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: import raises ModuleNotFoundError
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


@contextmanager
def _only_errors(logger: logging.Logger) -> Iterator[None]:
    """The module warns of each library that it does not find, as if something were wrong."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


with absent(OPTIONAL), _only_errors(logging.getLogger(MODULE)):
    from ts.torch_handler.base_handler import BaseHandler

__all__ = ["BaseHandler"]

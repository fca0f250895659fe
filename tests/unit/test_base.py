"""A worker has no library that its model does not use."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from batchline.handlers.base import absent


def test_torchserves_optional_libraries_stay_out() -> None:
    code = (
        "import logging, sys; logging.basicConfig()\n"
        "from batchline.handlers import BatchHandler\n"
        "from ts.torch_handler.base_handler import BaseHandler\n"
        "assert issubclass(BatchHandler, BaseHandler)\n"
        "print(*(name in sys.modules for name in ('openvino', 'onnxruntime')))\n"
        "import onnxruntime, openvino.torch\n"  # who asks for them gets them
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout.split()) == (0, ["False", "False"]), done.stderr
    assert "ts.torch_handler" not in done.stderr  # no warning of a library that is there


def test_what_is_absent_is_absent_within_the_block_only() -> None:
    sys.modules.pop("colorsys", None)
    with absent(("colorsys", "json")):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("colorsys")
        assert importlib.import_module("json").loads("1") == 1  # imported before
    assert importlib.import_module("colorsys").rgb_to_hsv(0, 0, 0) == (0, 0, 0)

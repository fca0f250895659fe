"""A weights file -> a callable model on a device; the allocator of the worker that runs it."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from . import forms
from .errors import ModelLoadError

logger = logging.getLogger(__name__)

SIGNATURES = 4096  # shapes remembered
SUFFIXES = {
    ".pt2": "torch.export",
    ".pt": "TorchScript, or a state_dict beside a model file",
    ".pth": "a state_dict beside a model file",
    ".onnx": "ONNX",
}


def pick_device(gpu_id: int | None) -> torch.device:
    """The GPU that TorchServe gave this worker; the CPU where it gave none or torch sees none."""
    if gpu_id is not None and torch.cuda.is_available():
        return torch.device(f"cuda:{gpu_id}")
    return torch.device("cpu")


def load_model(model_dir: Path, manifest: Mapping[str, Any], config: Mapping[str, Any], device: torch.device) -> Callable[..., Any]:
    """The fastest form of the model that the archive carries and this Python can run, in eval mode, on `device`.

    `runtime` in model-config.yaml says which, else runtime.json, which `batchline race` writes; where neither does, or the
    library for it is missing, the weights that the archive's manifest names.

    Raises:
        ModelLoadError: no weights, an unknown suffix, or a file that is not what its suffix says.
    """
    runtime, precision = forms.wanted(model_dir, config)
    try:
        made = forms.load(runtime, precision, model_dir, device, lambda: load_weights(model_dir, manifest, config, device))
    except forms.Unavailable as reason:
        logger.warning("RUNTIME_FALLBACK %s is not used, torch is: %s", runtime, reason)
        made = None
    return made or load_weights(model_dir, manifest, config, device)


def load_weights(model_dir: Path, manifest: Mapping[str, Any], config: Mapping[str, Any], device: torch.device) -> Callable[..., Any]:
    """The weights that the archive's manifest names, as they are. Raises ModelLoadError."""
    facts = manifest.get("model", {})
    name, model_file = facts.get("serializedFile"), facts.get("modelFile")
    if not name:
        raise ModelLoadError("the archive has no weights (serializedFile in MAR-INF/MANIFEST.json); rebuild it with --serialized-file")
    path = model_dir / name
    if not path.is_file():
        raise ModelLoadError(f"the archive's weights {name} are missing from {model_dir}")
    if path.suffix == ".pt2":
        return _load_exported(path, device)
    if path.suffix == ".onnx":
        return forms.load_onnx(path, device)
    if path.suffix in (".pt", ".pth"):
        return _load_state_dict(path, model_dir / model_file, config, device) if model_file else _load_torchscript(path, device)
    known = ", ".join(f"{suffix} ({what})" for suffix, what in SUFFIXES.items())
    raise ModelLoadError(f"{name}: no way to load {path.suffix or 'a file without a suffix'}; known are {known}")


def _load_exported(path: Path, device: torch.device) -> Callable[..., Any]:
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise ModelLoadError(f"{path.name} is not a torch.export archive that torch {torch.__version__} reads: {error}") from error
    return Exported(program.module().to(device))  # exported in eval mode; the module refuses eval()


class Exported(torch.nn.Module):
    """A torch.export program, which looks over its inputs' shapes and types at every call: here once for each that come.

    For a small model that costs more than the model, and what passed once passes again.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.passed: set[tuple[Any, ...]] = set()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The program's outputs. Raises what it raises for inputs that it was not exported for."""
        if named or not all(type(value) is torch.Tensor for value in inputs):
            return self.module(*inputs, **named)
        signature = tuple((value.shape, value.dtype, value.device) for value in inputs)
        if signature in self.passed:
            return self.module.forward(*inputs)  # past the hook that looks
        outputs = self.module(*inputs)
        if len(self.passed) < SIGNATURES:
            self.passed.add(signature)
        return outputs


def _load_torchscript(path: Path, device: torch.device) -> Callable[..., Any]:
    try:
        model = torch.jit.load(path, map_location=device)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ModelLoadError(
            f"{path.name} is not TorchScript: {_first_line(error)}. A state_dict needs its model file beside it "
            f"(model.py in the model's folder, --model-file for the archiver); or export the model with torch.export to .pt2"
        ) from error
    return model.eval()  # type: ignore[no-any-return]


def _load_state_dict(path: Path, model_file: Path, config: Mapping[str, Any], device: torch.device) -> Callable[..., Any]:
    """weights_only: a state_dict needs no more, and a pickle could run anything."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise ModelLoadError(
            f"{path.name} beside {model_file.name} must be a state_dict, as torch.save(model.state_dict(), ...) writes it; "
            f"torch.load(weights_only=True) says: {_first_line(error)}"
        ) from error
    model = _model_class(model_file, config)()
    try:
        model.load_state_dict(state)
    except Exception as error:
        raise ModelLoadError(f"{path.name} does not fit {type(model).__name__} of {model_file.name}: {error}") from error
    return model.to(device).eval()


def _model_class(model_file: Path, config: Mapping[str, Any]) -> Callable[[], torch.nn.Module]:
    """The architecture: `model_class` of model-config.yaml, or the only nn.Module that the file defines."""
    module = importlib.import_module(model_file.stem)
    wanted = config.get("model_class")
    if wanted and not callable(getattr(module, wanted, None)):
        raise ModelLoadError(f"{model_file.name} has no {wanted}, which model-config.yaml names as model_class")
    if wanted:
        return getattr(module, wanted)  # type: ignore[no-any-return]
    classes = [
        c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__ and issubclass(c, torch.nn.Module)
    ]
    if len(classes) != 1:
        names = ", ".join(c.__name__ for c in classes) or "none"
        raise ModelLoadError(f"{model_file.name} must define one nn.Module, it has {names}; name one as model_class in model-config.yaml")
    return classes[0]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


DRAIN_S = 1.0


def is_fatal(error: BaseException | None) -> bool:
    """True for a CUDA error after which every later call of this process fails too; running out of memory is not one."""
    return "CUDA error" in str(error) and "out of memory" not in str(error)


def exit_soon() -> None:
    """Ends the worker once its answers are out, so that TorchServe starts a sound one; it would look healthy for ever otherwise."""
    logger.error("the GPU context is broken; the worker ends itself")
    threading.Timer(DRAIN_S, os._exit, (70,)).start()


M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
KEEP_BYTES = 1 << 30


def keep_freed_memory() -> bool:
    """Tells glibc to keep what torch frees, for the next batch needs it again.

    By default large blocks go back to the kernel after every batch and are faulted in anew, page by page: an EfficientNet
    batch of 32 took 22 ms an image with that and 11-17 ms without, and the line c + B*m bent upwards.

    Returns:
        False where the C library has no mallopt (musl, macOS).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((M_MMAP_THRESHOLD, KEEP_BYTES), (M_TRIM_THRESHOLD, KEEP_BYTES), (M_TOP_PAD, 16 << 20))
    accepted = [mallopt(option, value) == 1 for option, value in settings]
    return all(accepted)

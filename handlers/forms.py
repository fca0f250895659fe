"""Other forms of a model than torch's own: an ONNX graph in onnxruntime or OpenVINO, and what torch compiles.

Each is a callable that takes and gives torch tensors, as a torch module does. An archive carries model.onnx beside its weights;
which form serves is measured on the machine (`batchline race`) and written into runtime.json.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .errors import ModelLoadError

logger = logging.getLogger(__name__)

TORCH, COMPILE, INDUCTOR, ONNXRUNTIME, OPENVINO = "torch", "torch.compile", "aotinductor", "onnxruntime", "openvino"
RUNTIMES = (TORCH, ONNXRUNTIME, OPENVINO, INDUCTOR, COMPILE)
F32, BF16, INT8 = PRECISIONS = ("f32", "bf16", "int8")
REDUCED = {BF16: (TORCH, OPENVINO), INT8: (ONNXRUNTIME,)}  # who can compute in it
CHOICE, GRAPH, INT8_GRAPH, PACKAGE = "runtime.json", "model.onnx", "model.int8.onnx", "model.aoti.pt2"


class Unavailable(Exception):
    """A form that this archive or this Python lacks; torch serves instead."""


def wanted(model_dir: Path, config: Mapping[str, Any]) -> tuple[str, str]:
    """The runtime and its precision that model-config.yaml asks for, else those in runtime.json, else torch in float32.

    Raises:
        ModelLoadError: one that is unknown, or a precision that the runtime does not compute in.
    """
    chosen, place = dict(config), "model-config.yaml"
    if chosen.get("runtime") is None and (model_dir / CHOICE).is_file():
        place = CHOICE
        raced = _read_choice(model_dir / CHOICE)
        chosen["runtime"], chosen["precision"] = raced["runtime"], config.get("precision", raced.get("precision", F32))
    runtime, precision = chosen.get("runtime", TORCH), chosen.get("precision", F32)
    if runtime not in RUNTIMES:
        raise ModelLoadError(f"{place}: runtime must be one of {', '.join(RUNTIMES)}, not {runtime!r}")
    if precision not in PRECISIONS:
        raise ModelLoadError(f"{place}: precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    if precision != F32 and runtime not in REDUCED[precision]:
        raise ModelLoadError(f"{place}: {precision} is computed by {' and '.join(REDUCED[precision])}, not by {runtime}")
    return str(runtime), str(precision)


def _read_choice(path: Path) -> dict[str, Any]:
    try:
        raced = dict(json.loads(path.read_text(encoding="utf-8")))
        return {**raced, "runtime": raced["runtime"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{CHOICE} names no runtime ({error}); `batchline race` writes it") from None


def load(
    runtime: str, precision: str, model_dir: Path, device: torch.device, weights: Callable[[], Callable[..., Any]]
) -> Callable[..., Any] | None:
    """The model in this form; None for torch's own.

    Args:
        runtime: one of RUNTIMES.
        precision: one of PRECISIONS that it computes in.
        model_dir: the unpacked archive.
        device: that it will run on.
        weights: loads the torch form, for what is made from it.

    Raises:
        Unavailable: the archive or this Python lacks it, or it does not run on this device.
    """
    if runtime == TORCH:
        return None if precision == F32 else Autocast(weights(), device.type)
    if runtime == COMPILE:
        return Compiled(weights())
    if runtime == INDUCTOR:
        return _load_package(model_dir / PACKAGE)
    path = model_dir / (INT8_GRAPH if precision == INT8 else GRAPH)
    if not path.is_file():
        raise Unavailable(f"the archive has no {path.name}")
    if runtime == OPENVINO:
        return _load_openvino(path, precision, device)
    if device.type == "cuda" and not _has_cuda_provider():
        raise Unavailable("onnxruntime has no CUDA here, and this worker has a GPU: pip install onnxruntime-gpu")
    try:
        return load_onnx(path, device)
    except ModelLoadError as error:
        raise Unavailable(str(error)) from None


def _has_cuda_provider() -> bool:
    try:
        import onnxruntime
    except ImportError:
        return False
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


class Autocast:
    """torch's own form with what bears it computed in bfloat16; its results are float32 again."""

    def __init__(self, model: Callable[..., Any], device_type: str) -> None:
        self.model, self.device_type = model, device_type

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """As the model's own, and as inexact as eight bits of mantissa are."""
        with torch.autocast(self.device_type, torch.bfloat16):
            found = self.model(*inputs)
        return tuple(map(_as_float32, found)) if isinstance(found, tuple) else _as_float32(found)


def _as_float32(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else value


class Compiled:
    """torch.compile with a dynamic batch. It compiles at its first call, in the warm-up; what it cannot compile runs as it was."""

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model = model
        self.run: Callable[..., Any] = torch.compile(model, dynamic=True)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """As the model's own."""
        try:
            return self.run(*inputs)
        except Exception as error:
            if self.run is self.model:
                raise
            logger.warning("RUNTIME_FALLBACK torch.compile is not used, torch is: %s", str(error).splitlines()[0])
            self.run = self.model
            return self.model(*inputs)


def _load_package(path: Path) -> Callable[..., Any]:
    """What AOTInductor made on the machine that built the archive; it holds machine code of that CPU."""
    if not path.is_file():
        raise Unavailable(f"the archive has no {PACKAGE}")
    try:
        from torch._inductor import aoti_load_package

        package = aoti_load_package(str(path))
    except Exception as error:
        raise Unavailable(f"{PACKAGE} does not load here: {str(error).splitlines()[0]}") from None
    return lambda *inputs: package(*(tensor.contiguous() for tensor in inputs))  # as compiled; it does not look at strides


def _load_openvino(path: Path, precision: str, device: torch.device) -> Callable[..., Any]:
    if device.type != "cpu":
        raise Unavailable("OpenVINO serves on the CPU, and this worker has a GPU")
    try:
        return OpenVinoModel(path, precision)
    except ImportError:
        raise Unavailable("openvino is not installed: pip install openvino") from None
    except Exception as error:
        raise Unavailable(f"OpenVINO does not read {GRAPH}: {str(error).splitlines()[0]}") from None


class OpenVinoModel:
    """A graph compiled by OpenVINO for this CPU. Its threads are fixed when it is compiled, so it is compiled anew when they change.

    Args:
        precision: f32, or bf16: faster on CPUs that have it, at the accuracy that `batchline race` shows. OpenVINO's own default
            would take bf16 without a word.
    """

    def __init__(self, path: Path, precision: str) -> None:
        self.path, self.precision = path, precision
        self.threads = 0
        self._follow_threads()

    def _follow_threads(self) -> None:
        if self.threads == torch.get_num_threads():
            return
        import openvino

        self.threads = torch.get_num_threads()
        settings = {"INFERENCE_NUM_THREADS": self.threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": self.precision}
        self.request = openvino.Core().compile_model(str(self.path), "CPU", settings).create_infer_request()

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """One tensor an input, in the graph's order; one output comes as a tensor, several as a tuple."""
        self._follow_threads()
        fed = {number: tensor.detach().contiguous().numpy() for number, tensor in enumerate(inputs)}
        found = self.request.infer(fed, share_inputs=True)
        outputs = tuple(torch.from_numpy(array.copy()) for array in found.values())  # the request writes over its own next time
        return outputs[0] if len(outputs) == 1 else outputs


def load_onnx(path: Path, device: torch.device) -> Callable[..., Any]:
    try:
        import onnxruntime
    except ImportError:
        raise ModelLoadError(f"{path.name} needs onnxruntime: pip install onnxruntime") from None
    wanted = ["CUDAExecutionProvider"] if device.type == "cuda" else []
    providers = [p for p in [*wanted, "CPUExecutionProvider"] if p in onnxruntime.get_available_providers()]
    try:
        return OnnxModel(path, providers)
    except Exception as error:
        raise ModelLoadError(f"{path.name} is not an ONNX model that onnxruntime reads: {error}") from error


class OnnxModel:
    """An onnxruntime session that takes and gives torch tensors, as a torch module does.

    A session's threads are fixed when it is made, so it is made anew when the worker's share of the cores has changed.
    """

    def __init__(self, path: Path, providers: list[str]) -> None:
        self.path = path
        self.providers = providers
        self.threads = 0
        self._follow_threads()
        self.names = [node.name for node in self.session.get_inputs()]

    def _follow_threads(self) -> None:
        import onnxruntime

        if self.threads != torch.get_num_threads():
            self.threads = torch.get_num_threads()
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self.threads
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads would take the front end's core
            self.session = onnxruntime.InferenceSession(self.path, options, providers=self.providers)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """One tensor an input, in the graph's order; one output comes as a tensor, several as a tuple."""
        self._follow_threads()
        fed = {name: tensor.detach().cpu().numpy() for name, tensor in zip(self.names, inputs, strict=True)}
        outputs = tuple(torch.from_numpy(array) for array in self.session.run(None, fed))
        return outputs[0] if len(outputs) == 1 else outputs

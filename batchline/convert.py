"""A torch.export archive -> another form of the same model: an ONNX graph, or AOTInductor's package of machine code.

`python -m batchline.convert onnx|aotinductor model.pt2 OUT` is a process of its own, as export.py is: what it imports is not
needed to serve.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from batchline.errors import ArchiveError

FILES = {"onnx": "model.onnx", "int8": "model.int8.onnx", "aotinductor": "model.aoti.pt2"}  # handlers/forms.py looks for these names
NEEDS = {"torch": None, "torch.compile": None, "aotinductor": "aotinductor", "onnxruntime": "onnx", "openvino": "onnx"}


def convert(weights: Path, runtime: str, folder: Path, precision: str = "f32") -> Path | None:
    """The file that `runtime` needs beside the weights, made anew when the weights are newer; None where it needs none.

    Args:
        weights: model.pt2.
        runtime: one of NEEDS.
        folder: where the file is kept between builds.
        precision: f32, bf16 or int8; only int8 has a file of its own.

    Raises:
        ArchiveError: the weights are of another kind, or cannot be converted; the message ends with the converter's own words.
    """
    kind = "int8" if precision == "int8" else NEEDS[runtime]
    if kind is None:
        return None
    if weights.suffix != ".pt2":
        raise ArchiveError(f"{weights.name} cannot become {FILES[kind]}: only a torch.export archive (.pt2) can; export the model with it.")
    made = folder / FILES[kind]
    if made.is_file() and made.stat().st_mtime > weights.stat().st_mtime:
        return made
    folder.mkdir(parents=True, exist_ok=True)
    arriving = folder / f".{os.getpid()}.{made.name}"
    command = [sys.executable, "-m", "batchline.convert", kind, str(weights), str(arriving)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode or not arriving.is_file():
        arriving.unlink(missing_ok=True)
        raise ArchiveError(f"{done.stdout.rstrip()[-2000:]}\n{weights} could not become {made.name} (the converter's output above).")
    os.replace(arriving, made)
    return made


def _convert(kind: str, weights: Path, out: Path) -> None:
    import torch

    program = torch.export.load(weights)
    if kind in ("onnx", "int8"):
        graph = torch.onnx.export(program, dynamo=True, external_data=False, verbose=False)
        assert graph is not None
        graph.save(str(out), external_data=False)
        if kind == "int8":
            _quantise(out)
    else:
        from torch._inductor import aoti_compile_and_package

        aoti_compile_and_package(program, package_path=str(out))


def _quantise(path: Path) -> None:
    """Weights of matrix products in int8, a scale a column, inputs quantised as they come: it needs no calibration data.

    Convolutions stay as they are: without calibration they become slower, and depthwise ones lose their accuracy.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(path, path, op_types_to_quantize=["MatMul", "Gemm"], weight_type=QuantType.QInt8, per_channel=True)


if __name__ == "__main__":
    _convert(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))

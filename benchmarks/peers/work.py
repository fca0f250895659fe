"""What every peer computes: bytes in, answers out, as a careful user would write it by hand, without batchline or TorchServe.

`load("digits", "eager")` gives a function from a list of request bodies to a list of answers of the same length, in
batchline's answer format. The servers beside this file differ only in how they bring requests to it.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

BENCH = Path(__file__).resolve().parents[2] / "build" / "bench"
QUICK = {"digits"}  # computed in less time than a hop to another thread takes
TOP_K = 5
MAX_TOKENS = 256
MEAN, STD = (0.498, 0.498, 0.498), (0.502, 0.502, 0.502)
RESIZE, CROP = 256, 224
SETTINGS = "BENCH_SETTINGS"  # environment variable; frameworks start processes of their own, which inherit it

Predict = Callable[[list[bytes]], list[Any]]
Model = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Settings:
    """What a peer is started with.

    Attributes:
        model: digits, efficientnet_lite0 or minilm.
        runtime: eager (PyTorch) or onnx (onnxruntime).
        port: on 127.0.0.1.
        processes: workers that compute.
        threads: of each of them; 0 leaves the runtime's own choice.
        batch_size: most requests computed together, where the framework batches.
        delay_ms: longest wait for a batch to fill, where the framework waits.
    """

    model: str
    runtime: str = "eager"
    port: int = 8000
    processes: int = 1
    threads: int = 1
    batch_size: int = 8
    delay_ms: float = 1.0


def settings() -> Settings:
    """From the command line of the process that was started first, for all the processes that it starts."""
    if SETTINGS not in os.environ:
        parser = argparse.ArgumentParser()
        parser.add_argument("--model", required=True, choices=list(LOADERS))
        for name in ("runtime", "port", "processes", "threads", "batch_size", "delay_ms"):
            default = getattr(Settings, name)
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
        os.environ[SETTINGS] = json.dumps(vars(parser.parse_args()))
    return Settings(**json.loads(os.environ[SETTINGS]))


def hand_down(given: Settings) -> dict[str, str]:
    """The environment for a process that another program starts."""
    return {**os.environ, SETTINGS: json.dumps(asdict(given))}


def load_for(given: Settings) -> Predict:
    """`load` with the threads that the settings say."""
    if given.threads:
        torch.set_num_threads(given.threads)
    return load(given.model, given.runtime)


def load(model: str, runtime: str, folder: Path | None = None) -> Predict:
    """Request bodies -> answers.

    Args:
        model: digits, efficientnet_lite0 or minilm.
        runtime: eager or onnx.
        folder: of model.pt2 or model.onnx, labels.txt, tokenizer.json; build/bench/MODEL unless given.
    """
    place = folder or BENCH / model
    weights = _onnx(place / "model.onnx") if runtime == "onnx" else torch.export.load(place / "model.pt2").module()
    return LOADERS[model](weights, place)


def encode(answer: Any) -> bytes:
    """An answer -> JSON."""
    try:
        import orjson
    except ImportError:
        return json.dumps(answer, separators=(",", ":")).encode()
    return orjson.dumps(answer)


def digits(weights: Model, folder: Path) -> Predict:
    """JSON, 64 numbers or 8 rows of 8, bare or in {"data": ...} -> the best labels."""
    labels = (folder / "labels.txt").read_text(encoding="utf-8").splitlines()

    def numbers(body: bytes) -> list[float]:
        value = json.loads(body)
        row = value["data"] if isinstance(value, dict) else value
        row = [number for line in row for number in line] if isinstance(row[0], list) else row
        if len(row) != 64:
            raise ValueError("a digit is 64 numbers")
        return row

    def predict(bodies: list[bytes]) -> list[Any]:
        with torch.inference_mode():
            return _best(weights(torch.tensor([numbers(body) for body in bodies], dtype=torch.float32)), labels)

    return predict


def efficientnet_lite0(weights: Model, folder: Path) -> Predict:
    """A picture file -> the best 5 labels."""
    from PIL import Image
    from torchvision import transforms

    labels = (folder / "labels.txt").read_text(encoding="utf-8").splitlines()
    steps = [transforms.Resize(RESIZE, transforms.InterpolationMode.BICUBIC), transforms.CenterCrop(CROP)]
    prepare = transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])

    def predict(bodies: list[bytes]) -> list[Any]:
        with torch.inference_mode():
            pictures = [prepare(Image.open(io.BytesIO(body)).convert("RGB")) for body in bodies]
            return _best(weights(torch.stack(pictures)), labels)

    return predict


def minilm(weights: Model, folder: Path) -> Predict:
    """UTF-8 text -> its embedding."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()

    def predict(bodies: list[bytes]) -> list[Any]:
        encodings = tokenizer.encode_batch([body.decode() for body in bodies])
        ids = torch.tensor([encoding.ids for encoding in encodings])
        mask = torch.tensor([encoding.attention_mask for encoding in encodings])
        with torch.inference_mode():
            return [{"embedding": vector} for vector in weights(ids, mask).tolist()]

    return predict


def instance_bytes(model: str, value: Any) -> bytes:
    """What a framework's own JSON carries -> a request body: numbers as they are, a picture as base64, a text as text."""
    if model == "digits":
        return json.dumps(list(value)).encode()
    return base64.b64decode(value) if model == "efficientnet_lite0" else str(value).encode()


LOADERS: dict[str, Callable[[Model, Path], Predict]] = {"digits": digits, "efficientnet_lite0": efficientnet_lite0, "minilm": minilm}


def _best(logits: torch.Tensor, labels: list[str]) -> list[Any]:
    scores, indices = logits.softmax(1).topk(min(TOP_K, logits.shape[1]))
    return [
        [{"label": labels[i], "index": i, "score": score} for i, score in zip(row, row_scores, strict=True)]
        for row, row_scores in zip(indices.tolist(), scores.tolist(), strict=True)
    ]


def _onnx(path: Path) -> Model:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        fed: dict[str, np.ndarray[Any, Any]] = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
        return torch.from_numpy(session.run(None, fed)[0])

    return run

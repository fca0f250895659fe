"""Class names, and scores -> the best labels: what every classifier answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .errors import ModelLoadError


def top_labels(logits: torch.Tensor, top_k: int, labels: Mapping[str, Any] | None) -> list[list[dict[str, Any]]]:
    """Logits (B, classes) -> for each row [{"label", "index", "score"}, ...], best first.

    Args:
        logits: raw scores; softmax makes them probabilities.
        top_k: how many at most; a model with fewer classes answers with all it has.
        labels: class index as text -> name; a class without a name is called by its index.
    """
    scores, indices = logits.float().softmax(1).topk(min(top_k, logits.shape[1]))
    names = _Names(labels or {})
    return [
        [{"label": names[i], "index": i, "score": score} for i, score in zip(row_indices, row_scores, strict=True)]
        for row_indices, row_scores in zip(indices.tolist(), scores.tolist(), strict=True)
    ]


class _Names(dict[int, Any]):
    """Class index -> name, each looked up once a batch."""

    def __init__(self, labels: Mapping[str, Any]) -> None:
        super().__init__()
        self.labels = labels

    def __missing__(self, index: int) -> Any:
        found = self[index] = self.labels.get(str(index), str(index))
        return found


def read_labels(model_dir: Path) -> dict[str, Any] | None:
    """Class index as text -> name, from labels.txt (a name a line) or TorchServe's index_to_name.json; None without either."""
    lines, mapping = model_dir / "labels.txt", model_dir / "index_to_name.json"
    if lines.is_file():
        return {str(i): name for i, name in enumerate(lines.read_text(encoding="utf-8-sig").splitlines())}
    if mapping.is_file():
        read = json.loads(mapping.read_text(encoding="utf-8"))
        if not isinstance(read, dict):
            raise ModelLoadError("index_to_name.json must be an object of index: name")
        return {str(index): name[-1] if isinstance(name, list) and name else name for index, name in read.items()}
    return None

"""Scores -> the best labels: what every classifier answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def top_labels(logits: torch.Tensor, top_k: int, labels: Mapping[str, Any] | None) -> list[list[dict[str, Any]]]:
    """Logits (B, classes) -> for each row [{"label", "index", "score"}, ...], best first.

    Args:
        logits: raw scores; softmax makes them probabilities.
        top_k: how many at most; a model with fewer classes answers with all it has.
        labels: class index as text -> name; a class without a name is called by its index.
    """
    scores, indices = logits.float().softmax(1).topk(min(top_k, logits.shape[1]))
    names = labels or {}
    return [
        [{"label": names.get(str(i), str(i)), "index": i, "score": score} for i, score in zip(row_indices, row_scores, strict=True)]
        for row_indices, row_scores in zip(indices.tolist(), scores.tolist(), strict=True)
    ]

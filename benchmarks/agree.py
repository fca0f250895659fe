"""Whether two servers answered the same thing."""

from __future__ import annotations

from typing import Any

SCORE_OFF = 0.02  # one resize or two: a grey level here and there
EMBEDDING_OFF = 1e-3
SHARED_LABELS = 3  # of 5, where the other's preprocessing is its own


class Disagree(Exception):
    """Why they did not."""


def compare(ours: Any, theirs: Any, exact: bool) -> float:
    """The largest difference between two answers' numbers.

    Args:
        ours: a classifier's list of labels, or an embedder's {"embedding": [...]}.
        theirs: the same, of another server.
        exact: False where the other prepares its input in another way: then the best label must be among ours, and 3 shared.

    Raises:
        Disagree: they differ by more than a stated tolerance.
    """
    if isinstance(ours, dict):
        return _embeddings(ours["embedding"], theirs["embedding"])
    mine, other = ({row["label"]: row["score"] for row in answer} for answer in (ours, theirs))
    shared = mine.keys() & other.keys()
    if not exact:
        if theirs[0]["label"] not in mine or len(shared) < SHARED_LABELS:
            raise Disagree(f"answers {list(other)} where batchline answers {list(mine)}")
        return max(abs(mine[label] - other[label]) for label in shared)
    off = max((abs(mine.get(label, 0.0) - other.get(label, 0.0)) for label in mine.keys() | other.keys()), default=0.0)
    if off > SCORE_OFF or ours[0]["label"] != theirs[0]["label"]:
        raise Disagree(f"answers {other} where batchline answers {mine}")
    return off


def _embeddings(ours: list[float], theirs: list[float]) -> float:
    if len(ours) != len(theirs):
        raise Disagree(f"answers {len(theirs)} numbers where batchline answers {len(ours)}")
    off = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    if off > EMBEDDING_OFF:
        raise Disagree(f"its embedding differs by up to {off:.4f}")
    return off

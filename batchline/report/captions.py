"""Words of captions: counts, settings, and sentences that are said once."""

from __future__ import annotations

from collections.abc import Sequence


def short(value: float) -> str:
    """Three digits at least, and never an exponent: `0.0579`, `12.1`, `1463`."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 1e-4 or not value else f"{value:.6f}"


def counted(count: int, what: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{count} {what}{'s' * (count != 1)}"


def served(batch_size: int | None, max_batch_delay_ms: float | None, workers: int | None) -> str:
    """Settings in words; those that are not known are left out."""
    said = [f"batchSize {batch_size}"] if batch_size else []
    said += [f"maxBatchDelay {max_batch_delay_ms:g} ms"] if max_batch_delay_ms else []
    said += [counted(workers, "worker")] if workers else []
    return ", ".join(said)


def together(sentences: Sequence[str]) -> str:
    """Sentences in their order, each once."""
    return " ".join(dict.fromkeys(sentence for sentence in sentences if sentence))

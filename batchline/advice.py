"""What a person would do about the largest part of a request."""

from __future__ import annotations

from batchline.journey import Settings

DELAY_PAID = 0.8  # of maxBatchDelay: a wait this long is the delay, not a queue
ADVICE = {
    "network": "Move the client closer, keep its connections open, and send less: a smaller picture or a compressed one.",
    "deserialize": "Send less, or what unpacks cheaper: raw bytes instead of base64 in JSON, fewer instances a request.",
    "preprocess": "Send smaller pictures or shorter texts: decoding and scaling down grow with what comes in.",
    "inference": "The model itself: larger batches share its fixed cost; more threads, a faster runtime or a smaller model shorten it.",
    "serialize": "Answer less: fewer classes, or embeddings rounded to fewer digits.",
    "front end": "This is TorchServe's own cost a request: put several instances into one request, where the client has them.",
    "worker": "The handler does not say where its time goes: one built on batchline.handlers reports its stages.",
}


def advise(dominant: str, model: str, ms: float, settings: Settings, lone: bool) -> str:
    """One sentence to act on.

    Args:
        dominant: the largest part.
        model: its name.
        ms: how long that part is.
        settings: of the model.
        lone: whether requests came one at a time.
    """
    return _wait(model, ms, settings, lone) if dominant == "wait" else ADVICE[dominant]


def _wait(model: str, ms: float, settings: Settings, lone: bool) -> str:
    delay_ms, size = settings.max_batch_delay_ms, settings.batch_size
    paid = size > 1 and ms >= DELAY_PAID * delay_ms
    if lone and paid:
        return f"A lone request pays all of maxBatchDelay, {delay_ms} ms: lower it for {model} in config.properties."
    if lone:
        return f"A lone request to {model} waits for a worker that serves others: measure it with nothing else running."
    if ms <= delay_ms and size > 1:
        return f"Batches wait to fill up: lower maxBatchDelay ({delay_ms} ms) or batchSize ({size}) of {model} in config.properties."
    return f"Requests wait for a worker: raise batchSize ({size}) of {model}, or its workers ({settings.workers}) while there are cores."

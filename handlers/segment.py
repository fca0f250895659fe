"""A class for every pixel: torchvision's segmentation models, or any that speak as they do."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from .errors import ModelLoadError
from .image import ImageHandler, pixels


class ImageSegmenter(ImageHandler):
    """Which class each pixel of a picture belongs to.

    The model takes float32 (B, 3, H, W) and gives logits (B, classes, H, W), alone or as {"out": ...}.
    model-config.yaml: `size` ([height, width] that every picture is brought to, [520, 520]), `interpolation` (bilinear),
    `mean`, `std`, `max_pixels`, `background`.
    """

    def prepare(self) -> None:
        """Reads size and interpolation."""
        super().prepare()
        size = self.config.get("size", [520, 520])
        if not isinstance(size, list) or len(size) != 2 or not all(isinstance(n, int) and n > 0 for n in size):
            raise ModelLoadError(f"model-config.yaml: size must be [height, width] in pixels, not {size!r}")
        self.height, self.width = size
        self.interpolation = self.interpolation_of(self.config.get("interpolation", "bilinear"))

    def preprocess(self, data: Sequence[Any]) -> torch.Tensor:
        """Rows of picture files -> float32 (B, 3, height, width)."""
        return self.normalise(self.each(self.decode, data))

    def decode(self, value: Any) -> torch.Tensor:
        """A picture file -> uint8 (height, width, 3)."""
        return pixels(self.picture(value).resize((self.width, self.height), self.interpolation))

    def postprocess(self, data: Any) -> list[Any]:
        """Logits -> {"width", "height", "classes": [{"label", "index", "share"}], "mask"} a picture.

        `mask` is a grey PNG (base64 in JSON) of class indices,
        16 bits deep where 8 are too few; `share` is the part of the picture.
        """
        logits = data["out"] if isinstance(data, dict) else data
        return [self._answer(mask) for mask in logits.argmax(1).cpu()]

    def _answer(self, mask: torch.Tensor) -> dict[str, Any]:
        labels = self.mapping or {}
        found, counts = torch.unique(mask, return_counts=True)
        shares = sorted(zip(found.tolist(), (counts / mask.numel()).tolist(), strict=True), key=lambda pair: -pair[1])
        classes = [{"label": labels.get(str(i), str(i)), "index": i, "share": share} for i, share in shares]
        return {"width": self.width, "height": self.height, "classes": classes, "mask": _png(mask)}


def _png(mask: torch.Tensor) -> bytes:
    """Class indices (H, W) -> a grey PNG."""
    buffer = io.BytesIO()
    Image.fromarray(mask.numpy().astype(np.uint8 if mask.max() < 256 else np.uint16)).save(buffer, "PNG")
    return buffer.getvalue()

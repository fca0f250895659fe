"""Things in pictures: torchvision's detection models, or any that speak as they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .errors import BadInput
from .image import ImageHandler, pixels

MAX_ASPECT = 100  # these models scale a picture to their own size, and a side of no pixels fails the batch


class ObjectDetector(ImageHandler):
    """Boxes, labels and scores of the things in a picture.

    The model takes a list of float32 (3, H, W) in 0..1, each of its own size, and gives a list of {"boxes", "labels",
    "scores"}, as torchvision's detection models do. model-config.yaml: `min_score` (0.5), `max_pixels`, `background`.
    """

    chunk = 4  # pictures come at full size: 150 MB each at 50 million pixels, and floats of them

    def prepare(self) -> None:
        """Reads min_score."""
        super().prepare()
        self.min_score = self.setting("min_score", 0.5, at_least=0.0)

    def preprocess(self, data: Sequence[Any]) -> list[torch.Tensor]:
        """Rows of picture files -> float32 (3, H, W) each; the model scales and normalises by itself."""
        return [self.to_device(picture).permute(2, 0, 1).float().div_(255) for picture in self.each(self.decode, data)]

    def decode(self, value: Any) -> torch.Tensor:
        """A picture file -> uint8 (H, W, 3)."""
        picture = self.picture(value)
        if max(picture.size) > MAX_ASPECT * min(picture.size):
            raise BadInput(f"the picture's sides, {picture.width} x {picture.height}, differ by more than {MAX_ASPECT} to 1", kind="image")
        return pixels(picture)

    def inference(self, data: list[torch.Tensor], *args: Any, **kwargs: Any) -> list[dict[str, torch.Tensor]]:
        """One forward pass over the list. TorchScript's form of these models gives (losses, detections)."""
        outputs = self.model(data)
        return outputs[1] if isinstance(outputs, tuple) else outputs  # type: ignore[no-any-return]

    def postprocess(self, data: list[dict[str, torch.Tensor]]) -> list[Any]:
        """Detections -> [{"label", "index", "score", "box": [x1, y1, x2, y2]}, ...] a picture, in its pixels, best first."""
        return [self._things(found) for found in data]

    def _things(self, found: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
        labels = self.mapping or {}
        triples = zip(found["labels"].tolist(), found["scores"].tolist(), found["boxes"].tolist(), strict=True)
        things = [
            {"label": labels.get(str(index), str(index)), "index": index, "score": score, "box": box}
            for index, score, box in triples
            if score >= self.min_score
        ]
        return sorted(things, key=lambda thing: -thing["score"])

"""Picture models: an instance is a picture file; a classifier answers the best labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image

from .batch import BatchHandler
from .classify import top_labels
from .errors import ModelLoadError, NotSupported
from .exchange import Row
from .payload import Raw
from .picture import INTERPOLATIONS, LEFT_OF_SIDE, MAX_PIXELS, Fit, decode_image, fit_image


class ImageHandler(BatchHandler):
    """What all picture models share: decoding by `max_pixels` and `background` of model-config.yaml."""

    raw: ClassVar[Raw] = "bytes"
    expects: ClassVar[str] = "a picture file (JPEG, PNG, WebP, ...) as raw bytes or base64 in JSON"

    def prepare(self) -> None:
        """Reads max_pixels, background, mean and std."""
        self.max_pixels = int(self.setting("max_pixels", MAX_PIXELS, at_least=1))
        Image.MAX_IMAGE_PIXELS = self.max_pixels  # for what Pillow decodes while it opens a file, such as the pictures in an icon
        self.background = tuple(self._triple("background", [255, 255, 255]))
        if not all(type(v) is int and 0 <= v <= 255 for v in self.background):
            raise ModelLoadError(f"model-config.yaml: background must be three whole numbers from 0 to 255, not {self.background}")
        self.mean = torch.tensor(self._triple("mean", [0.0, 0.0, 0.0]), device=self.device).view(3, 1, 1)
        self.std = torch.tensor(self._triple("std", [1.0, 1.0, 1.0]), device=self.device).view(3, 1, 1)

    def _triple(self, key: str, default: list[float]) -> list[Any]:
        value = self.config.get(key, default)
        if not isinstance(value, list) or len(value) != 3 or not all(isinstance(v, (int, float)) for v in value):
            raise ModelLoadError(f"model-config.yaml: {key} must be three numbers, for red, green and blue, not {value!r}")
        return value

    def interpolation_of(self, name: Any) -> Image.Resampling:
        """The filter that model-config.yaml names. Raises ModelLoadError for a name that is none."""
        if not isinstance(name, str) or name not in INTERPOLATIONS:
            raise ModelLoadError(f"model-config.yaml: interpolation must be one of {', '.join(INTERPOLATIONS)}, not {name!r}")
        return INTERPOLATIONS[name]

    def picture(self, value: Any) -> Image.Image:
        """An instance -> an upright RGB picture."""
        return decode_image(value, self.max_pixels, self.background)

    def normalise(self, pictures: list[torch.Tensor]) -> torch.Tensor:
        """uint8 (H, W, 3) each -> float32 (B, 3, H, W), as (x / 255 - mean) / std."""
        batch = self.to_device(torch.stack(pictures))
        width = batch.shape[2]
        mean, std = ((values * 255).flatten().repeat(width) for values in (self.mean, self.std))  # a row long: no broadcast over 3 values
        rows = batch.flatten(2).float().sub_(mean).div_(std)
        return rows.unflatten(2, (width, 3)).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


def pixels(picture: Image.Image) -> torch.Tensor:
    """An RGB picture -> uint8 (H, W, 3)."""
    return torch.from_numpy(np.array(picture))


class ImageClassifier(ImageHandler):
    """A class from a picture.

    model-config.yaml: `resize` (shorter side, 256), `crop` (centre square, 224), `interpolation` (bilinear), `mean`, `std`,
    `top_k` (5), `max_pixels`, `background`, `scaled_decode` (true: a JPEG may be decoded smaller while its shorter side stays
    twice `resize`; a number: that many times; false: never).
    """

    def prepare(self) -> None:
        """Reads the preprocessing that the model was trained with."""
        super().prepare()
        self.crop = int(self.setting("crop", 224, at_least=1))
        self.resize = int(self.setting("resize", 256, at_least=self.crop))
        self.interpolation = self.interpolation_of(self.config.get("interpolation", "bilinear"))
        self.fit = Fit(self.resize, self.crop, self.interpolation, self._left_of_side())
        self.top_k = self.setting("top_k", 5, at_least=1)

    def _left_of_side(self) -> float:
        value = self.config.get("scaled_decode", True)
        if isinstance(value, bool):
            return LEFT_OF_SIDE if value else math.inf
        if not isinstance(value, (int, float)) or not value >= 1:
            raise ModelLoadError(f"model-config.yaml: scaled_decode must be true, false or a number of at least 1, not {value!r}")
        return value

    def preprocess(self, data: Sequence[Any]) -> torch.Tensor:
        """Rows of picture files -> float32 (B, 3, crop, crop)."""
        return self.normalise(self.each(self.decode, data))

    def postprocess(self, data: torch.Tensor) -> list[Any]:
        """Logits (B, classes) -> the best labels a picture."""
        return top_labels(data, self.top_k, self.mapping)

    def decode(self, value: Any) -> torch.Tensor:
        """A picture file -> uint8 (crop, crop, 3)."""
        return torch.from_numpy(fit_image(value, self.fit, self.max_pixels, self.background))

    def explain_row(self, row: Row) -> Any:
        """The best label and how much each pixel spoke for it: captum's integrated gradients, summed over the colours.

        Raises:
            NotSupported: captum is not installed in the server's Python.
        """
        try:
            from captum.attr import IntegratedGradients
        except ImportError:
            raise NotSupported("explanations need captum in the server's Python: pip install captum", kind="unsupported") from None
        inputs, model = self.preprocess([row]), self.differentiable()
        with torch.no_grad():
            best = self.postprocess(model(inputs))[0][0]
        attribution = IntegratedGradients(model).attribute(inputs, target=best["index"], n_steps=20, internal_batch_size=4)
        heat = attribution[0].sum(0)  # (H, W)
        return {**best, "attribution": [[round(v, 6) for v in line] for line in heat.tolist()]}

"""Pictures: an instance is one, decoded to RGB by stated rules; a classifier answers the best labels.

Every still picture that Pillow reads is accepted, the first frame of a moving one. Orientation is applied (EXIF). What is
transparent shows `background`. 16-bit grey is scaled to 8 bits, not clipped; floating point grey is taken as 0..1 or
0..255 by its largest value, else stretched from its least to its largest; CMYK and YCCK, Adobe's inverted ones too, and
LAB become RGB.
"""

from __future__ import annotations

import base64
import binascii
import io
import struct
import warnings
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image, ImageChops, ImageCms, ImageOps, UnidentifiedImageError

from .batch import BatchHandler, Row
from .classify import top_labels
from .errors import BadInput, ModelLoadError, NotSupported
from .payload import Raw

MAX_PIXELS = 50_000_000
DATA_URL = "data:"
# Pillow hands these to an outside program, or knows no more of them than their name.
REFUSED_FORMATS = {"EPS", "WMF", "EMF", "FITS", "GRIB", "HDF5", "BUFR", "MPEG"}
PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
PIECE_BYTES = 1 << 20  # inflated at a time
GREY_16_BIT = ("I;16", "I;16B", "I;16L", "I;16N", "I")
INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def formats() -> list[str]:
    """The formats that are read."""
    Image.init()
    return [name for name in Image.ID if name not in REFUSED_FORMATS]


def image_bytes(value: Any) -> bytes:
    """An instance -> the picture file's bytes. Text is base64, plain or url-safe, with or without padding, or a data URL."""
    if isinstance(value, (bytes, bytearray)):
        data = bytes(value)
    elif isinstance(value, str):
        data = _from_base64(value)
    else:
        raise BadInput(f"must be a picture file's bytes or their base64 text, not a {type(value).__name__}", kind="type")
    if not data:
        raise BadInput("the picture is empty; send a JPEG, PNG or other picture file", kind="empty")
    return data


def _from_base64(text: str) -> bytes:
    if text.startswith(DATA_URL):
        head, comma, text = text.partition(",")
        if not comma or not head.endswith(";base64"):
            raise BadInput("the data URL is not base64; send data:image/png;base64,...", kind="base64")
    compact = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise BadInput("the text is not base64 of a picture file", kind="base64") from None


def decode_image(value: Any, max_pixels: int = MAX_PIXELS, background: Sequence[int] = (255, 255, 255)) -> Image.Image:
    """An instance -> an upright RGB picture.

    Args:
        value: a picture file's bytes, or base64 text of them.
        max_pixels: width x height, held against the file's header before anything is decoded.
        background: RGB of what shows through transparent places.

    Raises:
        BadInput: 400 for what is no picture or a broken one, 413 for too many pixels.
    """
    data = image_bytes(value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata; nobody would read it here
            with Image.open(io.BytesIO(data), formats=formats()) as picture:
                _check_pixels(picture, max_pixels)
                picture.load()
                _check_pixels(picture, max_pixels)
                _check_rows(picture, data)
                return to_rgb(_upright(_uninverted(picture)), background)
    except BadInput:
        raise
    except Image.DecompressionBombError:
        raise BadInput(f"the picture has more than {max_pixels} pixels", 413, kind="too_large") from None
    except UnidentifiedImageError:
        raise BadInput("not a picture that can be read; send a JPEG, PNG, WebP, GIF, TIFF or BMP file", kind="image") from None
    except MemoryError:
        raise
    except Exception as error:  # broken files surface in Pillow as nearly every kind of exception
        raise BadInput(f"the picture is broken or cut short: {str(error)[:120] or type(error).__name__}", kind="image") from None


def _check_pixels(picture: Image.Image, max_pixels: int) -> None:
    width, height = picture.size
    if width * height > max_pixels:
        raise BadInput(
            f"the picture has {width} x {height} pixels, more than the {max_pixels} allowed; send a smaller one", 413, kind="too_large"
        )
    if not width or not height:
        raise BadInput("the picture has no pixels", kind="image")


def _check_rows(picture: Image.Image, data: bytes) -> None:
    """Pillow leaves the rows that a PNG's data lacks at zero and says nothing; a last row of zeros is looked into."""
    if picture.format != "PNG" or picture.info.get("interlace") or data[12:16] != b"IHDR":
        return
    width, height = picture.size
    if any(picture.crop((0, height - 1, width, height)).tobytes()):
        return
    depth, channels = data[24], PNG_CHANNELS[data[25]]
    wanted = height * (1 + -(-width * depth * channels // 8))  # a filter byte, and the row's bits rounded up to bytes
    if _inflated(data, wanted) < wanted:
        raise BadInput(f"the picture has fewer rows than the {height} its header says", kind="image")


def _inflated(png: bytes, enough: int) -> int:
    """Bytes of picture data in a PNG, counted until there are enough."""
    inflate, at, found = zlib.decompressobj(), 8, 0
    while at + 8 <= len(png) and found < enough and not inflate.eof:
        length, name = struct.unpack_from(">I4s", png, at)
        rest = png[at + 8 : at + 8 + length] if name == b"IDAT" else b""
        while rest and not inflate.eof:
            found += len(inflate.decompress(rest, PIECE_BYTES))
            rest = inflate.unconsumed_tail
        at += 12 + length
    return found + len(inflate.flush())


def _uninverted(picture: Image.Image) -> Image.Image:
    """Pillow takes every CMYK JPEG for one of Adobe's, which hold 255 - ink; one without Adobe's marker holds ink."""
    plain = picture.format in ("JPEG", "MPO") and picture.mode == "CMYK" and "adobe" not in picture.info
    return ImageChops.invert(picture) if plain else picture


def _upright(picture: Image.Image) -> Image.Image:
    """EXIF orientation applied; corrupt EXIF is no reason to refuse a picture."""
    try:
        return ImageOps.exif_transpose(picture) or picture
    except Exception:
        return picture


def to_rgb(picture: Image.Image, background: Sequence[int] = (255, 255, 255)) -> Image.Image:
    """Any mode -> RGB, by the rules at the head of this module."""
    if picture.mode in GREY_16_BIT:
        return _grey_16_bit(picture)
    if picture.mode == "F":
        return _grey_float(picture)
    if picture.mode == "LAB":
        return _lab(picture)
    if picture.mode == "La":
        picture = picture.convert("LA")
    if picture.has_transparency_data:
        rgba = picture.convert("RGBA")
        under = Image.new("RGBA", rgba.size, (*background, 255))
        return Image.alpha_composite(under, rgba).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _grey_16_bit(picture: Image.Image) -> Image.Image:
    """0..65535 -> 0..255."""
    grey = np.asarray(picture).astype(np.int64).clip(0, 65535)
    return Image.fromarray(((grey * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")


def _grey_float(picture: Image.Image) -> Image.Image:
    """0..1 or 0..255 by the largest value; anything else is stretched from least to largest."""
    grey = np.nan_to_num(np.asarray(picture, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(grey.min()), float(grey.max())
    if low >= 0 and high <= 1:
        grey = grey * 255
    elif low < high and (low < 0 or high > 255):
        grey = (grey - low) * (255 / (high - low))
    return Image.fromarray(grey.round().clip(0, 255).astype(np.uint8)).convert("RGB")


def _lab(picture: Image.Image) -> Image.Image:
    profiles = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    converted = ImageCms.profileToProfile(picture, *profiles, outputMode="RGB")
    assert converted is not None  # it is None only when asked to work in place
    return converted


def resize_and_crop(picture: Image.Image, resize: int, crop: int, interpolation: Image.Resampling) -> Image.Image:
    """Shorter side to `resize`, centre square of `crop`, in one pass: only the pixels that are kept are computed.

    torchvision's Resize and CenterCrop, sizes and offsets rounded as they do; Pillow keeps the box in single precision, so a
    pixel may differ from theirs by a grey level.
    """
    width, height = picture.size
    scale_to = (resize, max(1, int(resize * height / width))) if width <= height else (max(1, int(resize * width / height)), resize)
    left, top = (round((side - crop) / 2.0) for side in scale_to)
    across, down = width / scale_to[0], height / scale_to[1]  # source pixels a target pixel
    box = (left * across, top * down, min(width, (left + crop) * across), min(height, (top + crop) * down))
    return picture.resize((crop, crop), interpolation, box=box)


class ImageHandler(BatchHandler):
    """What all picture models share: decoding by `max_pixels` and `background` of model-config.yaml."""

    raw: ClassVar[Raw] = "bytes"
    expects: ClassVar[str] = "a picture file (JPEG, PNG, WebP, ...) as raw bytes or base64 in JSON"

    def prepare(self) -> None:
        """Reads max_pixels, background, mean and std."""
        self.max_pixels = int(self.setting("max_pixels", MAX_PIXELS, at_least=1))
        Image.MAX_IMAGE_PIXELS = self.max_pixels  # for what Pillow decodes while it opens a file, such as the pictures in an icon
        self.background = tuple(self._triple("background", [255, 255, 255]))
        self.mean = torch.tensor(self._triple("mean", [0.0, 0.0, 0.0]), device=self.device).view(3, 1, 1)
        self.std = torch.tensor(self._triple("std", [1.0, 1.0, 1.0]), device=self.device).view(3, 1, 1)

    def _triple(self, key: str, default: list[float]) -> list[Any]:
        value = self.config.get(key, default)
        if not isinstance(value, list) or len(value) != 3 or not all(isinstance(v, (int, float)) for v in value):
            raise ModelLoadError(f"model-config.yaml: {key} must be three numbers, for red, green and blue, not {value!r}")
        return value

    def picture(self, value: Any) -> Image.Image:
        """An instance -> an upright RGB picture."""
        return decode_image(value, self.max_pixels, self.background)

    def normalise(self, pictures: list[torch.Tensor]) -> torch.Tensor:
        """uint8 (H, W, 3) each -> float32 (B, 3, H, W), as (x / 255 - mean) / std."""
        batch = self.to_device(torch.stack(pictures)).permute(0, 3, 1, 2).float()
        return batch.sub_(self.mean * 255).div_(self.std * 255)  # type: ignore[no-any-return]


def pixels(picture: Image.Image) -> torch.Tensor:
    """An RGB picture -> uint8 (H, W, 3)."""
    return torch.from_numpy(np.array(picture))


class ImageClassifier(ImageHandler):
    """A class from a picture.

    model-config.yaml: `resize` (shorter side, 256), `crop` (centre square, 224), `interpolation` (bilinear), `mean`, `std`,
    `top_k` (5), `max_pixels`, `background`.
    """

    def prepare(self) -> None:
        """Reads the preprocessing that the model was trained with."""
        super().prepare()
        self.crop = int(self.setting("crop", 224, at_least=1))
        self.resize = int(self.setting("resize", 256, at_least=self.crop))
        self.interpolation = self._interpolation(self.config.get("interpolation", "bilinear"))
        self.top_k = self.setting("top_k", 5, at_least=1)

    def _interpolation(self, name: Any) -> Image.Resampling:
        if name not in INTERPOLATIONS:
            raise ModelLoadError(f"model-config.yaml: interpolation must be one of {', '.join(INTERPOLATIONS)}, not {name!r}")
        return INTERPOLATIONS[name]

    def preprocess(self, data: Sequence[Any]) -> torch.Tensor:
        """Rows of picture files -> float32 (B, 3, crop, crop)."""
        return self.normalise(self.each(self.decode, data))

    def postprocess(self, data: torch.Tensor) -> list[Any]:
        """Logits (B, classes) -> the best labels a picture."""
        return top_labels(data, self.top_k, self.mapping)

    def decode(self, value: Any) -> torch.Tensor:
        """A picture file -> uint8 (crop, crop, 3)."""
        return pixels(resize_and_crop(self.picture(value), self.resize, self.crop, self.interpolation))

    def explain_row(self, row: Row) -> Any:
        """The best label and how much each pixel spoke for it: captum's integrated gradients, summed over the colours.

        Raises:
            NotSupported: captum is not installed in the server's Python.
        """
        try:
            from captum.attr import IntegratedGradients
        except ImportError:
            raise NotSupported("explanations need captum in the server's Python: pip install captum", kind="unsupported") from None
        inputs = self.preprocess([row])
        with torch.no_grad():
            best = self.postprocess(self.model(inputs))[0][0]
        attribution = IntegratedGradients(self.model).attribute(inputs, target=best["index"], n_steps=20, internal_batch_size=4)
        heat = attribution[0].sum(0)  # (H, W)
        return {**best, "attribution": [[round(v, 6) for v in line] for line in heat.tolist()]}

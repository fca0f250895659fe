"""A picture file -> an upright RGB picture, by stated rules, or a sentence that says why not.

Every still picture that Pillow reads is accepted, the first frame of a moving one. Orientation is applied (EXIF). What is
transparent shows the background. Grey of more than 8 bits is scaled, not clipped: by the bits a sample has, 16 where the
file does not say; integers beyond 16 bits, and floating point beyond 0..255, are stretched from their least to their
largest; floating point within 0..1 is taken as that. CMYK and YCCK, Adobe's inverted ones too, and LAB become RGB.
"""

from __future__ import annotations

import base64
import binascii
import io
import struct
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageCms, ImageOps, UnidentifiedImageError

from .errors import BadInput
from .payload import kind_of

MAX_PIXELS = 50_000_000
DATA_URL = "data:"
# Pillow hands the first three to an outside program, knows no more of the next five than their name, and decodes the last
# two in Python, slowly enough to hold up a whole batch.
REFUSED_FORMATS = {"EPS", "WMF", "EMF", "FITS", "GRIB", "HDF5", "BUFR", "MPEG", "QOI", "BLP"}
JPEG_SCANS = 100  # a progressive JPEG has about ten; each costs a pass over the whole picture, and 75 bytes buy one
BITS_PER_SAMPLE = 258  # TIFF tag
BAND_ROWS = 256  # grey is scaled a band at a time, so that no copy of a wide type holds the whole picture
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
        raise BadInput(f"must be a picture file's bytes or their base64 text, not {kind_of(value)}", kind="type")
    if not data:
        raise BadInput("the picture is empty; send a JPEG, PNG or other picture file", kind="empty")
    return data


def _from_base64(text: str) -> bytes:
    if text[: len(DATA_URL)].lower() == DATA_URL:
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
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
    if data.startswith(b"\xff\xd8") and data.count(b"\xff\xda") > JPEG_SCANS:
        raise BadInput(f"the JPEG has more than {JPEG_SCANS} scans", kind="image")
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
        ImageOps.exif_transpose(picture, in_place=True)  # a copy would have lost the TIFF tags that `_range` reads
    except MemoryError:
        raise
    except Exception:
        return picture
    return picture


def to_rgb(picture: Image.Image, background: Sequence[int] = (255, 255, 255)) -> Image.Image:
    """Any mode -> RGB, by the rules at the head of this module."""
    if picture.mode in GREY_16_BIT or picture.mode == "F":
        picture = _grey(picture)
    if picture.mode == "LAB":
        return _lab(picture)
    if picture.mode == "La":
        picture = picture.convert("LA")
    if picture.has_transparency_data:
        rgba = picture.convert("RGBA")
        under = Image.new("RGBA", rgba.size, (*background, 255))
        return Image.alpha_composite(under, rgba).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _grey(picture: Image.Image) -> Image.Image:
    """Grey of more than 8 bits -> 8, with an alpha channel where the file names a transparent grey."""
    values = np.asarray(picture)
    low, high = _range(picture, values)
    grey = Image.fromarray(_scaled(values, low, high))
    transparent = picture.info.get("transparency")
    if not isinstance(transparent, int):
        return grey
    return Image.merge("LA", (grey, Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8))))


def _range(picture: Image.Image, values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """What becomes black and what white."""
    if picture.mode == "F":
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        return (0.0, 1.0) if low >= 0 and high <= 1 else (0.0, 255.0) if low >= 0 and high <= 255 else (low, high)
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 65535:
        return low, high
    bits = getattr(picture, "tag_v2", {}).get(BITS_PER_SAMPLE, (16,))[0]
    return 0.0, 2.0**bits - 1 if 8 < bits < 16 and high < 2**bits else 65535.0


def _scaled(values: np.ndarray[Any, Any], low: float, high: float) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """low..high -> 0..255; a picture of one value that has no range is that value, clipped."""
    factor, offset = (255 / (high - low), low) if high > low else (1.0, 0.0)
    scaled = np.empty(values.shape, np.uint8)
    for top in range(0, len(values), BAND_ROWS):
        band = np.nan_to_num(values[top : top + BAND_ROWS].astype(np.float64), nan=low, posinf=high, neginf=low)
        scaled[top : top + BAND_ROWS] = ((band - offset) * factor).round().clip(0, 255)
    return scaled


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

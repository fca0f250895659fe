"""A picture file -> an upright RGB picture, by stated rules, or a sentence that says why not.

Every still picture that Pillow reads is accepted, the first frame of a moving one. Orientation is applied (EXIF). What is
transparent shows the background. Grey of more than 8 bits is scaled, not clipped: by the bits a sample has, 16 where the
file does not say; integers beyond 16 bits, and floating point beyond 0..255, are stretched from their least to their
largest; floating point within 0..1 is taken as that. CMYK and YCCK, Adobe's inverted ones too, and LAB become RGB.

A classifier sees a small square of a picture, so `fit_image` decodes a large JPEG at a half, quarter or eighth: the inverse
DCT then computes only the pixels that are left. All of the file is still read, and what is broken or cut short is refused.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import io
import math
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
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
SCALES = (8, 4, 2)  # of the inverse DCT, whose blocks have 8 x 8 pixels; libjpeg-turbo has fast code for these
LEFT_OF_SIDE = 2.0  # times `resize` that a scaled decode leaves of the shorter side: with less the scores move visibly
TORCH_FILTERS = {Image.Resampling.BILINEAR: "bilinear", Image.Resampling.BICUBIC: "bicubic"}
TORCH_ASPECT = 4  # torch has no box: it resizes what the crop throws away too, which a long picture has too much of
REDUCED_LEFT = 3.0  # times the wanted size that is left when the means of whole pixels are taken first; a mean third of a grey level off
ORIENTATION = 0x0112  # EXIF tag
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
FROM_RIGHT, FROM_BOTTOM = (2, 3, 7, 8), (3, 4, 6, 7)  # orientations in which the file's last column, row comes first

Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # (H, W, 3), RGB
Box = tuple[float, float, float, float]  # left, top, right, bottom


def _simplejpeg() -> Callable[..., Pixels] | None:
    """The decoder of simplejpeg where that is installed: the same pixels as Pillow's in less time, straight into an array."""
    try:
        return importlib.import_module("simplejpeg").decode_jpeg  # type: ignore[no-any-return]
    except Exception:  # also one that was built for another numpy
        return None


decode_jpeg = _simplejpeg()
# Elsewhere torch resizes bytes more slowly than Pillow does.
torch_resizes = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


@dataclass(frozen=True)
class Fit:
    """What a classifier sees of a picture: shorter side to `resize`, centre square of `crop`.

    A JPEG may be decoded at a scale that leaves its shorter side `left_of_side` times `resize` or more. Infinite: never, and
    every pixel of a large picture has its own weight.
    """

    resize: int
    crop: int
    interpolation: Image.Resampling
    left_of_side: float = LEFT_OF_SIDE

    def scale(self, size: tuple[int, int]) -> int:
        """By how much a JPEG of that size is decoded smaller: 1, 2, 4 or 8."""
        if self.interpolation == Image.Resampling.NEAREST:  # picks pixels, and those of a scaled decode are means
            return 1
        return next((scale for scale in SCALES if min(size) >= scale * self.left_of_side * self.resize), 1)


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
    with _opened(data, max_pixels) as picture:
        return _whole(picture, data, max_pixels, background)


def fit_image(value: Any, fit: Fit, max_pixels: int = MAX_PIXELS, background: Sequence[int] = (255, 255, 255)) -> Pixels:
    """An instance -> uint8 (crop, crop, 3), RGB: `resize_and_crop` of what `decode_image` gives, at less cost.

    Args, Raises: as `decode_image`.
    """
    data = image_bytes(value)
    with _opened(data, max_pixels) as picture:
        if picture.format in ("JPEG", "MPO") and picture.mode in ("L", "RGB"):
            seen, filled = _jpeg(picture, data, fit)
        else:
            seen, filled = _whole(picture, data, max_pixels, background), None
    return _fitted(seen, filled, fit)


@contextmanager
def _opened(data: bytes, max_pixels: int) -> Iterator[Image.Image]:
    """The file with its header read; what goes wrong with it in here becomes a BadInput."""
    if data.startswith(b"\xff\xd8") and _scans(data) > JPEG_SCANS:
        raise BadInput(f"the JPEG has more than {JPEG_SCANS} scans", kind="image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata; nobody would read it here
            with Image.open(io.BytesIO(data), formats=formats()) as picture:
                _check_pixels(picture, max_pixels)
                yield picture
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


def _scans(jpeg: bytes) -> int:
    """How many start-of-scan markers there are; bytes.count takes a fifth of the time of a scaled decode for it."""
    values = np.frombuffer(jpeg, np.uint8)
    return int(np.count_nonzero((values[:-1] == 0xFF) & (values[1:] == 0xDA)))


def _whole(picture: Image.Image, data: bytes, max_pixels: int, background: Sequence[int]) -> Image.Image:
    """Every pixel of an opened file, upright, RGB."""
    picture.load()
    _check_pixels(picture, max_pixels)
    _check_rows(picture, data)
    return to_rgb(_upright(_uninverted(picture)), background)


def _jpeg(picture: Image.Image, data: bytes, fit: Fit) -> tuple[Image.Image | Pixels, Box | None]:
    """A JPEG that is grey or in colour -> what a scaled decode leaves of it, upright, and the box in there that it fills.

    The last column and row of a scaled decode stand for fewer than `scale` pixels where the size is no multiple of it.
    None: it fills all.
    """
    width, height = picture.size
    scale, orientation = fit.scale(picture.size), _orientation(picture)
    seen: Image.Image | Pixels | None = _by_simplejpeg(data, (-(-width // scale), -(-height // scale)))
    if seen is None:
        if scale > 1 and picture.draft(picture.mode, (width // scale, height // scale)) is None:
            scale = 1
        seen = picture.convert("RGB") if picture.mode == "L" else picture
        seen.load()
    if orientation in TURNS:
        seen = (seen if isinstance(seen, Image.Image) else Image.fromarray(seen)).transpose(TURNS[orientation])
    return seen, _filled(width, height, scale, orientation)


def _filled(width: int, height: int, scale: int, orientation: int) -> Box | None:
    """Where in a scaled decode of that size, turned upright, the picture lies; None: it fills all."""
    over = -width % scale / scale, -height % scale / scale  # of a column, of a row
    if not any(over):
        return None
    left, top = over[0] if orientation in FROM_RIGHT else 0.0, over[1] if orientation in FROM_BOTTOM else 0.0
    box = (left, top, left + width / scale, top + height / scale)
    return box if orientation < 5 else (box[1], box[0], box[3], box[2])


def _by_simplejpeg(jpeg: bytes, size: tuple[int, int]) -> Pixels | None:
    """The pixels at that size; None where simplejpeg is not installed or warns, so that Pillow judges the file."""
    if decode_jpeg is None:
        return None
    try:
        pixels = decode_jpeg(jpeg, "RGB", min_width=size[0], min_height=size[1])
    except (ValueError, RuntimeError):
        return None
    return pixels if pixels.shape == (size[1], size[0], 3) else None


def _orientation(picture: Image.Image) -> int:
    """EXIF's, 1 where there is none; corrupt EXIF is no reason to refuse a picture."""
    try:
        orientation = picture.getexif().get(ORIENTATION, 1)
        return int(orientation) if orientation in TURNS else 1
    except MemoryError:
        raise
    except Exception:
        return 1


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


def resize_and_crop(
    picture: Image.Image,
    resize: int,
    crop: int,
    interpolation: Image.Resampling,
    filled: Box | None = None,
    reduced_left: float | None = None,
) -> Image.Image:
    """Shorter side to `resize`, centre square of `crop`, in one pass: only the pixels that are kept are computed.

    torchvision's Resize and CenterCrop, sizes and offsets rounded as they do; Pillow keeps the box in single precision, so a
    pixel may differ from theirs by a grey level. `filled` is the part of `picture` that counts, all of it by
    default. With `reduced_left` means of whole pixels are taken first, at least so many times what is wanted.
    """
    x, y, right, bottom = filled or (0.0, 0.0, *map(float, picture.size))
    width, height = right - x, bottom - y
    scaled = _resized(width, height, resize)
    left, top = (round((side - crop) / 2.0) for side in scaled)
    across, down = width / scaled[0], height / scaled[1]  # source pixels a target pixel
    box = (x + left * across, y + top * down, min(right, x + (left + crop) * across), min(bottom, y + (top + crop) * down))
    return picture.resize((crop, crop), interpolation, box=box, reducing_gap=reduced_left)


def _resized(width: float, height: float, resize: int) -> tuple[int, int]:
    """Width and height when the shorter side is `resize`, as torchvision rounds them."""
    if width <= height:
        return resize, max(1, int(resize * height / width))
    return max(1, int(resize * width / height)), resize


def _fitted(seen: Image.Image | Pixels, filled: Box | None, fit: Fit) -> Pixels:
    """`resize_and_crop` at the least cost: by torch, or, a large one that would first have to become an array, reduced by Pillow."""
    width, height = seen.size if isinstance(seen, Image.Image) else (seen.shape[1], seen.shape[0])
    reduced_left = None if math.isinf(fit.left_of_side) else REDUCED_LEFT
    large = reduced_left and isinstance(seen, Image.Image) and min(width, height) >= 2 * reduced_left * fit.resize
    long = max(width, height) > TORCH_ASPECT * min(width, height)
    if large or long or filled or not torch_resizes or fit.interpolation not in TORCH_FILTERS:
        picture = seen if isinstance(seen, Image.Image) else Image.fromarray(seen)
        return np.array(resize_and_crop(picture, fit.resize, fit.crop, fit.interpolation, filled, reduced_left))
    return _by_torch(np.asarray(seen), _resized(width, height, fit.resize), fit)


def _by_torch(pixels: Pixels, resized: tuple[int, int], fit: Fit) -> Pixels:
    """All of it resized, then cropped."""
    across, down = resized
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an array that is read-only, as Pillow's are; it is only read
        batch = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    whole = torch.nn.functional.interpolate(batch, (down, across), mode=TORCH_FILTERS[fit.interpolation], antialias=True)[0]
    left, top = (round((side - fit.crop) / 2.0) for side in resized)
    cropped: Pixels = whole[:, top : top + fit.crop, left : left + fit.crop].permute(1, 2, 0).numpy()
    return np.ascontiguousarray(cropped)

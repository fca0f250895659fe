from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as tv
from batchline.handlers.errors import BadInput
from batchline.handlers.picture import BAND_ROWS, JPEG_SCANS, MAX_PIXELS, decode_image, to_rgb
from PIL import Image, ImageCms, TiffImagePlugin

from tests.harness import Worker, request

Pixel = tuple[int, int, int]


def save(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def flat(mode: str, colour: Any, size: tuple[int, int] = (16, 16)) -> Image.Image:
    return Image.new(mode, size, colour)


def of(array: np.ndarray[Any, Any], mode: str | None = None) -> Image.Image:
    picture = Image.fromarray(array)
    assert mode is None or picture.mode == mode
    return picture


def palette(colours: list[Pixel], **info: Any) -> Image.Image:
    picture = Image.new("P", (16, 16), 0)
    picture.putpalette([value for colour in colours for value in colour])
    picture.info.update(info)
    return picture


def refusal(data: Any, status: int = 400) -> BadInput:
    with pytest.raises(BadInput) as caught:
        decode_image(data)
    assert caught.value.status == status
    return caught.value


def without_adobe_marker(jpeg: bytes) -> bytes:
    at = jpeg.index(b"\xff\xee")
    return jpeg[:at] + jpeg[at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big") :]


GREY16 = np.full((16, 16), 0x8000, np.uint16)
HALF_RED = (255, 127, 127)  # alpha 128 of red over white

# ---- modes: (what, file, RGB of its top left pixel, tolerance)
MODES: dict[str, tuple[Callable[[], bytes], Pixel, int]] = {
    "1 white": (lambda: save(flat("1", 1), "PNG"), (255, 255, 255), 0),
    "1 black": (lambda: save(flat("1", 0), "PNG"), (0, 0, 0), 0),
    "L": (lambda: save(flat("L", 77), "PNG"), (77, 77, 77), 0),
    "L JPEG": (lambda: save(flat("L", 77), "JPEG"), (77, 77, 77), 1),
    "L tRNS": (lambda: save(flat("L", 77), "PNG", transparency=77), (255, 255, 255), 0),
    "1 tRNS": (lambda: save(flat("1", 0), "PNG", transparency=0), (255, 255, 255), 0),
    "LA": (lambda: save(flat("LA", (0, 128)), "PNG"), (127, 127, 127), 0),
    "LA opaque": (lambda: save(flat("LA", (9, 255)), "PNG"), (9, 9, 9), 0),
    "P": (lambda: save(palette([(10, 20, 30)]), "PNG"), (10, 20, 30), 0),
    "P GIF": (lambda: save(palette([(10, 20, 30)]), "GIF"), (10, 20, 30), 0),
    "P tRNS bytes": (lambda: save(palette([(255, 0, 0)]), "PNG", transparency=b"\x80"), HALF_RED, 0),
    "P tRNS index": (lambda: save(palette([(255, 0, 0), (0, 0, 0)]), "PNG", transparency=0), (255, 255, 255), 0),
    "P GIF transparent": (lambda: save(palette([(255, 0, 0)]), "GIF", transparency=0), (255, 255, 255), 0),
    "RGB": (lambda: save(flat("RGB", (1, 2, 3)), "PNG"), (1, 2, 3), 0),
    "RGB tRNS": (lambda: save(flat("RGB", (1, 2, 3)), "PNG", transparency=(1, 2, 3)), (255, 255, 255), 0),
    "RGB tRNS other": (lambda: save(flat("RGB", (1, 2, 3)), "PNG", transparency=(1, 2, 4)), (1, 2, 3), 0),
    "RGBA": (lambda: save(flat("RGBA", (255, 0, 0, 128)), "PNG"), HALF_RED, 0),
    "RGBA clear": (lambda: save(flat("RGBA", (255, 0, 0, 0)), "PNG"), (255, 255, 255), 0),
    "RGBA WebP": (lambda: save(flat("RGBA", (255, 0, 0, 128)), "WEBP", lossless=True, exact=True), HALF_RED, 0),
    "RGBA TIFF": (lambda: save(flat("RGBA", (255, 0, 0, 128)), "TIFF"), HALF_RED, 0),
    "CMYK TIFF": (lambda: save(flat("CMYK", (255, 0, 0, 0)), "TIFF"), (0, 255, 255), 0),
    "CMYK Adobe JPEG": (lambda: save(flat("CMYK", (255, 0, 0, 0)), "JPEG"), (0, 255, 255), 3),
    "CMYK plain JPEG": (lambda: without_adobe_marker(save(flat("CMYK", (0, 255, 255, 255)), "JPEG")), (0, 255, 255), 3),
    "YCbCr JPEG": (lambda: save(flat("RGB", (200, 100, 50)), "JPEG", quality=100), (200, 100, 50), 3),
    "YCbCr TIFF": (lambda: save(flat("RGB", (200, 100, 50)).convert("YCbCr"), "TIFF", compression="jpeg", quality=100), (200, 100, 50), 3),
    "LAB TIFF grey": (lambda: save(flat("LAB", (136, 128, 128)), "TIFF"), (127, 127, 127), 1),
    "I;16 PNG": (lambda: save(of(GREY16, "I;16"), "PNG"), (128, 128, 128), 0),
    "I;16 PNG dark": (lambda: save(of(GREY16 // 128, "I;16"), "PNG"), (1, 1, 1), 0),
    "I;16 PNG white": (lambda: save(of(GREY16 | 0x7FFF, "I;16"), "PNG"), (255, 255, 255), 0),
    "I;16 TIFF": (lambda: save(of(GREY16, "I;16"), "TIFF"), (128, 128, 128), 0),
    "I;16B TIFF": (lambda: save(of(GREY16.astype(">u2"), "I;16B"), "TIFF"), (128, 128, 128), 0),
    "I;16 JPEG2000": (lambda: save(of(GREY16, "I;16"), "JPEG2000"), (128, 128, 128), 0),
    "I TIFF": (lambda: save(of(GREY16.astype(np.int32), "I"), "TIFF"), (128, 128, 128), 0),
    "I TIFF beyond": (lambda: save(of(GREY16.astype(np.int32) * 99, "I"), "TIFF"), (255, 255, 255), 0),
    "I TIFF negative": (lambda: save(of(-GREY16.astype(np.int32), "I"), "TIFF"), (0, 0, 0), 0),
    "F TIFF 0..1": (lambda: save(flat("F", 0.5), "TIFF"), (128, 128, 128), 0),
    "F TIFF 0..255": (lambda: save(flat("F", 100.0), "TIFF"), (100, 100, 100), 0),
    "F TIFF NaN": (lambda: save(flat("F", float("nan")), "TIFF"), (0, 0, 0), 0),
    "F TIFF constant": (lambda: save(flat("F", 1000.0), "TIFF"), (255, 255, 255), 0),
    "F TIFF constant below": (lambda: save(flat("F", -5.0), "TIFF"), (0, 0, 0), 0),
    "PPM 16 bit": (lambda: b"P5 2 2 65535\n" + b"\x80\x00" * 4, (128, 128, 128), 0),
}


@pytest.mark.parametrize("name", MODES)
def test_every_mode_becomes_rgb_by_its_rule(name: str) -> None:
    make, wanted, tolerance = MODES[name]
    picture = decode_image(make())
    assert picture.mode == "RGB"
    assert np.abs(np.asarray(picture).astype(int) - wanted).max() <= tolerance


@pytest.mark.parametrize(
    ("mode", "colour", "wanted"),
    [
        ("La", (64, 128), (191, 191, 191)),
        ("RGBa", (128, 0, 0, 128), (255, 127, 127)),
        ("PA", (0, 0), (255, 255, 255)),
        ("HSV", (0, 255, 255), (255, 0, 0)),
        ("RGBX", (1, 2, 3, 0), (1, 2, 3)),
        ("YCbCr", (128, 128, 128), (128, 128, 128)),
        ("I;16L", 0x8000, (128, 128, 128)),
        ("I;16N", 0x8000, (128, 128, 128)),
    ],
)
def test_modes_that_only_arise_inside_pillow(mode: str, colour: Any, wanted: Pixel) -> None:
    picture = to_rgb(Image.new(mode, (2, 2), colour))
    assert picture.mode == "RGB"
    assert np.abs(np.asarray(picture).astype(int) - wanted).max() <= 1


def test_lab_colours_are_right() -> None:
    rgb = flat("RGB", (200, 60, 30))
    lab = ImageCms.profileToProfile(rgb, ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB")
    assert lab is not None
    found = np.asarray(decode_image(save(lab, "TIFF"))).astype(int)
    assert np.abs(found - (200, 60, 30)).max() <= 3


def test_floats_beyond_the_range_are_stretched() -> None:
    ramp = np.array([[-10.0, 0.0, 10.0, 30.0]], np.float32)
    assert np.asarray(decode_image(save(of(ramp, "F"), "TIFF")))[0, :, 0].tolist() == [0, 64, 128, 255]


def grey(picture: Image.Image, kind: str = "TIFF", **options: Any) -> np.ndarray[Any, Any]:
    return np.asarray(decode_image(save(picture, kind, **options)))[:, :, 0]


def tiff_of_12_bits(values: list[int]) -> bytes:
    """One row of packed 12-bit grey, which Pillow reads and does not write."""
    bits = "".join(f"{value:012b}" for value in values)
    data = int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big")
    tags = {256: len(values), 257: 1, 258: 12, 259: 1, 262: 1, 273: 0, 277: 1, 278: 1, 279: len(data)}
    tags[273] = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\x00" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + data


@pytest.mark.parametrize(("values", "wanted"), [([0, 2048, 4095, 4095], [0, 128, 255, 255]), ([0, 16, 0, 0], [0, 1, 0, 0])])
def test_white_of_12_bits_is_white(values: list[int], wanted: list[int]) -> None:
    assert np.asarray(decode_image(tiff_of_12_bits(values)))[0, :, 0].tolist() == wanted


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([0, 32768, 65535], [0, 128, 255]),  # 16 bits
        ([0, 32768, 65536], [0, 128, 255]),  # beyond: from least to largest
        ([65535, 65536, 65537], [0, 128, 255]),
        ([-100, 0, 100], [0, 128, 255]),
        ([-(2**31), 0, 2**31 - 1], [0, 128, 255]),
        ([1000, 2000, 100000], [0, 3, 255]),
    ],
)
def test_integers_beyond_16_bits_are_stretched(values: list[int], wanted: list[int]) -> None:
    found = grey(of(np.array([values], np.int32), "I"))[0].astype(int)
    assert np.abs(found - wanted).max() <= 1
    assert found[[0, -1]].tolist() == [0, 255]


def test_a_transparent_grey_of_16_bits_shows_the_background() -> None:
    data = save(of(np.array([[0, 1000, 65535]], np.uint16), "I;16"), "PNG", transparency=1000)
    assert np.asarray(decode_image(data, background=(1, 2, 3)))[0].tolist() == [[0, 0, 0], [1, 2, 3], [255, 255, 255]]


@pytest.mark.parametrize("rows", [1, BAND_ROWS - 1, BAND_ROWS, BAND_ROWS + 1, 3 * BAND_ROWS + 7])
@pytest.mark.parametrize(
    ("low", "high", "kind", "black", "white"),
    [
        (0, 65535, np.uint16, 0, 65535),
        (0, 65535, np.int32, 0, 65535),
        (-(10**6), 10**6, np.int32, None, None),
        (-3.0, 900.0, np.float32, None, None),
        (0.0, 1.0, np.float32, 0, 1),
        (0.0, 255.0, np.float32, 0, 255),
    ],
)
def test_grey_is_scaled_by_one_rule_in_all_its_rows(
    rows: int, low: float, high: float, kind: type[Any], black: float | None, white: float | None
) -> None:
    values = np.random.default_rng(rows).uniform(low, high, (rows, 5)).astype(kind)
    values.flat[:2] = low, high
    if values.dtype.kind == "f" and rows > BAND_ROWS:
        values[BAND_ROWS, 0] = np.nan  # counts as black, and not in the range
    least, most = (np.nanmin(values), np.nanmax(values)) if black is None or white is None else (black, white)
    exact = np.nan_to_num(values.astype(np.float64), nan=float(least))
    wanted = ((exact - float(least)) * (255 / (float(most) - float(least)))).round()
    assert np.array_equal(grey(of(values)), wanted)


def test_the_background_shows_through() -> None:
    clear = save(flat("RGBA", (9, 9, 9, 0)), "PNG")
    assert decode_image(clear, background=(1, 2, 3)).getpixel((0, 0)) == (1, 2, 3)


# ---- orientation

CORNERS = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], np.uint8).repeat(8, 0).repeat(8, 1)
UNDO = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", UNDO)
def test_exif_orientation_is_applied(orientation: int, kind: str) -> None:
    stored = CORNERS[:, :12]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    found = np.asarray(decode_image(save(of(stored), kind, exif=exif, **options))).astype(int)
    wanted = UNDO[orientation](stored)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).mean() < 8


@pytest.mark.parametrize(
    "exif", [b"", b"Exif\x00\x00", b"Exif\x00\x00II*\x00\xff\xff\xff\xff", b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x05\x01", b"\xff" * 40]
)
def test_corrupt_exif_is_no_reason_to_refuse(exif: bytes) -> None:
    assert decode_image(save(flat("RGB", (9, 9, 9)), "JPEG", exif=exif)).getpixel((0, 0)) == (9, 9, 9)


def test_nonsense_orientation_is_ignored() -> None:
    exif = Image.Exif()
    exif[0x0112] = 99
    assert decode_image(save(of(CORNERS[:, :12]), "JPEG", exif=exif)).size == (12, 16)


# ---- more than one picture in the file


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF", "MPO"])
def test_the_first_picture_of_several(kind: str) -> None:
    others = [flat("RGB", (0, 0, 255)), flat("RGB", (0, 255, 0))]
    options = {"WEBP": {"lossless": True}, "MPO": {"quality": 100}}.get(kind, {})
    data = save(flat("RGB", (255, 0, 0)), kind, save_all=True, append_images=others, **options)
    with Image.open(io.BytesIO(data)) as opened:
        assert getattr(opened, "n_frames", 1) == 3
    assert np.abs(np.asarray(decode_image(data)).astype(int) - (255, 0, 0)).max() <= 3


# ---- base64

PNG = save(flat("RGB", (250, 251, 252)), "PNG")
JPEG = save(of(np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)), "JPEG")


@pytest.mark.parametrize("data", [PNG, JPEG])
@pytest.mark.parametrize(
    "encode",
    [
        lambda data: base64.b64encode(data).decode(),
        lambda data: base64.urlsafe_b64encode(data).decode(),
        lambda data: base64.b64encode(data).decode().rstrip("="),
        lambda data: base64.encodebytes(data).decode(),
        lambda data: "data:image/png;base64," + base64.b64encode(data).decode(),
        lambda data: "DATA:IMAGE/PNG;BASE64," + base64.b64encode(data).decode(),
        lambda data: "data:image/png;foo=bar;base64," + base64.b64encode(data).decode(),
        lambda data: "data:;base64," + base64.urlsafe_b64encode(data).decode().rstrip("="),
        lambda data: "  " + base64.b64encode(data).decode() + "\r\n",
        lambda data: bytearray(data),
    ],
)
def test_base64_in_every_spelling(data: bytes, encode: Callable[[bytes], Any]) -> None:
    assert np.array_equal(np.asarray(decode_image(encode(data))), np.asarray(decode_image(data)))


@pytest.mark.parametrize(
    "text",
    [
        "!!!!",
        "AAAA*",
        "A",
        "AB=CD",
        "data:image/png,raw",
        "DATA:image/png,raw",
        "data:image/png;base64;foo=bar,AAAA",
        "data:image/png;base64",
        "\u00e9\u00e9\u00e9\u00e9",
        "\ud800",
        "http://x/y.jpg",
    ],
)
def test_text_that_is_not_base64(text: str) -> None:
    assert refusal(text).kind == "base64"


@pytest.mark.parametrize("value", [b"", bytearray(), "", " \n", "data:image/png;base64,", "===="])
def test_an_empty_picture(value: Any) -> None:
    assert refusal(value).kind == "empty"


@pytest.mark.parametrize("value", [None, 3, 1.5, True, [1], {"a": 1}])
def test_values_that_are_no_picture(value: Any) -> None:
    assert refusal(value).kind == "type"


# ---- broken and lying files


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, depth: int = 8, colour: int = 2, data: bytes = b"") -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


NOISE = of(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "AVIF", "MPO", "ICO"])
def test_half_a_file(kind: str) -> None:
    data = save(NOISE, kind)
    assert decode_image(data).size[0] > 0
    assert refusal(data[: len(data) // 2]).kind == "image"


@pytest.mark.parametrize(
    "data",
    [
        b"not an image",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        b"BM",
        b"\x00",
        b"RIFF\x00\x00\x00\x00WEBP",
        b"II*\x00",
        b"P6\n",
        b"<svg/>",
        b"%PDF-1.4",
    ],
)
def test_not_a_picture(data: bytes) -> None:
    assert refusal(data).kind == "image"


@pytest.mark.parametrize(
    ("width", "height", "depth", "colour"), [(4, 4000, 8, 2), (4, 5, 8, 2), (900, 900, 1, 0), (9, 9, 4, 3), (5, 9, 16, 6)]
)
def test_png_with_more_rows_in_its_header_than_in_its_data(width: int, height: int, depth: int, colour: int) -> None:
    channels = {0: 1, 2: 3, 3: 1, 6: 4}[colour]
    row = bytes(1 + (width * depth * channels + 7) // 8)
    table = chunk(b"PLTE", bytes(48))

    def made(rows: int) -> bytes:
        data = png(width, height, depth, colour, zlib.compress(row * rows))
        return data[:33] + table + data[33:]

    assert decode_image(made(height)).size == (width, height)
    assert refusal(made(height - 1)).kind == "image"
    assert refusal(made(1)).kind == "image"


def test_a_black_png_in_many_pieces_is_whole() -> None:
    data = save(flat("RGBA", (0, 0, 0, 0), (3000, 2000)), "PNG", compress_level=0)
    assert data.count(b"IDAT") > 10
    assert decode_image(data).getpixel((0, 1999)) == (255, 255, 255)


def test_bmp_with_more_rows_in_its_header_than_in_its_data() -> None:
    data = bytearray(save(flat("RGB", 0, (4, 4)), "BMP"))
    data[18:26] = struct.pack("<ii", 5000, 5000)
    assert refusal(bytes(data)).kind == "image"


def test_png_with_a_wrong_checksum() -> None:
    data = bytearray(PNG)
    data[data.index(b"IDAT") + 6] ^= 0xFF
    assert refusal(bytes(data)).kind == "image"


def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Any) -> None:
        raise AssertionError("a picture was decoded")

    for kind in (Image.Image, TiffImagePlugin.TiffImageFile):
        monkeypatch.setattr(kind, "load", load)


def bmp_header(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 0, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


LARGE = {
    "PNG 1 bit": png(20000, 20000, 1, 0, zlib.compress(bytes(2501 * 20000), 9)),
    "PNG cut after its header": png(20000, 20000, 1, 0)[: 8 + 25 + 8],
    "PNG just above": png(10001, 5000, 1, 0),
    "BMP": bmp_header(10000, 10000),
    "GIF": b"GIF89a" + struct.pack("<HHBBB", 60000, 60000, 0, 0, 0) + b"," + struct.pack("<HHHHB", 0, 0, 60000, 60000, 0) + b"\x08\x00",
    "PPM": b"P6 9000 9000 255\n",
    "JPEG": b"\xff\xd8\xff\xc0"
    + struct.pack(">HBHHB", 17, 8, 60000, 60000, 3)
    + b"\x01\x11\x00\x02\x11\x01\x03\x11\x01\xff\xda\x00\x0c"
    + bytes(10),
}


@pytest.mark.parametrize("name", LARGE)
def test_too_many_pixels_are_known_from_the_header(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    no_decoding(monkeypatch)
    error = refusal(LARGE[name], 413)
    assert error.kind == "too_large"
    assert str(MAX_PIXELS) in error.message


def test_the_limit_itself_is_allowed() -> None:
    data = save(flat("1", 1, (100, 50)), "PNG")
    assert decode_image(data, max_pixels=5000).size == (100, 50)
    with pytest.raises(BadInput, match="100 x 50 pixels"):
        decode_image(data, max_pixels=4999)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0)])
def test_a_picture_without_pixels(size: tuple[int, int]) -> None:
    assert refusal(png(*size)).kind == "image"
    assert refusal(bmp_header(*size)).kind == "image"


def test_formats_that_need_an_outside_program_are_refused() -> None:
    eps = save(flat("RGB", (1, 2, 3)), "EPS")
    assert refusal(eps).kind == "image"
    assert refusal(b"\xd7\xcd\xc6\x9a" + bytes(100)).kind == "image"


@pytest.mark.parametrize("kind", ["QOI", "BLP"])
def test_formats_that_are_decoded_in_python_are_refused(kind: str) -> None:
    data = save(flat("P" if kind == "BLP" else "RGB", 0), kind)
    with Image.open(io.BytesIO(data)) as opened:
        assert opened.format == kind
    assert refusal(data).kind == "image"
    assert refusal(data).message == refusal(data[:40]).message


def with_scans(count: int) -> bytes:
    """A progressive JPEG whose last scan is repeated until there are that many."""
    jpeg = save(NOISE, "JPEG", progressive=True)
    last = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    return jpeg[:-2] + last * (count - jpeg.count(b"\xff\xda")) + jpeg[-2:]


def test_a_jpeg_of_endless_scans_is_refused_undecoded() -> None:
    plain = decode_image(save(NOISE, "JPEG", progressive=True))
    most, beyond = with_scans(JPEG_SCANS), with_scans(JPEG_SCANS + 1)
    assert (most.count(b"\xff\xda"), beyond.count(b"\xff\xda")) == (100, 101)
    assert decode_image(most).size == plain.size
    error = refusal(beyond)
    assert (error.kind, error.message) == ("image", "the JPEG has more than 100 scans")
    broken = beyond[:2] + bytes(100) + beyond[beyond.index(b"\xff\xda") :]  # no header, so nothing that could be decoded
    assert refusal(broken).message == error.message
    assert refusal(beyond[: beyond.rindex(b"\xff\xda") + 2]).message == error.message


# ---- as the model sees it

REFERENCE = tv.Compose(
    [tv.Resize(256, tv.InterpolationMode.BICUBIC), tv.CenterCrop(224), tv.ToTensor(), tv.Normalize([0.498] * 3, [0.502] * 3)]
)


def tensor_of(worker: Worker, data: bytes) -> torch.Tensor:
    handler = worker.handler
    return handler.normalise([handler.decode(data)])[0]  # type: ignore[no-any-return]


def picture(width: int, height: int) -> Image.Image:
    low = np.random.default_rng(width * height).integers(0, 255, (max(1, height // 8), max(1, width // 8), 3), np.uint8)
    return of(low).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize(
    "size", [(224, 224), (256, 256), (100, 80), (999, 257), (257, 999), (640, 480), (333, 500), (1, 500), (500, 1), (31, 17)]
)
def test_preprocessing_equals_torchvisions(efficientnet: Worker, size: tuple[int, int]) -> None:
    made = picture(*size)
    found, wanted = tensor_of(efficientnet, save(made, "PNG")), REFERENCE(made)
    assert found.shape == (3, 224, 224)
    assert (found - wanted).abs().mean() <= 2e-3
    assert (found - wanted).abs().max() <= 2.01 / 255 / 0.502  # a rounding of eight bits may fall the other way


@pytest.mark.parametrize(("name", "best"), [("coffee.jpg", {"espresso": 0.95}), ("chelsea.png", {"tiger cat": 0.40, "Egyptian cat": 0.36})])
def test_scores_of_the_samples(efficientnet: Worker, samples: dict[str, bytes], name: str, best: dict[str, float]) -> None:
    reply = efficientnet.one(samples[name])
    with torch.inference_mode():
        wanted = efficientnet.handler.model(REFERENCE(Image.open(io.BytesIO(samples[name])).convert("RGB"))[None]).softmax(1)[0]
    assert [entry["label"] for entry in reply.json][: len(best)] == list(best)
    assert [entry["score"] for entry in reply.json][: len(best)] == pytest.approx(list(best.values()), abs=0.01)
    assert [entry["score"] for entry in reply.json] == pytest.approx([float(wanted[entry["index"]]) for entry in reply.json], abs=2e-3)
    assert len(reply.json) == 5


@pytest.mark.parametrize("size", [(1, 1), (3, 50000), (50000, 3), (2, 2), (7000, 7000)])
def test_extreme_sizes_are_answered(efficientnet: Worker, size: tuple[int, int]) -> None:
    (reply,) = efficientnet.send(request(save(flat("1", 1, size), "PNG")))
    assert reply.status == 200
    assert len(reply.json) == 5


def test_one_picture_in_every_form_gets_one_answer(efficientnet: Worker, samples: dict[str, bytes]) -> None:
    raw, text = samples["coffee.jpg"], base64.b64encode(samples["coffee.jpg"]).decode()
    v2 = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": [text]}], "id": "i"}
    forms = [
        request(raw, "image/jpeg"),
        request(raw, "multipart/form-data; boundary=x", field="photo"),
        request({"data": text}),
        request({"instances": [{"b64": "data:image/jpeg;base64," + text}]}, "application/json"),
        request(v2, "application/json"),
    ]
    replies = [efficientnet.send(form)[0] for form in forms]
    assert [reply.status for reply in replies] == [200] * 5
    plain = replies[0].json
    assert replies[1].json == replies[2].json == plain
    assert replies[3].json == {"predictions": [plain]}
    outputs = {tensor["name"]: tensor for tensor in replies[4].json["outputs"]}
    assert outputs["label"]["data"] == [entry["label"] for entry in plain]
    assert (outputs["score"]["datatype"], outputs["score"]["shape"]) == ("FP32", [1, 5])
    assert replies[4].json["id"] == "i"

"""Large pictures at less cost: a scaled decode, torch's resize, simplejpeg; what they may change and what they may not."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from batchline.handlers import picture as module
from batchline.handlers.errors import BadInput, ModelLoadError
from batchline.handlers.picture import Fit, decode_image, fit_image, resize_and_crop
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.harness import ROOT, Worker

BICUBIC = Image.Resampling.BICUBIC
FIT = Fit(32, 28, BICUBIC)
EXACT = Fit(32, 28, BICUBIC, math.inf)
DECODERS = ["Pillow", "simplejpeg"]


@pytest.fixture(params=DECODERS)
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both decoders where simplejpeg is installed."""
    if request.param == "Pillow":
        monkeypatch.setattr(module, "decode_jpeg", None)
    elif module.decode_jpeg is None:
        pytest.skip("simplejpeg is not installed")
    yield request.param


def photograph(width: int, height: int, noise: float = 3) -> Image.Image:
    with Image.open(ROOT / "models/efficientnet_lite0/samples/coffee.jpg") as coffee:
        values = np.asarray(coffee.resize((width, height), BICUBIC)).astype(np.float32)
    values += np.random.default_rng(0).normal(0, noise, values.shape)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def jpeg(picture: Image.Image, kind: str = "JPEG", orientation: int = 1, **options: Any) -> bytes:
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    picture.save(buffer, kind, exif=exif, **{"quality": 90, **options})
    return buffer.getvalue()


def reference(data: bytes, fit: Fit = FIT) -> np.ndarray[Any, Any]:
    """Every pixel decoded, Pillow's resize."""
    return np.asarray(resize_and_crop(decode_image(data), fit.resize, fit.crop, fit.interpolation)).astype(int)


def differences(data: bytes, fit: Fit = FIT) -> np.ndarray[Any, Any]:
    return np.abs(fit_image(data, fit).astype(int) - reference(data, fit))


# ---- how much smaller


@pytest.mark.parametrize(
    ("size", "left", "scale"),
    [
        ((4000, 3000), 2.0, 4),
        ((3000, 4000), 2.0, 4),
        ((4000, 3000), 1.4, 8),
        ((6000, 4096), 2.0, 8),
        ((6000, 4095), 2.0, 4),
        ((1024, 9000), 2.0, 2),
        ((1023, 9000), 2.0, 1),
        ((2048, 2048), 1.0, 8),
        ((2047, 2048), 1.0, 4),
        ((20000, 20000), math.inf, 1),
    ],
)
def test_the_scale_leaves_enough_of_the_shorter_side(size: tuple[int, int], left: float, scale: int) -> None:
    assert Fit(256, 224, BICUBIC, left).scale(size) == scale


def test_nearest_picks_pixels_of_the_whole_picture(decoder: str) -> None:
    nearest = Fit(32, 28, Image.Resampling.NEAREST)
    assert differences(jpeg(photograph(515, 389)), nearest).max() == 0


# ---- what it may change

FORMS: dict[str, Callable[[], bytes]] = {
    "4:2:0": lambda: jpeg(photograph(516, 388), subsampling=2),
    "4:4:4": lambda: jpeg(photograph(516, 388), subsampling=0),
    "4:2:2, odd size": lambda: jpeg(photograph(517, 391), subsampling=1),
    "progressive": lambda: jpeg(photograph(517, 391), progressive=True),
    "grey": lambda: jpeg(photograph(517, 391).convert("L")),
    "RGB": lambda: jpeg(photograph(517, 391), keep_rgb=True),
    "MPO": lambda: jpeg(photograph(517, 391), "MPO", save_all=True, append_images=[Image.new("RGB", (40, 30))]),
    "restart markers": lambda: jpeg(photograph(517, 391), restart_marker_rows=1),
    "at an eighth": lambda: jpeg(photograph(1043, 779)),
    "at a half": lambda: jpeg(photograph(133, 130)),
    "long": lambda: jpeg(photograph(1601, 257)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_scaled_decode_is_close_to_the_whole_one(form: str, decoder: str) -> None:
    data = FORMS[form]()
    with Image.open(io.BytesIO(data)) as opened:
        assert FIT.scale(opened.size) > 1
    found = differences(data)
    assert 0.1 < found.mean() <= 1  # grey levels; less: no scaled decode took place
    assert found.max() <= 12


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(517, 388), (516, 389), (519, 391)])  # over in columns, in rows, in both
def test_what_lies_at_the_edge_of_an_odd_size_stays_there(orientation: int, size: tuple[int, int], decoder: str) -> None:
    edges = Fit(32, 32, BICUBIC)  # no margin is cut off along the shorter side
    for fit in (FIT, edges):
        assert differences(jpeg(photograph(*size), orientation=orientation), fit).mean() <= 0.7


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_box_of_an_odd_size(orientation: int) -> None:
    """A picture is marked at the pixels that a decode at an eighth makes up, turned, and found again."""
    width, height, scale = 19, 13, 8
    made_up = np.ones((16, 24), np.uint8)  # 3 x 2 blocks
    made_up[:height, :width] = 0
    box = module._filled(width, height, scale, orientation)
    turned = Image.fromarray(made_up).transpose(module.TURNS[orientation]) if orientation in module.TURNS else Image.fromarray(made_up)
    own = np.argwhere(np.asarray(turned) == 0)
    top, left = own.min(0)
    bottom, right = own.max(0) + 1
    assert box == (left / scale, top / scale, right / scale, bottom / scale)
    assert module._filled(24, 16, scale, orientation) is None


def test_without_a_scaled_decode_a_pixel_differs_by_a_level_at_most(decoder: str) -> None:
    for form in FORMS.values():
        assert differences(form(), EXACT).max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("size", [(40, 36), (516, 391), (100, 64), (31, 17), (1, 300), (300, 1), (800, 90), (33, 2000)])
@pytest.mark.parametrize("name", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_torchs_resize_is_pillows(kind: str, size: tuple[int, int], name: str) -> None:
    buffer = io.BytesIO()
    photograph(*size).save(buffer, kind, lossless=True)
    fit = Fit(32, 28, module.INTERPOLATIONS[name], math.inf)
    assert differences(buffer.getvalue(), fit).max() <= (0 if name in ("nearest", "lanczos") else 1)


@pytest.mark.parametrize("name", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(192, 192), (516, 391), (801, 601), (300, 2000)])
def test_a_large_picture_is_first_reduced(size: tuple[int, int], name: str) -> None:
    buffer = io.BytesIO()
    photograph(*size).save(buffer, "PNG")
    found = differences(buffer.getvalue(), Fit(32, 28, module.INTERPOLATIONS[name]))
    assert 0.1 < found.mean() <= 0.5
    assert found.max() <= 5


@pytest.mark.parametrize("torch_resizes", [True, False])
def test_the_same_without_torchs_fast_resize(torch_resizes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "torch_resizes", torch_resizes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as torch's about arrays that are read-only
        assert differences(jpeg(photograph(60, 40))).max() <= (1 if torch_resizes else 0)


# ---- what it may not change


def test_ink_is_never_scaled(decoder: str) -> None:
    data = jpeg(photograph(516, 388).convert("CMYK"))
    assert differences(data, EXACT).max() <= 1
    assert np.array_equal(fit_image(data, FIT), fit_image(data, Fit(32, 28, BICUBIC, 1)))


def test_a_detector_sees_every_pixel(decoder: str) -> None:
    assert decode_image(jpeg(photograph(1043, 779), orientation=6)).size == (779, 1043)


def verdict(read: Callable[[], Any]) -> tuple[int, str, str] | None:
    try:
        read()
    except BadInput as error:
        return error.status, error.kind, error.message[:40]
    return None


LARGE = {
    "baseline": jpeg(photograph(1043, 779)),
    "progressive": jpeg(photograph(1043, 779), progressive=True),
    "restart markers": jpeg(photograph(1043, 779), restart_marker_rows=4),
}


@pytest.mark.parametrize("form", LARGE)
@pytest.mark.parametrize("part", [0.01, 0.3, 0.5, 0.9, 0.99])
def test_a_large_jpeg_cut_short_is_refused(form: str, part: float, decoder: str) -> None:
    data = LARGE[form]
    with pytest.raises(BadInput) as caught:
        fit_image(data[: int(len(data) * part)], FIT)
    assert (caught.value.status, caught.value.kind) == (400, "image")


@settings(max_examples=60)
@given(form=st.sampled_from(sorted(LARGE)), at=st.floats(0, 1), bytes_=st.binary(min_size=1, max_size=12), cut=st.booleans())
def test_a_broken_jpeg_is_judged_alike_at_every_scale(form: str, at: float, bytes_: bytes, cut: bool) -> None:
    data = LARGE[form]
    place = int(len(data) * at)
    broken = data[:place] if cut else data[:place] + bytes_ + data[place + len(bytes_) :]
    wanted = verdict(lambda: decode_image(broken))
    assert verdict(lambda: fit_image(broken, FIT)) == wanted
    installed, module.decode_jpeg = module.decode_jpeg, None
    try:
        assert verdict(lambda: fit_image(broken, FIT)) == wanted
    finally:
        module.decode_jpeg = installed


def test_simplejpeg_gives_pillows_pixels() -> None:
    if module.decode_jpeg is None:
        pytest.skip("simplejpeg is not installed")
    for data in (form() for form in FORMS.values()):
        with Image.open(io.BytesIO(data)) as opened:
            size = opened.size
            found = module._by_simplejpeg(data, size)
            assert found is not None
            assert np.array_equal(found, np.asarray(opened.convert("RGB")))


# ---- in the handler


def test_the_setting(efficientnet: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = efficientnet.handler
    for value, left in ((True, 2.0), (False, math.inf), (1, 1), (1.5, 1.5)):
        monkeypatch.setitem(handler.config, "scaled_decode", value)
        handler.prepare()
        assert handler.fit.left_of_side == left
    for value in ("yes", 0.5, 0, None, float("nan"), [2]):
        monkeypatch.setitem(handler.config, "scaled_decode", value)
        with pytest.raises(ModelLoadError, match="scaled_decode must be true, false or a number of at least 1"):
            handler.prepare()
    monkeypatch.undo()
    handler.prepare()


def test_scores_of_a_large_jpeg_stay(efficientnet: Worker) -> None:
    data = jpeg(photograph(1543, 1029))
    handler = efficientnet.handler
    whole = torch.from_numpy(reference(data, handler.fit).astype(np.uint8))
    with torch.inference_mode():
        wanted, found = handler.model(handler.normalise([whole, handler.decode(data)])).softmax(1)
    assert wanted.argmax() == found.argmax()
    assert 0 < (wanted - found).abs().max() <= 0.05


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 224, 224), (2, 5, 9)])
def test_normalising_row_by_row_is_normalising(efficientnet: Worker, shape: tuple[int, int, int]) -> None:
    handler, (count, height, width) = efficientnet.handler, shape
    pictures = [torch.randint(0, 256, (height, width, 3), dtype=torch.uint8) for _ in range(count)]
    wanted = (torch.stack(pictures).permute(0, 3, 1, 2).float() - handler.mean * 255) / (handler.std * 255)
    found = handler.normalise(pictures)
    assert torch.equal(found, wanted)
    assert found.is_contiguous(memory_format=torch.channels_last)  # what PyTorch's convolutions are fastest with

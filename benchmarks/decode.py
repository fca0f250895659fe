"""What a picture costs before the model sees it, and what that does to the scores: `python benchmarks/decode.py`.

Three ways, alternating, one thread: stock (Pillow decodes all, torchvision resizes, crops, normalises), before (`--before FOLDER`:
another state of handlers/, such as `git archive COMMIT handlers | tar -x -C FOLDER`), and ours, each a JPEG or PNG -> float32
(3, 224, 224). Then the scores of EfficientNet-Lite0 by ours against those by stock, for its samples and scikit-image's pictures as
they are and as large photographs.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import skimage.data
import torch
import torchvision.transforms as tv
from PIL import Image
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "efficientnet_lite0"
RESIZE, CROP, MEAN, STD = 256, 224, [0.498] * 3, [0.502] * 3  # as its model-config.yaml
SHAPES = {"0.1": (390, 260), "1": (1224, 816), "3": (2048, 1536), "12": (4000, 3000), "24": (6000, 4000)}  # megapixels
CASES = {
    "JPEG 4:2:0": (2, 4),
    "JPEG 4:4:4": (0, 4),
    "JPEG 4:2:0, little noise": (2, 2),
    "JPEG 4:2:0, much noise": (2, 14),
    "progressive": (2, 4),
    "PNG": (None, 4),
}
LARGE = (3000, 2053, 1024)  # shorter sides, pixels: decoded at a quarter, a quarter with an odd size, and a half
REFERENCE = tv.Compose([tv.Resize(RESIZE, tv.InterpolationMode.BICUBIC), tv.CenterCrop(CROP), tv.ToTensor(), tv.Normalize(MEAN, STD)])

Way = Callable[[bytes], torch.Tensor]


def stock(data: bytes) -> torch.Tensor:
    """The reference: every pixel decoded, torchvision's transforms."""
    return REFERENCE(Image.open(io.BytesIO(data)).convert("RGB"))  # type: ignore[no-any-return]


def handlers_in(folder: Path) -> tuple[ModuleType, ModuleType]:
    """(image, picture) of the handlers in a folder, beside those of another."""
    for name in [name for name in sys.modules if name.split(".")[0] == "handlers"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("handlers.image"), importlib.import_module("handlers.picture")
    finally:
        sys.path.remove(str(folder))


def way_of(folder: Path, **settings: Any) -> Way:
    """ImageClassifier's decode and normalise in that state of handlers/."""
    image, picture = handlers_in(folder)
    handler = image.ImageClassifier()
    handler.config = {"resize": RESIZE, "crop": CROP, "interpolation": "bicubic", "mean": MEAN, "std": STD, **settings}
    handler.device = torch.device("cpu")
    handler.prepare()
    Image.MAX_IMAGE_PIXELS = picture.MAX_PIXELS
    return lambda data: handler.normalise([handler.decode(data)])[0]  # type: ignore[no-any-return]


def photograph(source: Image.Image, size: tuple[int, int], noise: float) -> Image.Image:
    """`source` at another size, with a sensor's noise (standard deviation in grey levels), so that its entropy is a photograph's."""
    values = np.asarray(source.convert("RGB").resize(size, Image.Resampling.BICUBIC)).astype(np.float32)
    values += np.random.default_rng(0).standard_normal(values.shape, dtype=np.float32) * noise
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def encode(picture: Image.Image, subsampling: int | None, progressive: bool = False) -> bytes:
    """JPEG of quality 85 in that subsampling, PNG for none."""
    buffer = io.BytesIO()
    if subsampling is None:
        picture.save(buffer, "PNG", compress_level=3)
    else:
        picture.save(buffer, "JPEG", quality=85, subsampling=subsampling, progressive=progressive)
    return buffer.getvalue()


def milliseconds(ways: dict[str, Way], data: bytes, rounds: int) -> dict[str, list[float]]:
    """One call of each in turn, `rounds` times, after one that warms up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            begin = time.perf_counter()
            way(data)
            if number:
                times[name].append((time.perf_counter() - begin) * 1e3)
    return times


def spread(values: list[float]) -> str:
    """Median and range."""
    digits = 1 if statistics.median(values) >= 10 else 2
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} .. {max(values):.{digits}f})"


def cost_table(ways: dict[str, Way], source: Image.Image, wanted: list[str], rounds: int) -> Table:
    """Milliseconds by size and format, and how many times less than stock ours costs, round by round."""
    table = Table(title="file -> float32 (3, 224, 224), ms: median (least .. most)")
    for column in ("megapixels", "", "MB", *ways, "stock / ours"):
        table.add_column(column, justify="left" if not column else "right")
    for shape, (kind, (subsampling, noise)) in itertools.product(wanted, CASES.items()):
        data = encode(photograph(source, SHAPES[shape], noise), subsampling, kind == "progressive")
        times = milliseconds(ways, data, rounds)
        ratios = [a / b for a, b in zip(times["stock"], times["ours"], strict=True)]
        table.add_row(shape, kind, f"{len(data) / 1e6:.2f}", *map(spread, times.values()), spread(ratios))
    return table


def sample_files() -> Iterator[Path]:
    """The model's samples and the pictures in scikit-image's wheel that have 8 bits and no very long side."""
    folders = MODEL / "samples", Path(skimage.data.__file__).parent
    for path in itertools.chain.from_iterable(sorted(folder.iterdir()) for folder in folders):
        if path.suffix in (".png", ".jpg"):
            with Image.open(path) as picture:
                if (
                    not picture.mode.startswith("I")
                    and picture.mode in ("L", "RGB", "P", "1")
                    and max(picture.size) <= 4 * min(picture.size)
                ):
                    yield path


def scores_table(ours: Way) -> Table:
    """Largest difference of a probability between ours and stock, as the file is and as large JPEGs; "!" where the best label changed."""
    sys.path.insert(0, str(MODEL))
    model = importlib.import_module("export").build()
    table = Table(title="scores: largest |ours - stock| of 1000 probabilities (! the best label changed)")
    columns: dict[str, list[float]] = {"as it is": []} | {f"JPEG, {short}": [] for short in LARGE}
    for column in ("picture", *columns):
        table.add_column(column, justify="left" if column == "picture" else "right")
    for path in sample_files():
        with Image.open(path) as opened:
            files = [path.read_bytes(), *(encode(enlarged(opened, short), 2) for short in LARGE)]
        cells = []
        for data, found in zip(files, columns.values(), strict=True):
            with torch.inference_mode():
                wanted, got = model(torch.stack([stock(data), ours(data)])).softmax(1)
            found.append(float((wanted - got).abs().max()))
            cells.append(f"{found[-1]:.4f}{'' if wanted.argmax() == got.argmax() else ' !'}")
        table.add_row(path.name, *cells)
    table.add_section()
    table.add_row("largest", *(f"{max(found):.4f}" for found in columns.values()))
    table.add_row("median", *(f"{statistics.median(found):.4f}" for found in columns.values()))
    return table


def enlarged(picture: Image.Image, short: int) -> Image.Image:
    """A photograph of that shorter side."""
    factor = short / min(picture.size)
    return photograph(picture, (max(short, round(picture.width * factor)), max(short, round(picture.height * factor))), 4)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a folder with another handlers/")
    parser.add_argument("--megapixels", default=",".join(SHAPES), help=f"of {', '.join(SHAPES)}; none: no times")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--left", type=float, help="scaled_decode as a number; 0: false")
    parser.add_argument("--scores", action="store_true", help="the scores of every sample picture too, about two minutes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scaled = {} if options.left is None else {"scaled_decode": options.left or False}
    before = {"before": way_of(options.before)} if options.before else {}
    ways: dict[str, Way] = {"stock": stock, **before, "ours": way_of(ROOT, **scaled)}
    console = Console(width=max(150, Console().width))
    with Image.open(MODEL / "samples" / "coffee.jpg") as source:
        if wanted := [shape for shape in options.megapixels.split(",") if shape in SHAPES]:
            console.print(cost_table(ways, source, wanted, options.rounds))
    if options.scores:
        console.print(scores_table(ways["ours"]))
    simplejpeg = importlib.util.find_spec("simplejpeg") is not None
    console.print(f"one thread; simplejpeg {'installed' if simplejpeg else 'not installed'}")


if __name__ == "__main__":
    main()

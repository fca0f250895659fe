"""Pictures as they were when somebody had looked at them: BATCHLINE_BASELINES=1 writes them anew."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from matplotlib.image import imread

from batchline.report.style import LIGHT, Figure, png

FOLDER = Path(__file__).parent / "baseline"
DPI = 54  # 405 pixels wide
OFF, MEAN_OFF = 0.25, 0.01  # of full brightness, after eight by eight pixels are one: another version's hinting moves letters


def like_baseline(figure: Figure) -> None:
    """Fails where the picture differs from the one in the folder, or there is none."""
    now, path = png(figure, LIGHT, dpi=DPI), FOLDER / f"{figure.key}.png"
    if os.environ.get("BATCHLINE_BASELINES"):
        path.write_bytes(now)
    before, after = (_coarse(imread(source)) for source in (path, io.BytesIO(now)))
    assert before.shape == after.shape
    off = np.abs(before - after)
    assert off.max() < OFF and off.mean() < MEAN_OFF


def _coarse(picture: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """In colour, so that one thing drawn in another's colour is seen."""
    height, width = (size // 8 * 8 for size in picture.shape[:2])
    return picture[:height, :width, :3].reshape(height // 8, 8, width // 8, 8, 3).mean(axis=(1, 3))

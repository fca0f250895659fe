"""The real models, and small ones of the other kinds, each loaded once in this process."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from batchline.handlers import ImageSegmenter, ObjectDetector, TextClassifier
from hypothesis import HealthCheck, settings

from tests.harness import ROOT, Worker, entry_class, load, unpack

settings.register_profile(
    "unit", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("unit")


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archives")


@pytest.fixture(scope="session")
def digits(archives: Path) -> Worker:
    return load(entry_class("digits"), unpack("digits", archives), "digits")


@pytest.fixture(scope="session")
def efficientnet(archives: Path) -> Worker:
    return load(entry_class("efficientnet_lite0"), unpack("efficientnet_lite0", archives), "efficientnet_lite0")


@pytest.fixture(scope="session")
def minilm(archives: Path) -> Worker:
    return load(entry_class("minilm"), unpack("minilm", archives), "minilm")


@pytest.fixture(scope="session")
def samples() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in ROOT.glob("models/*/samples/*")}


@pytest.fixture(autouse=True)
def one_thread_count() -> Iterator[None]:
    """A test that sets torch's threads leaves them as they were."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


# ---- small models of the other kinds


def facts(name: str, **model: str) -> dict[str, Any]:
    return {"model": {"modelName": name, "modelVersion": "1.0", **model}}


class Bag(torch.nn.Module):
    """The mean of the real tokens' vectors, and a line from it to three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(30522, 16)
        self.line = torch.nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weight = mask.unsqueeze(-1).float()
        return self.line((self.embedding(ids) * weight).sum(1) / weight.sum(1))  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def bag() -> torch.nn.Module:
    torch.manual_seed(0)
    return Bag().eval()


@pytest.fixture(scope="session")
def classifier(bag: torch.nn.Module, minilm: Worker, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    folder = tmp_path_factory.mktemp("classifier")
    ids = torch.ones(2, 5, dtype=torch.int64)
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    torch.export.save(torch.export.export(bag, (ids, ids.clone()), dynamic_shapes=(dims, dims)), folder / "model.pt2")
    shutil.copy(Path(minilm.handler.model_dir) / "tokenizer.json", folder)
    (folder / "index_to_name.json").write_text('{"0": "sad", "1": ["n01", "so so"], "2": "glad"}')
    return load(TextClassifier, folder, "mood", config={"max_tokens": 16}, manifest=facts("mood", serializedFile="model.pt2"))


class Shades(torch.nn.Module):
    """Segments a picture by brightness into 300 classes, pixel by pixel."""

    classes = 300

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(self.classes, dtype=torch.float32).view(1, -1, 1, 1)
        return -(x.mean(1, keepdim=True) * (self.classes - 1) - steps).abs()

    @classmethod
    def of(cls, grey: float) -> int:
        """The class of a grey from 0 to 255."""
        return round(grey * (cls.classes - 1) / 255)


@pytest.fixture(scope="session")
def shades_archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The model's folder and manifest; nothing writes to it."""
    folder = tmp_path_factory.mktemp("shades")
    dims = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
    torch.export.save(torch.export.export(Shades(), (torch.rand(2, 3, 8, 6),), dynamic_shapes=(dims,)), folder / "model.pt2")
    return folder, facts("shades", serializedFile="model.pt2")


@pytest.fixture(scope="session")
def shades(shades_archive: tuple[Path, dict[str, Any]]) -> Worker:
    folder, manifest = shades_archive
    return load(ImageSegmenter, folder, "shades", config={"size": [24, 32]}, manifest=manifest)


DOTS = """
import torch

class Dots(torch.nn.Module):
    '''Four boxes a picture, from its size and mean colour: each picture by itself.'''

    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(3, 4)

    def forward(self, pictures):
        found = []
        for picture in pictures:
            scores = self.line(picture.mean((1, 2))).softmax(0)
            height, width = picture.shape[1:]
            boxes = torch.tensor([0.0, 0.0, width, height]) * scores.unsqueeze(1)
            found.append({"boxes": boxes, "labels": torch.arange(1, 5), "scores": scores})
        return found
"""


@pytest.fixture(scope="session")
def dots(tmp_path_factory: pytest.TempPathFactory) -> Worker:
    folder = tmp_path_factory.mktemp("dots")
    (folder / "dots_net.py").write_text(DOTS)
    torch.manual_seed(0)
    line = torch.nn.Linear(3, 4)
    torch.save({f"line.{name}": value for name, value in line.state_dict().items()}, folder / "weights.pt")
    sys.path.insert(0, str(folder))
    try:
        manifest = facts("dots", serializedFile="weights.pt", modelFile="dots_net.py")
        return load(ObjectDetector, folder, "dots", config={"min_score": 0.0}, manifest=manifest)
    finally:
        sys.path.remove(str(folder))

"""docs/your-own-model.md, word by word: a fourth model is a folder and nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision import transforms

from batchline import server
from batchline.archive import build
from batchline.client import Client
from batchline.properties import read_configuration
from tests.harness import ROOT
from tests.server.served import copy_configuration

PAGE = (ROOT / "docs" / "your-own-model.md").read_text()


def files_of_the_page() -> dict[str, str]:
    """`models/...` in the text names the code block after it."""
    found = re.findall(r"`(models/flowers/[\w.-]+)`[^`]*?\n```\w*\n(.*?)\n```", PAGE, re.DOTALL)
    return {name: body + "\n" for name, body in found}


def config_lines() -> tuple[str, str]:
    load = re.search(r"^load_models=.*$", PAGE, re.MULTILINE)
    line = re.search(r'^  "flowers": .*\\$', PAGE, re.MULTILINE)
    assert load and line
    return load[0], line[0]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    written = files_of_the_page()
    assert set(written) == {f"models/flowers/{name}" for name in ("handler.py", "model.py", "export.py", "model-config.yaml", "labels.txt")}
    for name, body in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(body)
    (tmp_path / "models" / "flowers" / "samples").mkdir()
    with Image.open(ROOT / "models" / "efficientnet_lite0" / "samples" / "chelsea.png") as picture:
        picture.convert("RGB").save(tmp_path / "models" / "flowers" / "samples" / "rose.jpg")
    return tmp_path


def directly(home: Path) -> list[tuple[str, float]]:
    """The same weights and picture through torchvision alone."""
    sys.path.insert(0, str(home / "models" / "flowers"))
    try:
        from model import Flowers
    finally:
        sys.path.pop(0)
    torch.manual_seed(0)
    model = Flowers().eval()
    steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
    reference = transforms.Compose([*steps, transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    with Image.open(home / "models" / "flowers" / "samples" / "rose.jpg") as picture, torch.inference_mode():
        scores = model(reference(picture.convert("RGB"))[None]).softmax(1)[0]
    names = (home / "models" / "flowers" / "labels.txt").read_text().split()
    return sorted(zip(names, scores.tolist(), strict=True), key=lambda pair: -pair[1])


def test_a_model_of_ones_own(home: Path) -> None:
    store = home / "model_store"
    for name in ("digits", "efficientnet_lite0", "minilm"):
        store.mkdir(exist_ok=True)
        (store / f"{name}.mar").symlink_to(ROOT / "model_store" / f"{name}.mar")
    build("flowers", home / "models", store, home / "build")
    config, _ = copy_configuration(home)
    load, line = config_lines()
    text = re.sub(r"^load_models=.*$", load, config.read_text(), flags=re.MULTILINE)
    config.write_text(re.sub(r"^models=\{.*$", lambda match: f"{match[0]}\n{line}", text, count=1, flags=re.MULTILINE))
    server.start(config, store, home)
    try:
        answer = Client.of(read_configuration(config), home).predict("flowers", (home / "models/flowers/samples/rose.jpg").read_bytes())
    finally:
        server.stop(home)
    wanted = directly(home)
    assert answer.status == 200
    import json

    got = json.loads(answer.body)
    assert [row["label"] for row in got] == [name for name, _ in wanted]
    assert [row["score"] for row in got] == pytest.approx([score for _, score in wanted], abs=2e-3)

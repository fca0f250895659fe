"""The forms a model can run in: the same numbers from each, and torch where one is missing."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from batchline.handlers import forms, runtime
from batchline.handlers.errors import ModelLoadError
from torch import nn

from batchline import race
from batchline.convert import convert
from batchline.errors import ArchiveError
from batchline.recipe import PRECISIONS, RUNTIMES, Recipe

CPU = torch.device("cpu")
FACTS = {"model": {"modelName": "m", "modelVersion": "1.0", "serializedFile": "model.pt2"}}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def archive(net: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked archive with the weights and their graph."""
    folder = tmp_path_factory.mktemp("archive")
    program = torch.export.export(net, (torch.zeros(2, 3, 8, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, folder / "model.pt2")
    assert convert(folder / "model.pt2", "onnxruntime", folder) == folder / "model.onnx"
    return folder


@pytest.fixture
def one_thread() -> Any:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


KINDS = {"torch": nn.Module, "onnxruntime": forms.OnnxModel, "openvino": forms.OpenVinoModel, "torch.compile": forms.Compiled}


@pytest.mark.parametrize("name", KINDS)
def test_every_form_gives_the_same_numbers(net: nn.Module, archive: Path, one_thread: Any, name: str) -> None:
    """For any batch size and memory layout, also after the worker's threads have changed."""
    model = runtime.load_model(archive, FACTS, {"runtime": name}, CPU)
    assert isinstance(model, KINDS[name])
    for size, threads in ((1, 1), (3, 2), (2, 1)):
        one_thread(threads)
        x = torch.randn(size, 3, 8, 8)
        for layout in (torch.contiguous_format, torch.channels_last):
            with torch.inference_mode():
                found = model(x.to(memory_format=layout))
                torch.testing.assert_close(found, net(x), rtol=1e-4, atol=1e-5)
            kept = found.clone()
            with torch.inference_mode():
                model(torch.randn(size, 3, 8, 8))
            assert torch.equal(found, kept), "a later batch wrote over an earlier one's result"


REDUCED = [("openvino", "bf16"), ("torch", "bf16"), ("onnxruntime", "int8")]


@pytest.mark.parametrize(("name", "precision"), REDUCED)
def test_less_precision_only_when_asked_for(net: nn.Module, archive: Path, name: str, precision: str) -> None:
    x = torch.randn(4, 3, 8, 8)
    convert(archive / "model.pt2", name, archive, precision)
    exact, rough = (runtime.load_model(archive, FACTS, {"runtime": name, "precision": p}, CPU) for p in ("f32", precision))
    with torch.inference_mode():
        torch.testing.assert_close(exact(x), net(x), rtol=1e-4, atol=1e-5)
        found = rough(x)
        torch.testing.assert_close(found, net(x), rtol=0.05, atol=0.05)
    assert found.dtype == torch.float32 and not torch.equal(found, exact(x).detach())


def test_an_unknown_precision(archive: Path) -> None:
    with pytest.raises(ModelLoadError, match="precision must be one of"):
        runtime.load_model(archive, FACTS, {"runtime": "openvino", "precision": "int3"}, CPU)


def test_the_choice_is_the_config_s_then_the_race_s_then_torch(tmp_path: Path) -> None:
    assert forms.wanted(tmp_path, {}) == ("torch", "f32")
    (tmp_path / "runtime.json").write_text(json.dumps({"runtime": "openvino", "precision": "bf16"}))
    assert forms.wanted(tmp_path, {}) == ("openvino", "bf16")
    assert forms.wanted(tmp_path, {"precision": "f32"}) == ("openvino", "f32")
    assert forms.wanted(tmp_path, {"runtime": "torch.compile"}) == ("torch.compile", "f32"), "a raced precision is its form's alone"
    for config in ({}, {"precision": "f32"}, {"runtime": "torch.compile"}):
        recipe = Recipe("m", tmp_path, config)
        assert (recipe.runtime, recipe.precision) == forms.wanted(tmp_path, config)


@pytest.mark.parametrize(("precision", "runtime"), [("bf16", "onnxruntime"), ("int8", "openvino"), ("int8", "torch")])
def test_a_precision_that_the_runtime_does_not_compute_in(tmp_path: Path, precision: str, runtime: str) -> None:
    with pytest.raises(ModelLoadError, match=f"{precision} is computed by"):
        forms.wanted(tmp_path, {"runtime": runtime, "precision": precision})


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"runtime": "tensorrt"}', '{"runtime": 7}'])
def test_a_choice_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "runtime.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"runtime\.json"):
        forms.wanted(tmp_path, {})
    with pytest.raises(ArchiveError, match=r"runtime\.json"):
        _ = Recipe("m", tmp_path, {}).runtime


def test_both_sides_know_the_same_forms() -> None:
    assert forms.RUNTIMES == RUNTIMES and forms.PRECISIONS == PRECISIONS and forms.REDUCED == race.REDUCED


@pytest.mark.parametrize(("name", "library"), [("onnxruntime", "onnxruntime"), ("openvino", "openvino")])
def test_a_missing_library_leaves_torch_and_says_so_once(
    net: nn.Module, archive: Path, name: str, library: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with caplog.at_level(logging.WARNING):
        model = runtime.load_model(archive, FACTS, {"runtime": name}, CPU)
    assert isinstance(model, nn.Module)
    (said,) = [record.getMessage() for record in caplog.records if "RUNTIME_FALLBACK" in record.getMessage()]
    assert f"pip install {library}" in said


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "aotinductor"])
def test_an_archive_without_the_file_leaves_torch(archive: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "model.pt2").write_bytes((archive / "model.pt2").read_bytes())
    assert isinstance(runtime.load_model(tmp_path, FACTS, {"runtime": name}, CPU), nn.Module)
    assert "the archive has no model." in caplog.text


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "aotinductor"])
def test_a_broken_file_leaves_torch(archive: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "model.pt2").write_bytes((archive / "model.pt2").read_bytes())
    for file in (forms.GRAPH, forms.PACKAGE):
        (tmp_path / file).write_bytes(b"no model")
    assert isinstance(runtime.load_model(tmp_path, FACTS, {"runtime": name}, CPU), nn.Module)
    assert "RUNTIME_FALLBACK" in caplog.text


def test_what_cannot_be_compiled_runs_as_it_was(net: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no C++ compiler\nand a long story")

    model = forms.Compiled(net)
    model.run = broken
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(model(x), net(x)) and model.run is net
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 7))
    assert caplog.text.count("RUNTIME_FALLBACK") == 1


def test_only_a_torch_export_archive_can_be_converted(tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(b"")
    with pytest.raises(ArchiveError, match=r"only a torch\.export archive"):
        convert(tmp_path / "w.pt", "onnxruntime", tmp_path)
    assert convert(tmp_path / "w.pt", "torch", tmp_path) is None
    (tmp_path / "w.pt2").write_bytes(b"no archive")
    with pytest.raises(ArchiveError, match=r"could not become model\.onnx"):
        convert(tmp_path / "w.pt2", "openvino", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.pt", "w.pt2"]

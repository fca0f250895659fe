"""Archives built by torch-model-archiver, and what is refused before a server sees it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from batchline.archive import build, check, make_weights
from batchline.errors import ArchiveError
from batchline.recipe import read_recipe
from tests import checkout
from tests.harness import ROOT, STORE, entry_class, load

HANDLER = "from batchline.handlers import BatchHandler\n\n\nclass Handler(BatchHandler):\n    pass\n"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """models/tiny: weights that lie in the folder, no export.py."""
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "handler.py").write_text(HANDLER)
    (folder / "model-config.yaml").write_text("responseTimeout: 60\nstartupTimeout: 60\n")
    shutil.copy(ROOT / "build" / "digits" / "model.pt2", folder / "model.pt2")
    return tmp_path / "models"


def make(models: Path) -> Path:
    return build("tiny", models, models.parent / "store", models.parent / "build")


def test_an_archive_is_self_contained() -> None:
    for name in ("digits", "efficientnet_lite0", "minilm"):
        with zipfile.ZipFile(STORE / f"{name}.mar") as archive:
            names = set(archive.namelist())
        shipped = {f"batchline/handlers/{path.name}" for path in (ROOT / "handlers").glob("*.py")}
        assert names >= shipped | {"batchline/__init__.py", "handler.py", "model-config.yaml", "model.pt2", "MAR-INF/MANIFEST.json"}
        assert not [name for name in names if name.endswith((".pyc", "export.py")) or "__pycache__" in name]
        assert any(name.startswith("samples/") for name in names)


def test_build_keeps_a_folder_of_the_models_name_in_tmpdir(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch-model-archiver deletes $TMPDIR/<model-name>."""
    precious = tmp_path / "tmp" / "tiny" / "thesis.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    assert make(models).is_file()
    assert precious.read_text() == "years of work"


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ("import no_such_package\n" + HANDLER, "No module named 'no_such_package'"),
        (HANDLER + "    def broken(:\n", "SyntaxError"),
        (HANDLER + "\n\nclass Helper:\n    pass\n", "must define exactly one class"),
        ("from batchline.handlers import BatchHandler\n", "It defines none"),
        ("from .utils import x\n" + HANDLER, "attempted relative import"),
        ("from batchline.server import start\n" + HANDLER, "No module named 'batchline.server'"),
    ],
)
def test_a_handler_that_cannot_be_imported(models: Path, handler: str, said: str) -> None:
    (models / "tiny" / "handler.py").write_text(handler)
    with pytest.raises(ArchiveError) as caught:
        make(models)
    assert said in str(caught.value)
    assert "handler.py" in str(caught.value)
    assert not list(models.parent.glob("store/*")), "a broken archive landed in the store"


def test_a_broken_build_leaves_the_archive_that_was_there(models: Path) -> None:
    before = make(models).read_bytes()
    (models / "tiny" / "handler.py").write_text("import no_such_package\n" + HANDLER)
    with pytest.raises(ArchiveError):
        make(models)
    assert (models.parent / "store" / "tiny.mar").read_bytes() == before


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "handler.py").unlink(), "has no handler.py"),
        (lambda folder: (folder / "model-config.yaml").write_text("a: [1"), "is not valid YAML"),
        (lambda folder: (folder / "model-config.yaml").write_text("- 1"), "keys and values"),
        (lambda folder: (folder / "model.pt2").unlink(), "must hold one weights file"),
        (lambda folder: (folder / "second.onnx").write_text(""), "must hold one weights file"),
        (lambda folder: (folder / "export.py").write_text("raise SystemExit('no data here')"), "export.py failed"),
        (lambda folder: (folder / "export.py").write_text(""), "wrote no weights"),
    ],
)
def test_a_folder_that_lacks_something(models: Path, spoil: object, said: str) -> None:
    spoil(models / "tiny")  # type: ignore[operator]
    with pytest.raises(ArchiveError, match=said):
        make(models)


@pytest.mark.parametrize("name", ["nowhere", "../etc", "a b", "a..b", ""])
def test_a_name_that_is_no_folder(models: Path, name: str) -> None:
    with pytest.raises(ArchiveError):
        build(name, models)


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.mar").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(ArchiveError, match="is not a model archive"):
        check(tmp_path / "x.mar")


def test_an_inherited_pythonpath_does_not_reach_the_check(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "helper_module.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    (models / "tiny" / "handler.py").write_text("import helper_module\n" + HANDLER)
    with pytest.raises(ArchiveError, match="helper_module"):
        make(models)


def test_the_command_line_prints_one_message(models: Path) -> None:
    command = [sys.executable, "-m", "batchline", "archive", "nowhere", "--models", str(models)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=models)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "Traceback" not in done.stderr and "nowhere" in done.stderr


def test_everything_in_the_folder_is_shipped_but_what_makes_it(models: Path) -> None:
    folder = models / "tiny"
    texts = {
        "helpers.py": "WORD = 'kept'\n",
        "vocab/words.txt": "a b c",
        "vocab/deep/more.bin": "\x00",
        "labels.txt": "zero\none\n",
        "samples/a.json": json.dumps([1.0] * 64),
        "notes.md": "notes",
    }
    left_out = (".secret", ".cache/x", "__pycache__/helpers.cpython-311.pyc", "vocab/.hidden", "vocab/__pycache__/x.pyc")
    for name in (*texts, *left_out):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(texts.get(name, "secret"))
    (folder / "handler.py").write_text("import helpers\n\nassert helpers.WORD == 'kept'\n" + HANDLER)
    (folder / "requirements.txt").write_text("six\n")
    with zipfile.ZipFile(make(models)) as archive:
        shipped = {name for name in archive.namelist() if not name.startswith("batchline/") and not name.endswith("/")}
        assert {name: archive.read(name).decode() for name in texts} == texts
        manifest = json.loads(archive.read("MAR-INF/MANIFEST.json"))["model"]
    entry = {"handler.py", "model-config.yaml", "model.pt2", "requirements.txt", "MAR-INF/MANIFEST.json"}
    assert shipped == {*texts, *entry}
    assert manifest["requirementsFile"] == "requirements.txt"


def test_without_requirements_the_manifest_names_none(models: Path) -> None:
    with zipfile.ZipFile(make(models)) as archive:
        assert "requirementsFile" not in json.loads(archive.read("MAR-INF/MANIFEST.json"))["model"]


@pytest.mark.parametrize("name", ["queue.py", "torch/__init__.py", "batchline/x.txt", "numpy.py", "json/data.csv"])
def test_a_file_that_would_hide_a_module(models: Path, name: str) -> None:
    (models / "tiny" / name).parent.mkdir(exist_ok=True)
    (models / "tiny" / name).write_text("")
    top = name.split("/")[0]
    with pytest.raises(ArchiveError) as caught:
        make(models)
    assert str(caught.value).startswith(f"{models / 'tiny' / top} would hide the module {top.removesuffix('.py')}")
    assert not list(models.parent.glob("store/*"))


@pytest.mark.parametrize("name", ["queue.txt", "torch.json"])
def test_a_file_that_hides_nothing(models: Path, name: str) -> None:
    (models / "tiny" / name).write_text("x")
    with zipfile.ZipFile(make(models)) as archive:
        assert archive.read(name) == b"x"


EXPORT = """
import sys
from pathlib import Path
out = Path(sys.argv[1])
(out / "model.pt2").write_bytes(Path(__file__).with_name("data.csv").read_bytes())
"""


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("data.csv", True),
        ("export.py", True),
        ("net/layers.py", True),
        ("handler.py", False),
        ("labels.txt", False),
        ("model-config.yaml", False),
        ("samples/a.json", False),
    ],
)
def test_weights_are_made_again_when_what_export_may_read_is_newer(models: Path, name: str, again: bool) -> None:
    folder, build_dir = models / "tiny", models.parent / "build"
    (folder / "model.pt2").unlink()
    (folder / "export.py").write_text(EXPORT)
    for other in ("data.csv", "net/layers.py", "labels.txt", "samples/a.json"):
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / other).write_text("first")
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    recipe = read_recipe("tiny", models)
    weights = make_weights(recipe, build_dir) / "model.pt2"
    assert weights.read_bytes() == b"first"
    made = weights.stat()
    assert (make_weights(recipe, build_dir) / "model.pt2").stat().st_mtime_ns == made.st_mtime_ns
    weights.write_bytes(b"old")
    os.utime(weights, (1000, 1000))
    os.utime(folder / name, (2000, 2000))
    make_weights(recipe, build_dir)
    assert weights.read_bytes() == (b"first" if again else b"old")


def built(text: str) -> list[str]:
    """The archives that a `make` output says were built."""
    return sorted(line.removeprefix("model_store/").removesuffix(".mar") for line in text.splitlines() if line.endswith(".mar"))


def test_make_archive_builds_what_changed_and_nothing_else(tmp_path: Path) -> None:
    home = checkout.copy(tmp_path)
    checkout.run("make -j2 archive", home)
    assert built(checkout.run("make archive", home).stdout) == []
    os.utime(home / "models" / "digits" / "labels.txt")
    assert built(checkout.run("make archive", home).stdout) == ["digits"]
    os.utime(home / "handlers" / "payload.py")
    assert built(checkout.run("make -j2 archive", home).stdout) == ["digits", "efficientnet_lite0", "minilm"]
    assert built(checkout.run("make archive", home).stdout) == []


def test_the_winner_of_a_race_is_packed_beside_the_weights(models: Path) -> None:
    """And made anew only when the weights are newer; the archive serves from it."""
    (models / "tiny" / "runtime.json").write_text('{"runtime": "onnxruntime"}')
    for _ in range(2):
        with zipfile.ZipFile(make(models)) as archive:
            assert {"model.pt2", "model.onnx", "runtime.json"} <= set(archive.namelist())
            archive.extractall(models.parent / "unpacked")
        form = models.parent / "build" / "forms" / "tiny" / "model.onnx"
        first = form.stat().st_mtime_ns
    assert form.stat().st_mtime_ns == first
    loaded = load(entry_class("digits"), models.parent / "unpacked", config={"shapes": [[64]], "range": [0, 16]})
    assert type(loaded.handler.model).__name__ == "OnnxModel"
    assert loaded.one([0.0] * 64).status == 200
    assert isinstance(loaded.handler.differentiable(), torch.nn.Module), "explanations need gradients"
    (models / "tiny" / "runtime.json").write_text('{"runtime": "tensorrt"}')
    with pytest.raises(ArchiveError, match="runtime must be one of"):
        make(models)

"""models/NAME -> model_store/NAME.mar, with torch-model-archiver; then the archive is unpacked and imported, as a worker would.

What fails here, with its own traceback, would otherwise fail in the server's retry loop.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from batchline.convert import convert
from batchline.errors import ArchiveError
from batchline.recipe import CHOICE, LABELLED, WEIGHT_SUFFIXES, Recipe, read_recipe

PACKAGE = Path(__file__).resolve().parent
# What stays out of the archive, or gets into it by an argument of the archiver's own. Everything else of the folder goes in.
NOT_EXTRA = ("handler.py", "export.py", "model-config.yaml", "requirements.txt", "__pycache__", LABELLED)
# A worker's path begins with the archive: a module of one of these names there would take the place of the real one.
TAKEN = sys.stdlib_module_names | {"batchline", "numpy", "PIL", "psutil", "torch", "torchvision", "ts", "yaml"}
# -I keeps PYTHONPATH, the user's site and the current folder out: nothing but the archive and site-packages. batchline
# itself may be installed there, so the import must prove that it took the archive's.
IMPORT_CHECK = """
import sys
sys.path.insert(0, ".")
sys.meta_path = [finder for finder in sys.meta_path if "batchline" not in getattr(finder, "__module__", "")]  # an editable install's
import os, importlib
import batchline.handlers as handlers
assert os.path.realpath(handlers.__file__).startswith(os.path.realpath(".")), handlers.__file__
from ts.utils.util import list_classes_from_module
module = importlib.import_module(sys.argv[1])
classes = list_classes_from_module(module)
if not hasattr(module, "handle") and len(classes) != 1:
    names = ", ".join(c.__name__ for c in classes) or "none"
    rule = "must define exactly one class, for TorchServe takes the only one. Move helpers to another file."
    raise SystemExit(f"{sys.argv[1]}.py {rule} It defines {names}.")
"""


def handlers_folder() -> Path:
    """The source of batchline.handlers, in a checkout or installed."""
    import importlib.util

    spec = importlib.util.find_spec("batchline.handlers")
    if spec is None or not spec.submodule_search_locations:
        raise ArchiveError("batchline.handlers is not installed; make setup")
    return Path(next(iter(spec.submodule_search_locations)))


def build(name: str, models: Path = Path("models"), store: Path = Path("model_store"), build_dir: Path = Path("build")) -> Path:
    """Builds and checks one archive.

    Args:
        name: the model's folder under `models`.
        models: the folder of model folders.
        store: where NAME.mar goes; a broken archive never lands there.
        build_dir: where the weights are kept between builds.

    Raises:
        ArchiveError: the folder lacks something, the weights could not be made, or the archive's handler cannot be imported.
    """
    recipe = read_recipe(name, models)
    weights_folder = make_weights(recipe, build_dir)
    with tempfile.TemporaryDirectory(prefix="batchline-archive-") as scratch:
        mar = _pack(recipe, weights_folder, forms_folder(name, build_dir), Path(scratch))
        check(mar)
        store.mkdir(parents=True, exist_ok=True)
        arriving = store / f".{name}.mar.{os.getpid()}"
        shutil.copy(mar, arriving)
        os.replace(arriving, store / f"{name}.mar")
    return store / f"{name}.mar"


def forms_folder(name: str, build_dir: Path = Path("build")) -> Path:
    """Where other forms of a model's weights are kept between builds."""
    return build_dir / "forms" / name


def make_weights(recipe: Recipe, build_dir: Path) -> Path:
    """The folder with the model's weights: its own folder, or build/NAME, where export.py writes them when it is newer than they are."""
    if recipe.export is None:
        return recipe.folder
    folder = build_dir / recipe.name
    sources = _sources(recipe)
    made = [path for path in folder.glob("*") if path.suffix in WEIGHT_SUFFIXES]
    if made and min(p.stat().st_mtime for p in made) > max(p.stat().st_mtime for p in sources):
        return folder
    with tempfile.TemporaryDirectory(prefix="batchline-export-") as scratch:
        _export(recipe, Path(scratch))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path in sorted(Path(scratch).iterdir(), key=lambda p: p.suffix in WEIGHT_SUFFIXES):  # weights last: they say it is done
            shutil.move(path, folder / path.name)
            (folder / path.name).touch()
    return folder


def _sources(recipe: Recipe) -> list[Path]:
    """What export.py may read: everything in the folder but what only the handler does."""
    served = {recipe.handler, recipe.folder / "model-config.yaml", recipe.folder / "labels.txt", recipe.folder / CHOICE, *recipe.samples}
    return [path for path in recipe.folder.rglob("*") if path.is_file() and path not in served and "__pycache__" not in path.parts]


def _export(recipe: Recipe, out: Path) -> None:
    """Runs export.py in its own process, so that its packages are not needed to serve, nor here."""
    command = [sys.executable, str(recipe.export), str(out)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print("\n".join(f"  {line}" for line in done.stdout.splitlines() if line.strip()))
    if done.returncode:
        raise ArchiveError(f"{recipe.export} failed (its output above); no archive was built.")
    if not any(path.suffix in WEIGHT_SUFFIXES for path in out.iterdir()):
        raise ArchiveError(f"{recipe.export} wrote no weights ({', '.join(WEIGHT_SUFFIXES)}) into the folder it was given.")


def weights_of(folder: Path) -> Path:
    """The one weights file in a folder; raises ArchiveError where there is none or a second."""
    found = sorted(path for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise ArchiveError(
            f"{folder} must hold one weights file ({', '.join(WEIGHT_SUFFIXES)}) or an export.py that makes it; it has {names}."
        )
    return found[0]


def _pack(recipe: Recipe, weights_folder: Path, form_folder: Path, scratch: Path) -> Path:
    """Runs torch-model-archiver on a staged tree. It deletes $TMPDIR/<model-name> first, so it gets a TMPDIR of its own."""
    staged, out, tmp = scratch / "extra", scratch / "out", scratch / "tmp"
    for folder in (staged, out, tmp):
        folder.mkdir()
    weights = weights_of(weights_folder)
    _stage(recipe, weights_folder, staged)
    if form := convert(weights, recipe.runtime, form_folder, recipe.precision):
        shutil.copy(form, staged / form.name)
    command = [str(Path(sys.executable).with_name("torch-model-archiver")), "--model-name", recipe.name, "--version", recipe.version]
    command += ["--serialized-file", str(weights), "--handler", str(recipe.handler), "--export-path", str(out)]
    command += ["--config-file", str(recipe.folder / "model-config.yaml"), "--extra-files", str(staged)]
    command += ["--model-file", str(recipe.model_file)] if recipe.model_file and weights.suffix in (".pt", ".pth") else []
    requirements = recipe.folder / "requirements.txt"  # TorchServe looks only at the file that the manifest names
    command += ["--requirements-file", str(requirements)] if requirements.is_file() else []
    try:
        done = subprocess.run(command, env={**os.environ, "TMPDIR": str(tmp)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except FileNotFoundError:
        raise ArchiveError("torch-model-archiver is not installed; make setup, or pip install torch-model-archiver==0.12.0") from None
    if done.returncode:
        raise ArchiveError(f"{done.stdout.rstrip()}\ntorch-model-archiver failed on {recipe.folder} (its output above).")
    return out / f"{recipe.name}.mar"


def _stage(recipe: Recipe, weights_folder: Path, staged: Path) -> None:
    """Everything that goes beside handler and weights: the archiver flattens a folder it is given, so the package lies inside one."""
    package = staged / "batchline"
    package.mkdir()
    shutil.copy(PACKAGE / "__init__.py", package / "__init__.py")
    shutil.copytree(handlers_folder(), package / "handlers", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    for folder in dict.fromkeys((recipe.folder, weights_folder)):
        for source in sorted(folder.iterdir()):
            if source.name.startswith(".") or source.name in NOT_EXTRA or source.suffix in WEIGHT_SUFFIXES:
                continue
            if source.stem in TAKEN and (source.is_dir() or source.suffix == ".py"):
                raise ArchiveError(f"{source} would hide the module {source.stem} from the worker; give it another name.")
            if source.is_dir():
                shutil.copytree(source, staged / source.name, ignore=shutil.ignore_patterns(".*", "__pycache__"))
            else:
                shutil.copy(source, staged / source.name)


def check(mar: Path) -> None:
    """Unpacks an archive and imports its handler in a clean process. Raises ArchiveError with the real traceback."""
    import json

    with tempfile.TemporaryDirectory(prefix="batchline-check-") as scratch:
        try:
            with zipfile.ZipFile(mar) as archive:
                archive.extractall(scratch)
            manifest = json.loads(Path(scratch, "MAR-INF", "MANIFEST.json").read_text(encoding="utf-8"))
            entry = Path(manifest["model"]["handler"]).stem
        except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
            raise ArchiveError(f"{mar} is not a model archive: {error}") from None
        done = subprocess.run([sys.executable, "-I", "-c", IMPORT_CHECK, entry], cwd=scratch, capture_output=True, text=True)
    if done.returncode:
        raise ArchiveError(
            f"{done.stderr.rstrip()}\n{mar.name}: its handler cannot be imported (the traceback above); the archive was not kept."
        )

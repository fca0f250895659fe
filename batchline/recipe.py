"""models/NAME -> Recipe: what a model folder holds, and what it still lacks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from batchline.errors import ArchiveError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.]*")  # torch-model-archiver's own rule
WEIGHT_SUFFIXES = (".pt2", ".pt", ".pth", ".onnx")
VERSION = "1.0"
CHOICE = "runtime.json"  # what `batchline race` writes
LABELLED = "labelled"  # a folder of requests whose right label is their folder's name
PRECISIONS = ("f32", "bf16", "int8")
RUNTIMES = ("torch", "onnxruntime", "openvino", "aotinductor", "torch.compile")  # by what they need: a library, at last a compiler


@dataclass(frozen=True)
class Recipe:
    """One model folder.

    Attributes:
        name: the folder's name; the model is served as /predictions/<name>.
        folder: where it lies.
        config: model-config.yaml as read.
    """

    name: str
    folder: Path
    config: dict[str, Any]

    @property
    def version(self) -> str:
        """The version in the archive's manifest and in config.properties."""
        return str(self.config.get("version", VERSION))

    @property
    def runtime(self) -> str:
        """What runs the model: model-config.yaml's `runtime`, else the winner of `batchline race`, else torch. Raises ArchiveError."""
        return self._chosen("runtime", RUNTIMES)

    @property
    def precision(self) -> str:
        """What it computes in: f32 unless model-config.yaml or a race that was allowed to says otherwise. Raises ArchiveError."""
        return self._chosen("precision", PRECISIONS)

    def _chosen(self, key: str, known: tuple[str, ...]) -> str:
        chosen, place = self.config.get(key), self.folder / "model-config.yaml"
        if chosen is None and "runtime" not in self.config and (self.folder / CHOICE).is_file():
            place = self.folder / CHOICE
            try:
                raced = json.loads(place.read_text(encoding="utf-8"))
                chosen = raced["runtime"] and raced.get(key)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ArchiveError(f"{place} names no runtime ({error}); `batchline race {self.name}` writes it.") from None
        if chosen not in (None, *known):
            raise ArchiveError(f"{place}: {key} must be one of {', '.join(known)}, not {chosen!r}.")
        return str(chosen or known[0])

    @property
    def handler(self) -> Path:
        """The entry file, copied to the root of the archive."""
        return self.folder / "handler.py"

    @property
    def export(self) -> Path | None:
        """The script that makes the weights, where there is one."""
        path = self.folder / "export.py"
        return path if path.is_file() else None

    @property
    def model_file(self) -> Path | None:
        """The module that defines the architecture, for weights that are a state_dict."""
        path = self.folder / "model.py"
        return path if path.is_file() else None

    @property
    def samples(self) -> list[Path]:
        """Real inputs: one request body a file."""
        return sorted(p for p in (self.folder / "samples").glob("*") if p.is_file() and not p.name.startswith("."))


def read_recipe(name: str, models: Path = Path("models")) -> Recipe:
    """Reads models/NAME; raises ArchiveError when a file that every model needs is missing or cannot be read."""
    folder = models / name
    if not NAME.fullmatch(name) or ".." in name:
        raise ArchiveError(
            f"{name!r} cannot be a model's name: letters, digits, '_', '-' and '.', starting with a letter or digit, no '..'."
        )
    if not folder.is_dir():
        known = ", ".join(sorted(p.name for p in models.glob("*") if p.is_dir())) or "none"
        raise ArchiveError(f"no folder {folder}; models here: {known}.")
    for needed in ("handler.py", "model-config.yaml"):
        if not (folder / needed).is_file():
            raise ArchiveError(f"{folder} has no {needed}; docs/your-own-model.md shows what a model folder holds.")
    return Recipe(name=name, folder=folder, config=_read_yaml(folder / "model-config.yaml"))


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ArchiveError(f"{path} is not valid YAML: {error}") from None
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise ArchiveError(f"{path} must hold keys and values, not a {type(config).__name__}.")
    return config

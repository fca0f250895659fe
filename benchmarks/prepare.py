"""What the servers are given: the archives' weights unpacked, the same weights as ONNX, and archives around other handlers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import stock

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "build" / "bench"
PEERS = ROOT / "benchmarks" / "peers"
WANTED = ("model.pt2", "model.onnx", "labels.txt", "tokenizer.json")
BESIDE = ("labels.txt", "tokenizer.json")  # the weights


def archive_of(model: str) -> Path:
    """The model's archive. Raises SystemExit when it was not built."""
    path = ROOT / "model_store" / f"{model}.mar"
    if not path.is_file():
        raise SystemExit(f"{path} is not there: make archive")
    return path


def freeze(model: str) -> None:
    """build/bench/MODEL/MODEL.mar: what this run serves, whatever is built meanwhile."""
    unpack(model)
    shutil.copyfile(archive_of(model), BENCH / model / f"{model}.mar")


def unpack(model: str) -> Path:
    """build/bench/MODEL with what the peers load. Weights that the archive holds in another form come from its build folder."""
    archive, folder = archive_of(model), BENCH / model
    if (folder / "model.pt2").is_file() and (folder / "model.pt2").stat().st_mtime > archive.stat().st_mtime:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").unlink(missing_ok=True)  # of older weights
    with zipfile.ZipFile(archive) as packed:
        for name in set(WANTED) & set(packed.namelist()):
            (folder / name).write_bytes(packed.read(name))
    if not (folder / "model.pt2").is_file():
        shutil.copyfile(ROOT / "build" / model / "model.pt2", folder / "model.pt2")
    return folder


def as_onnx(model: str) -> Path:
    """build/bench/MODEL/model.onnx: the archive's own, else exported from the same program once."""
    folder = unpack(model)
    path = folder / "model.onnx"
    if not path.is_file():
        import torch

        torch.onnx.export(torch.export.load(folder / "model.pt2"), dynamo=True, verbose=False).save(path)
    return path


def our_archive(model: str, runtime: str, store: Path) -> None:
    """store/MODEL.mar: as built, or with its weights replaced by the ONNX form."""
    source, target = BENCH / model / f"{model}.mar", store / f"{model}.mar"
    if runtime != "onnx":
        shutil.copyfile(source, target)
        return
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        manifest = json.loads(old.read("MAR-INF/MANIFEST.json"))
        weights = manifest["model"]["serializedFile"]
        manifest["model"]["serializedFile"] = "model.onnx"
        for name in old.namelist():
            if name not in (weights, "model.onnx", "MAR-INF/MANIFEST.json"):
                new.writestr(name, old.read(name))
        new.write(as_onnx(model), "model.onnx")
        new.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))


def plain_archive(model: str, runtime: str, store: Path, scratch: Path) -> None:
    """store/MODEL.mar around peers/torchserve_plain.py and peers/work.py."""
    folder = unpack(model)
    weights = as_onnx(model) if runtime == "onnx" else folder / "model.pt2"
    handler = scratch / "torchserve_plain.py"
    text = (PEERS / "torchserve_plain.py").read_text(encoding="utf-8")
    handler.write_text(text.replace('"MODEL"', repr(model)).replace('"RUNTIME"', repr(runtime)), encoding="utf-8")
    extra = [PEERS / "work.py", *(folder / name for name in BESIDE if (folder / name).is_file())]
    command = [str(Path(sys.executable).with_name("torch-model-archiver")), "--model-name", model, "--version", "1.0"]
    command += ["--handler", str(handler), "--serialized-file", str(weights), "--extra-files", ",".join(map(str, extra))]
    (scratch / "tmp").mkdir(exist_ok=True)
    subprocess.run([*command, "--export-path", str(store), "--force"], check=True, env={**os.environ, "TMPDIR": str(scratch / "tmp")})


def stock_archive(store: Path, scratch: Path) -> str:
    """TorchServe's own image_classifier around the same weights; returns its name."""
    stock.stock_archive(store, scratch)
    return stock.STOCK

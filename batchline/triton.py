"""model_store/NAME.mar and its settings in config.properties -> a model of NVIDIA Triton, which runs the same handler.

triton_repository/NAME/config.pbtxt     batch size, delay, instances, warm-up
triton_repository/NAME/warmup/SAMPLE    one of the archive's samples, in Triton's form of a text tensor
triton_repository/NAME/1/model.py       batchline/triton_model.py, the adapter
triton_repository/NAME/1/archive/       the archive, unpacked
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from batchline.errors import ArchiveError, ConfigError
from batchline.properties import Configuration, ModelSettings

ADAPTER = Path(__file__).with_name("triton_model.py")
MARK = "# Written by `batchline export triton`; the next export replaces the whole folder."
DEVICES = ("auto", "cpu", "gpu")
NEEDED = {"batch_size": "batchSize", "max_batch_delay_ms": "maxBatchDelay", "min_workers": "minWorkers"}


@dataclass(frozen=True)
class Instances:
    """An instance_group: `count` processes on the CPU, or on each of `gpus`."""

    count: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class TritonModel:
    """What config.pbtxt says of one model.

    Attributes:
        name: of the model, as in TorchServe.
        version: as TorchServe knows it.
        number: the same as Triton can have it, a whole number from 1.
        batch_size: most request bodies in a batch.
        delay_ms: longest wait for a batch to fill.
        instances: processes and where they run.
        sample: name of the warm-up sample; None where the archive has none.
    """

    name: str
    version: str
    number: int
    batch_size: int
    delay_ms: int
    instances: tuple[Instances, ...]
    sample: str | None = None


def export(name: str, configuration: Configuration, store: Path, out: Path, device: str = "auto") -> TritonModel:
    """Writes OUT/NAME from STORE/NAME.mar; a folder of an earlier export is replaced at once, at the end.

    Args:
        name: the model's.
        configuration: config.properties, for batch size, delay and workers.
        store: the folder of archives.
        out: the model repository.
        device: cpu, gpu, or auto: what TorchServe would use on this machine.

    Raises:
        ArchiveError: there is no such archive, it cannot be read, or OUT/NAME is not from an export.
        ConfigError: the configuration has no complete settings for the archive's version, or the device is none.
    """
    if device not in DEVICES:
        raise ConfigError(f"the device is {', '.join(DEVICES[:-1])} or {DEVICES[-1]}, not {device!r}.")
    home = out / name
    if home.exists() and not _is_ours(home):
        raise ArchiveError(f"{home} is not from an export; move it away or name another repository with -o.")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.resolve().parent) as scratch:
        arriving, unpacked = Path(scratch) / "new", Path(scratch) / "archive"
        manifest = _unpack(store / f"{name}.mar", unpacked)
        model = read_model(name, configuration, unpacked, manifest, device)
        _write(model, unpacked, arriving)
        if home.exists():
            home.rename(Path(scratch) / "old")
        arriving.rename(home)
    return model


def read_model(name: str, configuration: Configuration, unpacked: Path, manifest: dict[str, Any], device: str) -> TritonModel:
    """Settings and archive -> what Triton is told. Raises ConfigError where config.properties leaves something open."""
    version = str(manifest["model"].get("modelVersion", "1.0"))
    settings = _settings(configuration, name, version)
    config = _yaml(unpacked, manifest)
    samples = sorted(path.name for path in (unpacked / "samples").glob("*") if path.is_file() and not path.name.startswith("."))
    return TritonModel(
        name=name,
        version=version,
        number=whole_version(version),
        batch_size=settings.batch_size or 1,
        delay_ms=settings.max_batch_delay_ms or 0,
        instances=_instances(settings.min_workers or 1, configuration, config, device),
        sample=samples[0] if samples else None,
    )


def whole_version(version: str) -> int:
    """The leading number of a version, 1.0 -> 1; Triton's versions are whole numbers from 1."""
    match = re.match(r"\d+", version)
    return max(1, int(match.group())) if match else 1


def _settings(configuration: Configuration, name: str, version: str) -> ModelSettings:
    found = next((model for model in configuration.models if (model.name, model.version) == (name, version)), None)
    if found is None:
        raise configuration.error("models", f"has nothing for {name} {version}, the archive's version", "write its settings there")
    for field, key in NEEDED.items():
        if (getattr(found, field) or 0) < 1:
            raise configuration.error("models", f"{key} of {name} {version} is not given", "write a whole number from 1", f'"{name}"')
    return found


def _yaml(unpacked: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    file = manifest["model"].get("configFile")
    try:
        return dict(yaml.safe_load((unpacked / file).read_text(encoding="utf-8")) or {}) if file else {}
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise ArchiveError(f"the archive's {file} cannot be read: {error}") from None


def _instances(workers: int, configuration: Configuration, config: dict[str, Any], device: str) -> tuple[Instances, ...]:
    """TorchServe deals a model's workers round-robin over its GPUs; Triton's count is that of each GPU in the group."""
    gpus = [] if device == "cpu" else _gpus(configuration, config) or ([0] if device == "gpu" else [])
    if not gpus or (device == "auto" and str(config.get("deviceType", "")).lower() == "cpu"):
        return (Instances(workers),)
    shares = {gpu: workers // len(gpus) + (place < workers % len(gpus)) for place, gpu in enumerate(gpus)}
    counts = dict.fromkeys(count for count in shares.values() if count)
    return tuple(Instances(count, tuple(gpu for gpu in gpus if shares[gpu] == count)) for count in counts)


def _gpus(configuration: Configuration, config: dict[str, Any]) -> list[int]:
    """From deviceIds of model-config.yaml, else as many as number_of_gpu says, else those of this machine."""
    if config.get("deviceIds"):
        return [int(gpu) for gpu in config["deviceIds"]]
    if "number_of_gpu" in configuration.values:
        return list(range(configuration.integer("number_of_gpu", 0)))
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return list(range(len(re.findall(r"^GPU \d+", listed, re.MULTILINE))))


def config_text(model: TritonModel) -> str:
    """config.pbtxt: protobuf's text form of Triton's ModelConfig.

    No default_queue_policy for job_queue_size and clientTimeoutInMills: with any, Triton 2.51 leaves batches waiting for up to
    500 ms beside a free instance (digits, 32 clients: 350 to 2,000 requests/s with one and 10,000 without).
    """
    parts = [MARK, f"name: {_quoted(model.name)}", 'backend: "python"', f"max_batch_size: {model.batch_size}"]
    parts += [
        'input [ { name: "body" data_type: TYPE_STRING dims: [ 1 ] } ]',
        'output [ { name: "answer" data_type: TYPE_STRING dims: [ 1 ] } ]',
    ]
    parts += [f"instance_group [ {', '.join(_group(group) for group in model.instances)} ]"]
    parts += [f"dynamic_batching {{ max_queue_delay_microseconds: {model.delay_ms * 1000} }}"]
    parts += [f"version_policy {{ specific {{ versions: [ {model.number} ] }} }}"]
    if model.sample:
        parts += [f"model_warmup [ {', '.join(_warm_up(size, model.sample) for size in sorted({1, model.batch_size}))} ]"]
    parts += [f'parameters {{ key: "archive" value {{ string_value: {_quoted(f"{model.name} {model.version}")} }} }}']
    return "\n".join(parts) + "\n"


def _group(group: Instances) -> str:
    where = f"kind: KIND_GPU gpus: [ {', '.join(map(str, group.gpus))} ]" if group.gpus else "kind: KIND_CPU"
    return f"{{ count: {group.count} {where} }}"


def _warm_up(size: int, sample: str) -> str:
    body = f'inputs {{ key: "body" value {{ data_type: TYPE_STRING dims: [ 1 ] input_data_file: {_quoted(sample)} }} }}'
    return f'{{ name: "batch of {size}" batch_size: {size} {body} }}'


def _quoted(text: str) -> str:
    """A string of protobuf's text form: what JSON's is, but for bytes beyond ASCII, which are octal."""
    plain = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}
    return '"' + "".join(plain.get(chr(byte)) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in text.encode()) + '"'


def text_tensor(*values: bytes) -> bytes:
    """Triton's bytes of a BYTES tensor: each value after its length, four bytes, little-endian."""
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def _is_ours(home: Path) -> bool:
    try:
        return (home / "config.pbtxt").read_text(encoding="utf-8").startswith(MARK)
    except (OSError, UnicodeDecodeError):
        return False


def _unpack(mar: Path, to: Path) -> dict[str, Any]:
    """The manifest of an archive, its files in `to`. Raises ArchiveError."""
    if not mar.is_file():
        raise ArchiveError(f"{mar} is not there; build it: batchline archive {mar.stem}")
    try:
        with zipfile.ZipFile(mar) as archive:
            archive.extractall(to)
        manifest = json.loads((to / "MAR-INF" / "MANIFEST.json").read_text(encoding="utf-8"))
        _ = manifest["model"]["handler"]
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise ArchiveError(f"{mar} is not a model archive: {error}") from None
    return dict(manifest)


def _write(model: TritonModel, unpacked: Path, home: Path) -> None:
    version = home / str(model.number)
    version.mkdir(parents=True)
    if model.sample:
        (home / "warmup").mkdir()
        (home / "warmup" / model.sample).write_bytes(text_tensor((unpacked / "samples" / model.sample).read_bytes()))
    shutil.copy(ADAPTER, version / "model.py")
    os.rename(unpacked, version / "archive")
    (home / "config.pbtxt").write_text(config_text(model), encoding="utf-8")


def differences(models: Sequence[TritonModel]) -> list[str]:
    """What Triton's batching rule changes for these settings, a sentence a line."""
    rule = "Triton counts the delay from a request's arrival, TorchServe from when a free worker picks the first request of a batch up."
    return [rule, *(_difference(model) for model in models)]


def _difference(model: TritonModel) -> str:
    if model.batch_size == 1:
        return f"{model.name}: nothing changes, for its batches are of one request."
    delay, size = f"{model.delay_ms} ms", model.batch_size
    return (
        f"{model.name}: a lone request waits {delay} for company on both. One that waited {delay} behind a busy instance leaves "
        f"as soon as one is free, where TorchServe would collect for up to {delay} more: under load latency is lower by up to {delay} "
        f"a batch, and batches are smaller until {size} requests wait."
    )

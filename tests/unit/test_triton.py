"""What `batchline export triton` writes, and the parts of its adapter that need no server."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline import triton
from batchline.destination import binary_tensors, check_server, triton_target
from batchline.errors import ArchiveError, ConfigError, LoadError
from batchline.properties import read_configuration
from batchline.triton import Instances, TritonModel, config_text, differences, export, text_tensor, whole_version
from tests.harness import ROOT

NUMBERS = {"minWorkers": 3, "maxWorkers": 3, "batchSize": 8, "maxBatchDelay": 5, "responseTimeout": 60}


class Home:
    """A model store with one archive, and a configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "repository"
        self.archive("m", {"samples/a.txt": b"abc", "model-config.yaml": b"clientTimeoutInMills: 1500\n"})
        self.configure(NUMBERS)

    def archive(self, name: str, files: dict[str, bytes], version: str = "2.1") -> None:
        model = {"handler": "handler.py", "modelVersion": version}
        if "model-config.yaml" in files:
            model["configFile"] = "model-config.yaml"
        with zipfile.ZipFile(self.folder / f"{name}.mar", "w") as mar:
            mar.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))
            for path, content in {"handler.py": b"class Handler: ...", **files}.items():
                mar.writestr(path, content)

    def configure(self, numbers: dict[str, int], more: str = "") -> None:
        (self.folder / "config.properties").write_text(f"models={json.dumps({'m': {'2.1': numbers}})}\n{more}\n")

    def export(self, device: str = "cpu") -> TritonModel:
        return export("m", read_configuration(self.folder / "config.properties"), self.folder, self.out, device)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_what_is_written(home: Home) -> None:
    model = home.export()
    assert model == TritonModel("m", "2.1", 2, 8, 5, (Instances(3),), "a.txt")
    written = sorted(str(path.relative_to(home.out)) for path in home.out.rglob("*") if path.is_file())
    archive = [f"m/2/archive/{name}" for name in ("MAR-INF/MANIFEST.json", "handler.py", "model-config.yaml", "samples/a.txt")]
    assert written == sorted([*archive, "m/2/model.py", "m/config.pbtxt", "m/warmup/a.txt"])
    assert (home.out / "m/warmup/a.txt").read_bytes() == b"\x03\0\0\0abc"
    text = (home.out / "m/config.pbtxt").read_text()
    for line in (
        "max_batch_size: 8",
        "max_queue_delay_microseconds: 5000",
        "count: 3 kind: KIND_CPU",
        "versions: [ 2 ]",
    ):
        assert line in text
    assert 'batch_size: 8 inputs { key: "body"' in text and "queue_policy" not in text
    assert [path.name for path in home.folder.iterdir() if path.name.startswith(".")] == []


def test_an_earlier_export_is_replaced_and_nothing_else(home: Home) -> None:
    home.export()
    (home.out / "m" / "2" / "old.txt").write_text("gone")
    home.archive("m", {}, "3.0")
    (home.folder / "config.properties").write_text(f"models={json.dumps({'m': {'3.0': NUMBERS}})}\n")
    assert home.export().number == 3
    assert sorted(path.name for path in (home.out / "m").iterdir()) == ["3", "config.pbtxt"]
    (home.out / "m" / "config.pbtxt").write_text('name: "m"\n')
    with pytest.raises(ArchiveError, match="is not from an export"):
        home.export()
    assert (home.out / "m" / "3").is_dir()


def test_a_failed_export_leaves_the_earlier_one(home: Home) -> None:
    home.export()
    before = (home.out / "m" / "config.pbtxt").read_text()
    home.configure({**NUMBERS, "batchSize": 0})
    with pytest.raises(ConfigError, match=r"batchSize of m 2\.1 is not given"):
        home.export()
    assert (home.out / "m" / "config.pbtxt").read_text() == before and (home.out / "m" / "2" / "model.py").is_file()


@pytest.mark.parametrize("key", ["batchSize", "maxBatchDelay", "minWorkers"])
def test_numbers_that_are_missing(home: Home, key: str) -> None:
    home.configure({name: value for name, value in NUMBERS.items() if name != key})
    with pytest.raises(ConfigError, match=f"config.properties:1: models: {key} of m 2.1 is not given"):
        home.export()


def test_archives_that_are_none(home: Home) -> None:
    home.archive("m", {}, "9.9")
    with pytest.raises(ConfigError, match=r"has nothing for m 9\.9, the archive's version"):
        home.export()
    (home.folder / "m.mar").write_bytes(b"PK")
    with pytest.raises(ArchiveError, match=r"m\.mar is not a model archive"):
        home.export()
    (home.folder / "m.mar").unlink()
    with pytest.raises(ArchiveError, match=r"m\.mar is not there; build it: batchline archive m"):
        home.export()


def test_without_samples_there_is_no_warm_up(home: Home) -> None:
    home.archive("m", {})
    assert home.export().sample is None
    assert "model_warmup" not in (home.out / "m" / "config.pbtxt").read_text() and not (home.out / "m" / "warmup").exists()


@pytest.mark.parametrize(
    ("more", "yaml", "device", "instances"),
    [
        ("", b"", "gpu", (Instances(3, (0,)),)),
        ("number_of_gpu=2", b"", "auto", (Instances(2, (0,)), Instances(1, (1,)))),
        ("number_of_gpu=3", b"", "auto", (Instances(1, (0, 1, 2)),)),
        ("number_of_gpu=8", b"", "gpu", (Instances(1, (0, 1, 2)),)),
        ("number_of_gpu=2", b"deviceIds: [5]\n", "auto", (Instances(3, (5,)),)),
        ("number_of_gpu=2", b"deviceType: cpu\n", "auto", (Instances(3),)),
        ("number_of_gpu=2", b"", "cpu", (Instances(3),)),
        ("number_of_gpu=0", b"", "auto", (Instances(3),)),
    ],
)
def test_workers_over_gpus(home: Home, more: str, yaml: bytes, device: str, instances: tuple[Instances, ...]) -> None:
    """As many processes as TorchServe has workers; Triton's count is that of each GPU."""
    home.archive("m", {"model-config.yaml": yaml} if yaml else {})
    home.configure(NUMBERS, more)
    assert home.export(device).instances == instances


def test_groups_name_their_gpus() -> None:
    text = config_text(TritonModel("m", "1.0", 1, 4, 2, (Instances(2, (0,)), Instances(1, (1, 2)))))
    assert "instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0 ] }, { count: 1 kind: KIND_GPU gpus: [ 1, 2 ] } ]" in text


def test_a_device_that_is_none(home: Home) -> None:
    with pytest.raises(ConfigError, match="the device is auto, cpu or gpu, not 'tpu'"):
        home.export("tpu")


@pytest.mark.parametrize(("version", "number"), [("1.0", 1), ("12.3", 12), ("0.9", 1), ("v2", 1), ("", 1)])
def test_versions(version: str, number: int) -> None:
    assert whole_version(version) == number


def test_names_in_quotes() -> None:
    text = config_text(TritonModel("m", 'a"b\\c\n\x07ü', 1, 1, 1, (Instances(1),), sample='s".txt'))
    assert r'string_value: "m a\"b\\c\n\007\303\274"' in text and r'input_data_file: "s\".txt"' in text
    assert text.count("batch_size: 1 ") == 1  # a batch of one is warmed up once


def test_what_the_rule_changes() -> None:
    one, eight = (TritonModel(f"m{size}", "1.0", 1, size, 5, (Instances(1),)) for size in (1, 8))
    rule, alone, shared = differences([one, eight])
    assert "from a request's arrival" in rule and alone == "m1: nothing changes, for its batches are of one request."
    assert shared.startswith("m8: a lone request waits 5 ms") and "until 8 requests wait" in shared


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=8))
def test_bodies_under_one_header(bodies: list[bytes]) -> None:
    """Every request's JSON ends where the header says, and tells the truth about the rest."""
    wrapped, headers = binary_tensors(bodies)
    length = int(headers["Inference-Header-Content-Length"])
    for body, sent in zip(bodies, wrapped, strict=True):
        head, tensor = json.loads(sent[:length]), sent[length:]
        assert head["inputs"][0]["parameters"]["binary_data_size"] == len(tensor)
        assert tensor == struct.pack("<I", len(body)) + body == text_tensor(body)


def test_load_on_a_server_that_is_none() -> None:
    check_server("triton")
    with pytest.raises(LoadError, match="the server is torchserve or triton, not 'Triton'"):
        check_server("Triton")


def test_load_over_grpc_is_not_done(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="over rest, not 'grpc'"):
        triton_target("http://127.0.0.1:9", "digits", ROOT / "models", "grpc")


# ---- the adapter, in a process with a stand-in for the module that only Triton's stub has

ADAPTER = """
import importlib.util, json, sys, types
stub = types.ModuleType("triton_python_backend_utils")
stub.TritonError = types.SimpleNamespace(INVALID_ARG=3, NOT_FOUND=2, UNSUPPORTED=5, UNAVAILABLE=4, INTERNAL=1)
sys.modules[stub.__name__] = stub
spec = importlib.util.spec_from_file_location("model", sys.argv[1])
model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(model)
"""


def adapter(code: str, path: str = "") -> str:
    """What the code prints with `model` as the adapter's module."""
    command = [sys.executable, "-c", ADAPTER + code, str(triton.ADAPTER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_parameters_and_errors() -> None:
    code = """
print(json.dumps([
    model.headers_of("{}"), model.headers_of(""),
    model.headers_of('{"Content-Type": "x/y", "content_type": "text/plain", "X-Request-Start": "t=1", "explain": true}'),
    model.headers_of('{"Inference-Header-Content-Length": "12", "n": 3}'),
    [model.to_bytes(x).decode() for x in (b"a", bytearray(b"b"), "\\u00fc", {"a": 1})],
    model.error_text(413, b'{"code": 413, "type": "BadInput", "message": "too many"}', "body[2]: "),
    model.error_text(500, b"\\xff{"), model.error_text(404, b"[1]"), len(model.error_text(500, b"x" * 9999)),
    [model.error_code(s) for s in (400, 404, 413, 418, 500, 501, 503, 507)],
]))
"""
    assert json.loads(adapter(code)) == [
        {},
        {},
        {"content-type": "text/plain", "x-request-start": "t=1", "explain": "True"},
        {"n": "3"},
        ["a", "b", "ü", '{\n  "a": 1\n}'],
        "413 BadInput: body[2]: too many",
        "500: \N{REPLACEMENT CHARACTER}{",
        "404: [1]",
        4005,
        [3, 2, 3, 3, 1, 5, 4, 1],
    ]


def test_torchserve_is_preferred_to_its_stand_in(tmp_path: Path) -> None:
    assert adapter("import ts; before = ts.__version__; model.stand_in_for_ts(); print(sys.modules['ts'].__version__)").endswith("0.12.0")
    hidden = tmp_path / "ts"
    hidden.mkdir()
    (hidden / "__init__.py").write_text("raise ImportError('no TorchServe here')")
    code = "model.stand_in_for_ts(); from ts.torch_handler.base_handler import BaseHandler as B; print(B.__mro__)"
    assert adapter(code, str(tmp_path)) == "(<class 'model.BaseHandler'>, <class 'object'>)"


HANDLERS = {
    "class Handler:\n    def initialize(self, c): self.c = c\n    def handle(self, d, c): return ['class']": "class",
    "def handle(d, c): return ['function' if d else None]": "function",
}


@pytest.mark.parametrize("source", HANDLERS)
def test_handlers_of_both_kinds(tmp_path: Path, source: str) -> None:
    (tmp_path / "handler.py").write_text(source)
    code = 'print(model.load_handler({"model": {"handler": "handler.py"}}, None)([{}], None))'
    assert adapter(code, str(tmp_path)) == f"['{HANDLERS[source]}']"


def test_a_handler_with_two_classes(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text("class A: ...\nclass B: ...")
    code = """
try:
    model.load_handler({"model": {"handler": "handler.py"}}, None)
except RuntimeError as error:
    print(error)
"""
    assert adapter(code, str(tmp_path)).endswith("must define exactly one class, as for TorchServe; it has 2")

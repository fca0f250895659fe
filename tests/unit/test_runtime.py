from __future__ import annotations

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from batchline.handlers import BatchHandler, ObjectDetector, runtime
from batchline.handlers.classify import read_labels
from batchline.handlers.errors import ModelLoadError
from torch import nn

from tests.harness import ROOT, load, request

CPU = torch.device("cpu")
X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [0.0, 0.0, 1.0]])
ONE_CLASS = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.drop = nn.Dropout(0.9)
    def forward(self, x):
        return self.drop(self.layer(x))
"""
TWO_CLASSES = ONE_CLASS + "class Other(Net):\n    pass\n"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.drop = nn.Dropout(0.9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.layer(x))  # type: ignore[no-any-return]


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder on the import path, as TorchServe puts it there."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("net_file", "other_file"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def facts(**model: str) -> dict[str, Any]:
    return {"model": {"modelName": "m", "modelVersion": "1.0", **model}}


def write_model_file(folder: Path, text: str) -> dict[str, Any]:
    sys.modules.pop("net_file", None)
    (folder / "net_file.py").write_text(text)
    return facts(serializedFile="w.pt", modelFile="net_file.py")


def same_as(model: Any, net: nn.Module) -> bool:
    with torch.inference_mode():
        return bool(torch.allclose(model(X), net(X), atol=1e-5))


def save_pt2(net: nn.Module, path: Path) -> None:
    torch.export.save(torch.export.export(net, (X,), dynamic_shapes=({0: torch.export.Dim("batch")},)), path)


def test_exported(net: nn.Module, folder: Path) -> None:
    save_pt2(net, folder / "w.pt2")
    assert same_as(runtime.load_model(folder, facts(serializedFile="w.pt2"), {}, CPU), net)


def test_torchscript(net: nn.Module, folder: Path) -> None:
    torch.jit.save(torch.jit.script(net.train()), folder / "w.pt")
    assert same_as(runtime.load_model(folder, facts(serializedFile="w.pt"), {}, CPU), net.eval())


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_state_dict_with_one_class(net: nn.Module, folder: Path, suffix: str) -> None:
    write_model_file(folder, ONE_CLASS)
    torch.save(net.state_dict(), folder / f"w{suffix}")
    model = runtime.load_model(folder, facts(serializedFile=f"w{suffix}", modelFile="net_file.py"), {}, CPU)
    assert same_as(model, net)
    assert not getattr(model, "training", True)


def test_state_dict_with_two_classes_needs_a_name(net: nn.Module, folder: Path) -> None:
    manifest = write_model_file(folder, TWO_CLASSES)
    torch.save(net.state_dict(), folder / "w.pt")
    assert type(runtime.load_model(folder, manifest, {"model_class": "Other"}, CPU)).__name__ == "Other"
    with pytest.raises(ModelLoadError, match=r"must define one nn.Module, it has Net, Other; name one as model_class"):
        runtime.load_model(folder, manifest, {}, CPU)
    with pytest.raises(ModelLoadError, match="has no Missing"):
        runtime.load_model(folder, manifest, {"model_class": "Missing"}, CPU)


def test_a_model_file_without_a_model(net: nn.Module, folder: Path) -> None:
    manifest = write_model_file(folder, "from torch.nn import Linear\n")
    torch.save(net.state_dict(), folder / "w.pt")
    with pytest.raises(ModelLoadError, match="it has none"):
        runtime.load_model(folder, manifest, {}, CPU)


def test_a_pickled_module_is_refused_without_being_run(net: nn.Module, folder: Path) -> None:
    manifest = write_model_file(folder, ONE_CLASS)
    torch.save(net, folder / "w.pt")
    with pytest.raises(ModelLoadError, match="must be a state_dict"):
        runtime.load_model(folder, manifest, {}, CPU)
    with pytest.raises(ModelLoadError, match="is not TorchScript"):
        runtime.load_model(folder, facts(serializedFile="w.pt"), {}, CPU)


def test_a_state_dict_without_its_model_file(net: nn.Module, folder: Path) -> None:
    torch.save(net.state_dict(), folder / "w.pt")
    with pytest.raises(ModelLoadError, match="needs its model file"):
        runtime.load_model(folder, facts(serializedFile="w.pt"), {}, CPU)


def test_weights_of_another_model(folder: Path) -> None:
    manifest = write_model_file(folder, ONE_CLASS)
    torch.save(nn.Linear(3, 2).state_dict(), folder / "w.pt")
    with pytest.raises(ModelLoadError, match="does not fit Net"):
        runtime.load_model(folder, manifest, {}, CPU)


def test_onnx(net: nn.Module, folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.onnx.export(net, (X,), folder / "w.onnx", dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False)
    model = runtime.load_model(folder, facts(serializedFile="w.onnx"), {}, CPU)
    assert same_as(model, net)
    with torch.inference_mode():
        assert model(X[:1]).shape == (1, 2)


def test_onnx_follows_the_threads_of_the_worker(net: nn.Module, folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.onnx.export(net, (X,), folder / "w.onnx", dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False)
    torch.set_num_threads(1)
    model: Any = runtime.load_model(folder, facts(serializedFile="w.onnx"), {}, CPU)
    for threads in (1, 2, 1):
        before = model.session
        had = before.get_session_options().intra_op_num_threads
        torch.set_num_threads(threads)
        assert same_as(model, net)
        assert model.session.get_session_options().intra_op_num_threads == threads
        assert (model.session is before) == (had == threads)
        kept = model.session
        assert same_as(model, net)
        assert model.session is kept


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("w.pt2", "not a torch.export archive"),
        ("w.pt", "is not TorchScript"),
        ("w.onnx", "is not an ONNX model"),
        ("w.h5", "no way to load .h5"),
        ("w", "suffix"),
    ],
)
def test_files_that_are_not_what_they_say(folder: Path, name: str, words: str) -> None:
    (folder / name).write_bytes(b"nonsense")
    with pytest.raises(ModelLoadError, match=words):
        runtime.load_model(folder, facts(serializedFile=name), {}, CPU)


def test_an_archive_without_weights(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="has no weights"):
        runtime.load_model(folder, facts(), {}, CPU)
    with pytest.raises(ModelLoadError, match=r"w\.pt2 are missing"):
        runtime.load_model(folder, facts(serializedFile="w.pt2"), {}, CPU)


def test_a_failed_load_is_one_line_and_the_error_torchserve_reports(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError):
        load(BatchHandler, folder, manifest=facts(serializedFile="w.pt2"))
    assert [record.getMessage() for record in caplog.records if "MODEL_LOAD_FAILED" in record.getMessage()]


def test_a_sample_that_is_refused_fails_the_load(net: nn.Module, folder: Path) -> None:
    save_pt2(net, folder / "w.pt2")
    (folder / "samples").mkdir()
    (folder / "samples" / "a.json").write_text("[1, 2, 3]")
    worker = load(BatchHandler, folder, manifest=facts(serializedFile="w.pt2"))
    assert worker.one([1, 2, 3]).json == pytest.approx(net(X[:1])[0].tolist(), abs=1e-5)
    (folder / "samples" / "b.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"warm-up on samples/b\.json failed: BadInput: .*empty"):
        load(BatchHandler, folder, manifest=facts(serializedFile="w.pt2"))


def test_a_model_that_fails_on_a_sample_fails_the_load_with_its_cause(net: nn.Module, folder: Path) -> None:
    save_pt2(net, folder / "w.pt2")
    (folder / "samples").mkdir()
    for name, text in (("a.json", "[1, 2, 3]"), ("b.json", "[9, 9, 9]")):
        (folder / "samples" / name).write_text(text)

    class Handler(BatchHandler):
        def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
            if (data == 9).any():
                raise ZeroDivisionError("nine")
            return super().inference(data, *args, **kwargs)

    with pytest.raises(ModelLoadError, match=r"warm-up on samples/b\.json failed: ZeroDivisionError: nine") as caught:
        load(Handler, folder, manifest=facts(serializedFile="w.pt2"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_warm_up_runs_one_and_a_full_batch(net: nn.Module, folder: Path) -> None:
    save_pt2(net, folder / "w.pt2")
    (folder / "samples").mkdir()
    (folder / "samples" / "a.json").write_text("[1, 2, 3]")
    sizes: list[int] = []

    class Counting(BatchHandler):
        def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
            sizes.append(len(data))
            return super().inference(data, *args, **kwargs)

    load(Counting, folder, manifest=facts(serializedFile="w.pt2"), batch_size=6)
    assert sizes == [1, 6]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_instances", 0),
        ("max_instances", "many"),
        ("max_instances", 1.5),
        ("max_instances", 2.0),
        ("max_instances", math.nan),
        ("max_instances", None),
        ("max_request_instances", 0),
        ("max_request_instances", math.inf),
        ("max_response_size", True),
        ("max_response_size", 1e6),
        ("responseTimeout", 0),
        ("responseTimeout", 0.5),
        ("responseTimeout", math.nan),
        ("threads", -1),
        ("threads", 1.0),
    ],
)
def test_wrong_settings_are_refused_at_load(net: nn.Module, folder: Path, key: str, value: Any) -> None:
    save_pt2(net, folder / "w.pt2")
    with pytest.raises(ModelLoadError, match=f"model-config.yaml: {key} must be"):
        load(BatchHandler, folder, manifest=facts(serializedFile="w.pt2"), config={key: value})


@pytest.mark.parametrize("value", [math.nan, -0.1, "much", True, None])
def test_a_fraction_that_is_none_is_refused_at_load(net: nn.Module, folder: Path, value: Any) -> None:
    save_pt2(net, folder / "w.pt2")
    with pytest.raises(ModelLoadError, match=r"model-config\.yaml: min_score must be"):
        load(ObjectDetector, folder, manifest=facts(serializedFile="w.pt2"), config={"min_score": value})


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("\ufeffcup\nspoon\n", {"0": "cup", "1": "spoon"}),
        ("cup\r\n\r\nsp\u00f6on", {"0": "cup", "1": "", "2": "sp\u00f6on"}),
        ("", {}),
    ],
)
def test_labels_a_line_each_with_or_without_a_byte_order_mark(tmp_path: Path, content: str, wanted: dict[str, str]) -> None:
    (tmp_path / "labels.txt").write_bytes(content.encode())
    assert read_labels(tmp_path) == wanted


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize("gpu_id", [None, 0, 3])
def test_without_a_gpu_the_cpu_serves(gpu_id: int | None) -> None:
    assert runtime.pick_device(gpu_id) == CPU


def test_the_device_is_the_one_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert runtime.pick_device(1) == torch.device("cuda:1")
    assert runtime.pick_device(None) == CPU


def test_freed_memory_is_kept_and_requests_still_answered(net: nn.Module, folder: Path) -> None:
    assert runtime.keep_freed_memory() in (True, False)
    save_pt2(net, folder / "w.pt2")
    worker = load(BatchHandler, folder, manifest=facts(serializedFile="w.pt2"))
    assert [reply.status for reply in worker.send(request([1, 2, 3]), request([4, 5, 6]))] == [200, 200]


# ---- a broken GPU


@pytest.mark.parametrize(
    ("message", "fatal"),
    [
        ("CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA", True),
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: out of memory", False),
        ("CUDA out of memory. Tried to allocate 20.00 MiB", False),
        ("boom", False),
        ("", False),
    ],
)
def test_errors_after_which_the_gpu_is_lost(message: str, fatal: bool) -> None:
    assert runtime.is_fatal(RuntimeError(message)) is fatal
    assert not runtime.is_fatal(None)


BROKEN_GPU = """
import sys
from pathlib import Path
from batchline.handlers import BatchHandler
from tests.harness import load, request

class Handler(BatchHandler):
    def inference(self, data):
        if (data == 9).any():
            raise RuntimeError(sys.argv[2])
        return super().inference(data)

worker = load(Handler, Path(sys.argv[1]), manifest={"model": {"modelName": "m", "modelVersion": "1", "serializedFile": "w.pt2"}})
worker.send(request([1, 2, 3]))
print("answered", [reply.status for reply in worker.send(request([1, 2, 3]), request([9, 9, 9]), request([4, 5, 6]))], flush=True)
"""


def test_a_worker_whose_gpu_is_lost_answers_and_ends(net: nn.Module, folder: Path) -> None:
    """The interpreter waits for the thread that ends it, so the exit code tells whether there is one. Both workers run at once."""
    save_pt2(net, folder / "w.pt2")
    wanted = {"CUDA error: device-side assert triggered": 70, "CUDA error: out of memory": 0}

    def run(message: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", BROKEN_GPU, str(folder), message], cwd=ROOT, capture_output=True, text=True)

    with ThreadPoolExecutor(len(wanted)) as pool:
        ran = list(pool.map(run, wanted))
    for done, code in zip(ran, wanted.values(), strict=True):
        assert "answered [200, 500, 200]" in done.stdout, done.stderr
        assert done.returncode == code
        assert ("the GPU context is broken" in done.stdout + done.stderr) == (code == 70)

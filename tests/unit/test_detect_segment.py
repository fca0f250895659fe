from __future__ import annotations

import base64
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batchline.handlers import ImageClassifier, ImageSegmenter, ObjectDetector
from batchline.handlers.errors import ModelLoadError
from PIL import Image
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn
from torchvision.models.segmentation import lraspp_mobilenet_v3_large

from tests.harness import Worker, load, request
from tests.unit.conftest import Shades, facts

DETECTOR_FILE = """
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

def build():
    return fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=5)
"""
SEGMENTER_FILE = """
from torchvision.models.segmentation import lraspp_mobilenet_v3_large

def build():
    return lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
"""
LABELS = ["background", "cup", "spoon", "plate", "table"]
BAD = request(b"not a picture", "image/png")


def archive(folder: Path, model: torch.nn.Module, model_file: str, stem: str) -> dict[str, Any]:
    torch.save(model.state_dict(), folder / "weights.pt")
    (folder / f"{stem}.py").write_text(model_file)
    (folder / "labels.txt").write_text("\n".join(LABELS))
    return facts(stem, serializedFile="weights.pt", modelFile=f"{stem}.py")


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    random = np.random.default_rng(0)
    sizes = [(120, 90), (200, 160)]
    return [Image.fromarray(random.integers(0, 255, (h // 10, w // 10, 3), np.uint8)).resize((w, h)) for w, h in sizes]


def png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def pixels(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255


# ---- detection


@pytest.fixture(scope="module")
def detector_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=5).eval()


@pytest.fixture(scope="module")
def detector(detector_model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    folder = tmp_path_factory.mktemp("detector")
    manifest = archive(folder, detector_model, DETECTOR_FILE, "detector_net")
    sys.path.insert(0, str(folder))
    try:
        return load(ObjectDetector, folder, "detector", config={"min_score": 0.0, "model_class": "build"}, manifest=manifest)
    finally:
        sys.path.remove(str(folder))


def direct(model: torch.nn.Module, picture: Image.Image) -> list[dict[str, Any]]:
    with torch.inference_mode():
        (found,) = model([pixels(picture)])
    triples = zip(found["labels"].tolist(), found["scores"].tolist(), found["boxes"].tolist(), strict=True)
    return [{"label": LABELS[index], "index": index, "score": score, "box": box} for index, score, box in triples]


def test_detections_equal_a_direct_call(detector: Worker, detector_model: torch.nn.Module, pictures: list[Image.Image]) -> None:
    for picture in pictures:
        reply, wanted = detector.one(png(picture)), direct(detector_model, picture)
        assert reply.status == 200
        assert len(reply.json) == len(wanted) > 0
        for thing, expected in zip(reply.json, wanted, strict=True):
            assert (thing["label"], thing["index"]) == (expected["label"], expected["index"])
            assert thing["score"] == pytest.approx(expected["score"], abs=1e-5)
            assert thing["box"] == pytest.approx(expected["box"], abs=1e-2)
        scores = [thing["score"] for thing in reply.json]
        assert scores == sorted(scores, reverse=True)


def test_detection_leaves_out_what_is_below_min_score(
    detector: Worker, pictures: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = detector.one(png(pictures[0])).json
    middle = everything[len(everything) // 2]["score"]
    monkeypatch.setattr(detector.handler, "min_score", middle)
    kept = detector.one(png(pictures[0])).json
    assert kept == [thing for thing in everything if thing["score"] >= middle]
    monkeypatch.setattr(detector.handler, "min_score", 1.1)
    assert detector.one(png(pictures[0])).json == []


def test_a_bad_picture_among_detections(detector: Worker, pictures: list[Image.Image]) -> None:
    first, bad, second = detector.send(request(png(pictures[0])), BAD, request(png(pictures[1])))
    alone = detector.send(request(png(pictures[0])), request(png(pictures[1])))
    assert (first.status, bad.status, second.status) == (200, 400, 200)
    assert [first.body, second.body] == [reply.body for reply in alone]


def test_detections_in_v2_are_json_texts(detector: Worker, pictures: list[Image.Image]) -> None:
    data = [base64.b64encode(png(picture)).decode() for picture in pictures]
    reply = detector.one({"inputs": [{"name": "x", "shape": [2], "datatype": "BYTES", "data": data}]}, "application/json")
    assert reply.status == 200
    assert all(tensor["shape"][0] == 2 for tensor in reply.json["outputs"])


@pytest.mark.parametrize(("size", "status"), [((101, 1), 400), ((1, 101), 400), ((202, 2), 400), ((100, 1), 200), ((2, 200), 200)])
def test_a_strip_is_refused_beside_a_picture(detector: Worker, pictures: list[Image.Image], size: tuple[int, int], status: int) -> None:
    strip, plain = detector.send(request(png(Image.new("RGB", size))), request(png(pictures[0])))
    assert (strip.status, plain.status) == (status, 200)
    if status == 400:
        assert f"{size[0]} x {size[1]}, differ by more than 100 to 1" in strip.json["message"]
        assert plain.body == detector.one(png(pictures[0])).body


def test_pictures_of_full_size_go_four_at_a_time(dots: Worker, pictures: list[Image.Image], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    model = dots.handler.model

    def counted(found: list[torch.Tensor]) -> Any:
        sizes.append(len(found))
        return model(found)

    monkeypatch.setattr(dots.handler, "model", counted)
    texts = [base64.b64encode(png(pictures[i % 2])).decode() for i in range(9)]
    reply, single = dots.send(request({"instances": texts}), request(png(pictures[1])))
    assert sizes == [4, 4, 2]
    assert reply.json["predictions"] == [reply.json["predictions"][0], single.json] * 4 + [reply.json["predictions"][0]]


# ---- segmentation


@pytest.fixture(scope="module")
def segmenter_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).eval()


@pytest.fixture(scope="module")
def segmenter(segmenter_model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    folder = tmp_path_factory.mktemp("segmenter")
    manifest = archive(folder, segmenter_model, SEGMENTER_FILE, "segmenter_net")
    config = {"size": [96, 128], "model_class": "build", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    sys.path.insert(0, str(folder))
    try:
        return load(ImageSegmenter, folder, "segmenter", config=config, manifest=manifest)
    finally:
        sys.path.remove(str(folder))


def mask_of(answer: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["mask"]))))


def test_masks_equal_a_direct_call(segmenter: Worker, segmenter_model: torch.nn.Module, pictures: list[Image.Image]) -> None:
    mean, std = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    for picture in pictures:
        reply = segmenter.one(png(picture))
        seen = picture.resize((128, 96), Image.Resampling.BILINEAR)
        with torch.inference_mode():
            logits = segmenter_model(((pixels(seen) - mean) / std)[None])["out"][0]
        mask = mask_of(reply.json)
        assert (reply.json["width"], reply.json["height"]) == (128, 96)
        assert mask.shape == (96, 128)
        assert (mask == logits.argmax(0).numpy()).mean() > 0.999
        shares = {entry["index"]: entry["share"] for entry in reply.json["classes"]}
        assert shares == pytest.approx({int(i): float((mask == i).mean()) for i in np.unique(mask)}, abs=1e-6)
        assert all(entry["label"] == LABELS[entry["index"]] for entry in reply.json["classes"])
        assert list(shares.values()) == sorted(shares.values(), reverse=True)


def test_a_bad_picture_among_masks(segmenter: Worker, pictures: list[Image.Image]) -> None:
    bad, first, second = segmenter.send(BAD, request(png(pictures[0])), request(png(pictures[1])))
    alone = segmenter.send(request(png(pictures[0])), request(png(pictures[1])))
    assert (bad.status, first.status, second.status) == (400, 200, 200)
    assert [first.body, second.body] == [reply.body for reply in alone]


@pytest.mark.parametrize(("brightest", "mode"), [(255, "I;16"), (219, "I;16"), (217, "L"), (0, "L")])
def test_a_mask_of_more_than_256_classes_is_16_bits_deep(shades: Worker, brightest: int, mode: str) -> None:
    """300 classes: a grey of v is class v * 299 / 255, so 219 is the first beyond 255."""
    grey = np.linspace(0, brightest, 24 * 32).round().astype(np.uint8).reshape(24, 32)
    good, bad = shades.send(request(png(Image.fromarray(grey))), BAD)
    assert (good.status, bad.status) == (200, 400)
    wanted = (grey.astype(float) * 299 / 255).round().astype(int)
    with Image.open(io.BytesIO(base64.b64decode(good.json["mask"]))) as opened:
        assert (opened.format, opened.mode) == ("PNG", mode)
    mask = mask_of(good.json)
    assert np.array_equal(mask, wanted)
    shares = {entry["index"]: entry["share"] for entry in good.json["classes"]}
    assert shares == pytest.approx({int(i): float((wanted == i).mean()) for i in np.unique(wanted)}, abs=1e-6)


@pytest.mark.parametrize("handler", [ImageSegmenter, ImageClassifier])
@pytest.mark.parametrize("value", ["cubic", "", None, 2, ["bilinear"]])
def test_an_unknown_interpolation_is_refused_at_load(handler: type, value: Any, shades_archive: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(ModelLoadError):
        load(handler, shades_archive[0], config={"interpolation": value}, manifest=shades_archive[1])


def test_an_unknown_interpolation_is_told_the_known(shades_archive: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(ModelLoadError, match=r"interpolation must be one of nearest, bilinear, bicubic, lanczos, not 'cubic'"):
        load(ImageSegmenter, shades_archive[0], config={"interpolation": "cubic"}, manifest=shades_archive[1])


@pytest.mark.parametrize("handler", [ImageSegmenter, ImageClassifier, ObjectDetector])
@pytest.mark.parametrize("value", [[1.5, 0, 0], [0, 256, 0], [0, 0, -1], [True, 0, 0], [0, 0], 255, "white", [0.0, 0.0, 0.0]])
def test_a_background_that_is_no_colour_is_refused_at_load(handler: type, value: Any, shades_archive: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(ModelLoadError, match=r"model-config\.yaml: background must be three"):
        load(handler, shades_archive[0], config={"background": value}, manifest=shades_archive[1])


@pytest.mark.parametrize("value", [[0, 0, 0], [255, 255, 255], [1, 2, 3]])
def test_the_background_of_the_configuration(value: list[int], shades_archive: tuple[Path, dict[str, Any]]) -> None:
    folder, manifest = shades_archive
    worker = load(ImageSegmenter, folder, config={"background": value, "size": [4, 4]}, manifest=manifest)
    clear = Image.new("RGBA", (4, 4), (9, 9, 9, 0))
    assert worker.handler.picture(png(clear)).getpixel((0, 0)) == tuple(value)
    (only,) = worker.one(png(clear)).json["classes"]
    assert only["index"] == Shades.of(sum(value) / 3)


# ---- texts


def test_text_classes_equal_a_direct_call(classifier: Worker, bag: torch.nn.Module) -> None:
    texts = ["What a day!", "It rains again, and again, and the roof leaks.", "ok"]
    for text, reply in zip(texts, classifier.send(*[request(text.encode()) for text in texts]), strict=True):
        encoding = classifier.handler.tokenizer.encode(text)
        with torch.inference_mode():
            scores = bag(torch.tensor([encoding.ids]), torch.tensor([encoding.attention_mask])).softmax(1)[0]
        wanted = sorted(zip(scores.tolist(), ["sad", "so so", "glad"], strict=True), reverse=True)
        assert [entry["label"] for entry in reply.json] == [label for _, label in wanted]
        assert [entry["score"] for entry in reply.json] == pytest.approx([score for score, _ in wanted], abs=1e-5)


def test_text_classes_of_a_cut_text_beside_a_bad_one(classifier: Worker) -> None:
    long, bad, short = classifier.send(request(b"rain " * 50), request(b"\xff"), request(b"sun"))
    assert (long.status, bad.status, short.status) == (200, 400, 200)
    assert all(entry["truncated"] is True for entry in long.json)
    assert all("truncated" not in entry for entry in short.json)


def test_text_classes_in_v2_keep_their_shape_whatever_is_cut(classifier: Worker) -> None:
    for texts, flags in ((["sun", "rain " * 50], [False] * 3 + [True] * 3), (["sun", "rain"], None)):
        body = {"inputs": [{"name": "x", "shape": [2], "datatype": "BYTES", "data": texts}]}
        outputs = {tensor["name"]: tensor for tensor in classifier.one(body, "application/json").json["outputs"]}
        assert outputs["score"]["shape"] == [2, 3]
        assert outputs.get("truncated", {}).get("data") == flags

"""config.properties: read as Java reads it, written without touching the user's lines."""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path
from typing import Any

import javaproperties
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from batchline import properties
from batchline.errors import ConfigError
from batchline.properties import BEGIN, END, ModelSettings, read_configuration, write_models

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ModelSettings("digits", "1.0", batch_size=32, max_batch_delay_ms=1, min_workers=1, max_workers=1, response_timeout_s=60)
MINILM = ModelSettings("minilm", "2.0", batch_size=8, max_batch_delay_ms=2, min_workers=2, max_workers=2, response_timeout_s=30)
BLOCK = f"""{BEGIN}
models={{\\
  "digits": {{"1.0": {{"minWorkers": 1, "maxWorkers": 1, "batchSize": 32, "maxBatchDelay": 1, "responseTimeout": 60}}}},\\
  "minilm": {{"2.0": {{"minWorkers": 2, "maxWorkers": 2, "batchSize": 8, "maxBatchDelay": 2, "responseTimeout": 30}}}}\\
}}
{END}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.properties"


def read(path: Path, text: str | bytes) -> properties.Configuration:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_configuration(path)


def refusal(path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(path, text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_keys_values_and_lines(path: Path) -> None:
    configuration = read(path, "# c\n\na=1\n  b : two \\\n   words  \n! c\r\nc\td\na=3\n")
    assert configuration.values == {"a": "3", "b": "two words  ", "c": "d"}
    assert configuration.lines == {"a": 8, "b": 4, "c": 7}
    assert configuration.get("a") == "3" and configuration.get("z") == "" and configuration.get("z", "y") == "y"


def test_every_other_newline_and_latin_1(path: Path) -> None:
    assert read(path, b"a=\xe9\rb=\\u00e9\r\nc=\x85\n").values == {"a": "é", "b": "é", "c": "\x85"}


def test_environment_variables(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHLINE_PORT", "9090")
    assert read(path, "inference_address=http://127.0.0.1:$$BATCHLINE_PORT$$\n").address("inference") == ("127.0.0.1", 9090)
    monkeypatch.delenv("BATCHLINE_PORT")
    assert "config.properties:2: b: the environment has no BATCHLINE_PORT" in refusal(path, "a=1\nb=$$BATCHLINE_PORT$$\n")


def test_defaults(path: Path) -> None:
    configuration = read(path, "")
    assert [configuration.address(kind) for kind in ("inference", "management", "metrics")] == [
        ("127.0.0.1", port) for port in (8080, 8081, 8082)
    ]
    assert configuration.grpc_ports == (7070, 7071)
    assert configuration.token_auth and configuration.models == [] and configuration.load_models == []


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("HTTP://10.0.0.1:81", ("10.0.0.1", 81)),
        ("http://0.0.0.0", ("0.0.0.0", 80)),
        ("https://h", ("h", 443)),
        ("unix:/tmp/s", ("/tmp/s", -1)),
    ],
)
def test_addresses(path: Path, text: str, address: tuple[str, int]) -> None:
    assert read(path, f"inference_address={text}\n").address("inference") == address


@pytest.mark.parametrize("text", ["127.0.0.1:8080", "http://[::1]:8080", "http://127.0.0.1:8080 ", "http://h:65535"])
def test_addresses_that_stop_torchserve(path: Path, text: str) -> None:
    configuration = read(path, f"\nmetrics_address={text}\n")
    with pytest.raises(ConfigError, match=r"config\.properties:2: metrics_address: "):
        configuration.address("metrics")


@pytest.mark.parametrize(("text", "on"), [("", True), ("true", False), ("TRUE", False), ("false", True), ("true ", True)])
def test_token_authorization(path: Path, text: str, on: bool) -> None:
    assert read(path, f"disable_token_authorization={text}\n").token_auth is on


def test_load_models_is_split_as_java_splits(path: Path) -> None:
    assert read(path, "load_models=a.mar, b.mar,n=c.mar,,\n").load_models == ["a.mar", " b.mar", "n=c.mar"]


def test_models(path: Path) -> None:
    configuration = read(path, BLOCK)
    assert configuration.models == [DIGITS, MINILM]
    assert configuration.line_of("models", '"minilm"') == 4
    assert read(path, 'models={"a": {"1": {"batchSize": 4}}}').models == [ModelSettings("a", "1", batch_size=4)]


@pytest.mark.parametrize("value", ['"4"', "4.0", "true", "null"])
def test_a_setting_that_is_no_whole_number(path: Path, value: str) -> None:
    configuration = read(path, f'\nmodels={{"a": {{"1": {{"batchSize": {value}}}}}}}\n')
    with pytest.raises(ConfigError, match=r"config\.properties:2: models: batchSize of a 1 is .* — write a whole number"):
        _ = configuration.models


CUT = 'x=1\nmodels={\\\n  "a": {"1": {"batchSize": 2}},\n  "b": {"1": {}}\\\n}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CUT, ":3: models: Java cuts the JSON here and reads the next line as a key of its own — end line 3 with a backslash"),
        (CUT.replace("}},\n", "}},\n# why\n"), ":3: models: Java cuts the JSON here"),
        (CUT.replace("}},\n", "}},\\ \n"), ":3: models: Java cuts the JSON here: a blank follows the backslash — delete the blank"),
        (CUT.replace("}},\n", "}},\\\n # why\\\n"), ":4: models: a comment inside a value is part of it — move it above the key"),
        (
            CUT.replace("}},\n", "}},\\\n")[:-2] + "}\\\nport=1\n",
            ":6: models: this line is joined to the JSON above it — delete the backslash",
        ),
        ("models={'a': {}}\n", ":1: models: is not valid JSON"),
        ('models={"a": {"1": {}},}\n', ":1: models: is not valid JSON"),
        ('models={"a": {"1": {}}, "a": {}}\n', ":1: models: is not valid JSON ('a' stands there twice)"),
        ('models={"a": {"1": {"batchSize": NaN}}}\n', ":1: models: is not valid JSON (NaN"),
        ("models=" + "[" * 200_000, ":1: models: is not valid JSON"),
        ("models=\n", ":1: models: is not valid JSON"),
        ("models=[]\n", ":1: models: has not the form"),
        ('models={"a": {"batchSize": 1}}\n', ":1: models: has not the form"),
        ('model_snapshot={\\\n"name": "x"\n}\n', ":2: model_snapshot: Java cuts the JSON here"),
        ("a=1\nb=\\u00zz\n", ":2: \\u00zz: is no Unicode escape"),
    ],
)
def test_what_torchserve_could_not_read(path: Path, text: str, said: str) -> None:
    assert refusal(path, text).removeprefix(str(path)).startswith(said)


def test_the_line_that_java_would_really_see() -> None:
    """The cut is real: Java makes the rest of the JSON keys of their own."""
    assert set(javaproperties.loads(CUT)) == {"x", "models", '"b"'}


def test_an_unreadable_file(tmp_path: Path) -> None:
    for missing in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_configuration(missing)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", BLOCK),
        ("# mine \n a : 1\n", "# mine \n a : 1\n\n" + BLOCK),
        ("a=1", "a=1\n\n" + BLOCK),
        ("a=1\\", "a=1\\\n\n" + BLOCK),
        ("a=1\nmodels={\\\n}\n#\xe9\nb=2", "a=1\n" + BLOCK + "#\xe9\nb=2"),
        ("a=1\nmodels={}", "a=1\n" + BLOCK[:-1]),
        (f"a=1\n{BEGIN}\nmodels={{}}\n# gone\n{END}\n\nb=2\n", "a=1\n" + BLOCK + "\nb=2\n"),
        (f"models={{}}\na=1\n{BEGIN}\n{END}\nmodels={{}}\nb=2\n", "a=1\n" + BLOCK + "b=2\n"),
    ],
)
def test_write_keeps_every_other_byte(path: Path, before: str, after: str, newline: str) -> None:
    path.write_bytes(before.replace("\n", newline).encode("iso-8859-1"))
    write_models(path, [DIGITS, MINILM])
    expected = after.replace("\n", newline if "\n" in before else "\n")
    assert path.read_bytes() == expected.encode("iso-8859-1")
    assert read_configuration(path).models == [DIGITS, MINILM]


names = st.text(st.characters(exclude_characters="$"), min_size=1, max_size=8)
counts = st.integers(1, 2**31 - 1)
models = st.builds(lambda name, version, *n: ModelSettings(name, version, n[0], n[1], n[2], n[2], n[3]), names, names, *[counts] * 4)
lines = st.lists(st.sampled_from(["a=1", "b : \\", "   c d\\", "", "# x\\", "! models={}", "models={}", "q\\=z=\\u0041", "é="]), max_size=6)


@given(lines, st.lists(models, max_size=4, unique_by=lambda m: (m.name, m.version)), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, text: list[str], settings: list[ModelSettings], newline: str, end: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.properties"
    path.write_bytes((newline.join(text) + newline * end).encode())
    before = read_configuration(path)
    write_models(path, settings)
    after, written = read_configuration(path), path.read_bytes()
    assert set(after.models) == set(settings)
    assert {k: v for k, v in after.values.items() if k != "models"} == {k: v for k, v in before.values.items() if k != "models"}
    write_models(path, settings)
    assert path.read_bytes() == written


def test_other_keys_of_a_model_are_kept(path: Path) -> None:
    read(path, 'models={"digits": {"1.0": {"startupTimeout": 300, "batchSize": 1}}}\n')
    write_models(path, [DIGITS])
    assert read_configuration(path).model_settings["digits"]["1.0"] == {
        "minWorkers": 1, "maxWorkers": 1, "batchSize": 32, "maxBatchDelay": 1, "responseTimeout": 60, "startupTimeout": 300,
    }  # fmt: skip


def test_mode_and_link_survive(path: Path) -> None:
    target = path.with_name("real.properties")
    target.write_text("a=1\n")
    target.chmod(0o640)
    path.symlink_to(target.name)
    write_models(path, [DIGITS])
    assert path.is_symlink() and target.stat().st_mode & 0o777 == 0o640
    assert os.listdir(path.parent) == unordered(["config.properties", "real.properties"])


class unordered(list[str]):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and sorted(self) == sorted(other)


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        ("a=1\n", [ModelSettings("a", "1", 1, 1, 1, 1)], "responseTimeout is None"),
        ("a=1\n", [ModelSettings("a", "1", 2, 0, 1, 1, 60)], "maxBatchDelay is 0"),
        ("a=1\n", [ModelSettings("a", "1", 2**31, 1, 1, 1, 60)], "batchSize is 2147483648"),
        ("a=1\n", [ModelSettings("a", "1", 1, 1, 1, 2, 60)], "minWorkers is not maxWorkers"),
        ("a=1\n", [DIGITS, DIGITS], "it stands there twice"),
        (f"a=1\n{BEGIN}\nb=2\n", [DIGITS], "config.properties:2: the markers of batchline's block do not pair"),
        (f"{END}\n{BEGIN}\n", [DIGITS], "do not pair"),
        (f"{BEGIN}\n{BEGIN}\n{END}\n", [DIGITS], "do not pair"),
        (f"{BEGIN}\njob_queue_size=9\n{END}\n", [DIGITS], ":2: job_queue_size: stands between batchline's markers and would be lost"),
        ("a=1\n", [ModelSettings("$$HOME$$", "1", 1, 1, 1, 1, 60)], "plain names"),
        (CUT, [DIGITS], "Java cuts the JSON here"),
    ],
)
def test_a_refused_write_leaves_the_file_and_nothing_else(path: Path, text: str, settings: list[ModelSettings], said: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        write_models(path, settings)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_text() == text
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_before_the_replacement_leaves_the_original(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    path.write_text("a=1\n")

    def fail(*args: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises((ConfigError, KeyboardInterrupt)):
            write_models(path, [DIGITS])
    assert path.read_text() == "a=1\n" and os.listdir(path.parent) == [path.name]


def test_a_process_killed_at_any_point_leaves_one_of_the_two(path: Path) -> None:
    """A child that is ended without clean-up at the n-th system call of the write: the file is the old one or the new one, whole."""
    found = set()
    for owner, step in ((os, "fsync"), (os, "replace"), (Path, "unlink")):
        path.write_text("a=1\n")
        child = os.fork()
        if child == 0:
            setattr(owner, step, lambda *args, **kwargs: os._exit(9))
            write_models(path, [DIGITS])
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        configuration = read_configuration(path)
        assert configuration.get("a") == "1" and configuration.models in ([], [DIGITS])
        found.add(len(configuration.models))
    assert found == {0, 1}


def test_unchanged_content_is_not_written_again(path: Path) -> None:
    path.write_text("a=1\n")
    write_models(path, [DIGITS])
    before = path.stat()
    write_models(path, [DIGITS])
    assert path.stat().st_ino == before.st_ino and path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("file", ["config.properties", "deploy/config.properties"])
def test_the_shipped_files_are_as_written(tmp_path: Path, file: str) -> None:
    text = (ROOT / file).read_bytes()
    copy = tmp_path / "config.properties"
    copy.write_bytes(text.replace(b'"minWorkers": 1', b'"minWorkers": 3').replace(b'"maxWorkers": 1', b'"maxWorkers": 3'))
    settings = read_configuration(ROOT / file).models
    assert [model.name for model in settings] == ["digits", "efficientnet_lite0", "minilm"]
    write_models(copy, settings)
    assert copy.read_bytes() == text


def test_the_two_shipped_files_serve_the_same() -> None:
    local, deployed = (read_configuration(ROOT / file) for file in ("config.properties", "deploy/config.properties"))
    assert json.loads(local.get("models")) == json.loads(deployed.get("models"))
    assert local.load_models == deployed.load_models
    assert not local.token_auth and deployed.token_auth


def test_metrics_yaml_adds_what_the_handlers_observe_to_torchserves_own() -> None:
    shipped = yaml.safe_load((ROOT / "metrics.yaml").read_text())
    own = {name: (kind, unit, dimensions) for kind, name, unit, dimensions in model_metrics(shipped) if name.startswith("batchline_")}
    assert own == runpy.run_path(str(ROOT / "handlers" / "metrics.py"))["DEFINED"]
    ts = pytest.importorskip("ts")
    stock = yaml.safe_load((Path(ts.__file__).parent / "configs" / "metrics.yaml").read_text())
    assert shipped["ts_metrics"] == stock["ts_metrics"]
    assert [metric for metric in model_metrics(shipped) if metric[1] not in own] == model_metrics(stock)


def model_metrics(config: dict[str, Any]) -> list[tuple[str, str, str, list[str]]]:
    return [(kind, m["name"], m["unit"], m["dimensions"]) for kind, found in config["model_metrics"].items() for m in found]

"""Every refusal of the configuration lint, each against real little archives."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchline.errors import ConfigError
from batchline.lint import DEFAULT_SIZE, KEYS, ArchiveFacts, Problem, check, lint, read_archives
from batchline.properties import read_configuration
from batchline.ready import archives

ROOT = Path(__file__).resolve().parents[2]
GOOD = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 4, "maxBatchDelay": 5, "responseTimeout": 60}
YAML = {"responseTimeout": 60, "startupTimeout": 120}


def write_archive(store: Path, name: str, version: str = "1.0", config: Any = YAML, ours: bool = True, extra: dict[str, str] | None = None,
                  **manifest: str) -> None:  # fmt: skip
    model = {"modelName": name, "modelVersion": version, "handler": "handler.py", **manifest}
    store.mkdir(exist_ok=True)
    with zipfile.ZipFile(store / f"{name}.mar", "w") as archive:
        if config is not None:
            model["configFile"] = "model-config.yaml"
            archive.writestr("model-config.yaml", config if isinstance(config, str) else yaml.safe_dump(config))
        if ours:
            archive.writestr("batchline/handlers/__init__.py", "")
        for file, text in (extra or {}).items():
            archive.writestr(file, text)
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_archive(tmp_path / "store", "a")
    return tmp_path / "store"


def models(**settings: Any) -> str:
    return "models=" + json.dumps({"a": {"1.0": {**GOOD, **settings}}})


def problems(store: Path, *lines: str, cores: int = 2, load: str = "a.mar", settings: str | None = None) -> list[str]:
    """What the lint says of a configuration, without the path in front."""
    path = store.parent / "config.properties"
    path.write_text("\n".join([f"load_models={load}", settings if settings is not None else models(), *lines]) + "\n")
    return [str(problem).removeprefix(str(path)) for problem in lint(read_configuration(path), store, cores)]


def one(found: list[str]) -> str:
    assert len(found) == 1, found
    _, dash, remedy = found[0].partition(" — ")
    assert dash and remedy and "\n" not in found[0]
    return found[0]


def test_nothing_is_wrong(store: Path) -> None:
    assert problems(store) == []
    assert problems(store, load="all") == []


def test_a_problem_names_line_key_and_remedy() -> None:
    assert str(Problem(12, "models", "is wrong", "mend it")) == "config.properties:12: models: is wrong — mend it"
    assert str(Problem(None, "models", "is wrong", "mend it", "x/c.properties")) == "x/c.properties: models: is wrong — mend it"


@pytest.mark.parametrize("file", ["config.properties", "deploy/config.properties"])
def test_the_shipped_configurations(tmp_path: Path, file: str) -> None:
    names = ("digits", "efficientnet_lite0", "minilm")
    for name in names:
        write_archive(tmp_path, name, config=(ROOT / "models" / name / "model-config.yaml").read_text())
    assert [model.name for model in check(ROOT / file, tmp_path, cores=2).models] == list(names)


def test_check_lists_all_problems_one_a_line(store: Path) -> None:
    path = store.parent / "config.properties"
    path.write_text(f"load_models=a.mar\n{models(maxWorkers=2)}\njob_queue=1\nport=2\n")
    with pytest.raises(ConfigError) as caught:
        check(path, store)
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == [f"{path}:{n}" for n in (2, 3, 4)]


def test_check_reads_what_java_would_cut_first(store: Path) -> None:
    path = store.parent / "config.properties"
    path.write_text('load_models=a.mar\nmodels={\\\n"a": {"1.0": {}}\n}\n')
    with pytest.raises(ConfigError, match=r":3: models: Java cuts the JSON here .* — end line 3 with a backslash"):
        check(path, store)


# the models and the archives


def test_a_model_that_no_archive_has(store: Path) -> None:
    write_archive(store, "resnet")
    settings = json.dumps({"a": {"1.0": GOOD}, "resnt": {"1.0": GOOD}})
    assert one(problems(store, settings=f"models={settings}")) == ":2: models: no archive has a model resnt — did you mean resnet?"


def test_a_version_that_no_archive_has(store: Path) -> None:
    settings = json.dumps({"a": {"1.0.0": GOOD}})
    said = ":2: models: no archive has version '1.0.0' of a, only '1.0' — write \"1.0\""
    assert one(problems(store, settings=f"models={settings}")) == said


def test_the_line_is_that_of_the_model(store: Path) -> None:
    settings = "models={\\\n " + json.dumps({"a": {"1.0": GOOD}})[1:-1] + ',\\\n "b": {"1": {}}\\\n}'
    assert one(problems(store, settings=settings)).startswith(":4: models: no archive has a model b")


def test_an_archive_that_is_not_there(store: Path) -> None:
    settings = json.dumps({"a": {"1.0": GOOD}, "b": {"1.0": GOOD}})
    said = one(problems(store, load="a.mar,b.mar", settings=f"models={settings}"))
    assert said.startswith(":1: load_models: the model store has no archive b.mar — ")
    write_archive(store, "abc")
    assert "did you mean abc.mar?" in one(problems(store, load="a.mar,abd.mar"))


def test_an_archive_without_settings(store: Path) -> None:
    write_archive(store, "b", "2.0")
    for load in ("a.mar,b.mar", "all", "ALL"):
        assert one(problems(store, load=load)).startswith(":2: models: b.mar (b 2.0) has no settings")


def test_a_second_version_without_settings(store: Path) -> None:
    write_archive(store, "a2", "2.0", modelName="a")
    assert "a2.mar (a 2.0) has no settings" in one(problems(store, load="a.mar,a2.mar"))


def test_a_name_given_in_load_models(store: Path) -> None:
    assert problems(store, load="other=a.mar", settings=models().replace('"a"', '"other"')) == []
    assert "other 1.0) has no settings" in one(problems(store, load="other=a.mar"))


def test_models_without_load_models(store: Path) -> None:
    assert one(problems(store, load="")).startswith(":2: models: loads nothing without load_models")


@pytest.mark.parametrize("load", ["a.mar, b.mar", "a.mar,b.mar ", "a.mar ,b.mar"])
def test_blanks_in_load_models(store: Path, load: str) -> None:
    write_archive(store, "b")
    settings = json.dumps({"a": {"1.0": GOOD}, "b": {"1.0": GOOD}})
    assert one(problems(store, load=load, settings=f"models={settings}")).startswith(":1: load_models: a blank beside '")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read (BadZipFile"),
        (b"not a zip", "cannot be read (BadZipFile"),
        ({}, "no item named 'MAR-INF/MANIFEST.json'"),
        ({"MAR-INF/MANIFEST.json": "{"}, "cannot be read (JSONDecodeError"),
        ({"MAR-INF/MANIFEST.json": "[]"}, "cannot be read (TypeError"),
        ({"MAR-INF/MANIFEST.json": "{}"}, "cannot be read (KeyError"),
        ({"MAR-INF/MANIFEST.json": '{"model": []}'}, "cannot be read (AttributeError"),
        ({"MAR-INF/MANIFEST.json": '{"model": {"configFile": "c"}}'}, "no item named 'c'"),
        ({"MAR-INF/MANIFEST.json": '{"model": {"configFile": "c"}}', "c": "- 1"}, "c must hold keys and values"),
        ({"MAR-INF/MANIFEST.json": '{"model": {"configFile": "c"}}', "c": "a: ]"}, "cannot be read (ParserError"),
        ({"MAR-INF/MANIFEST.json": '{"model": {"configFile": "c"}}', "c": "a: \x00"}, "cannot be read (ReaderError"),
    ],
)
def test_a_broken_archive(store: Path, content: bytes | dict[str, str], said: str) -> None:
    broken = store / "a.mar"
    if isinstance(content, bytes):
        broken.write_bytes(content)
    else:
        with zipfile.ZipFile(broken, "w") as archive:
            for file, text in content.items():
                archive.writestr(file, text)
    found = one(problems(store))
    assert found.startswith(":1: load_models: a.mar ") and said in found and found.endswith("build it again with `make archive`")


def test_a_truncated_archive(store: Path) -> None:
    whole = (store / "a.mar").read_bytes()
    for length in range(0, len(whole), 7):
        (store / "a.mar").write_bytes(whole[:length])
        assert one(problems(store)).startswith(":1: load_models: a.mar cannot be read")


def test_no_model_store(tmp_path: Path) -> None:
    assert "the model store has no archive a.mar" in one(problems(tmp_path / "none"))


def test_facts_of_an_archive(store: Path) -> None:
    write_archive(store, "b", "3", config=None, ours=False, extra={"requirements.txt": "x"}, requirementsFile="requirements.txt")
    assert read_archives(store) == {
        "a.mar": ArchiveFacts("a", "1.0", YAML),
        "b.mar": ArchiveFacts("b", "3", None, requirements=True, requirements_listed=True, ours=False),
    }


# keys


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("job_queue_sise=1", ":3: job_queue_sise: TorchServe does not know this key and ignores it — did you mean job_queue_size?"),
        ("jobQueueSize=1", ":3: jobQueueSize: TorchServe does not know this key and ignores it — did you mean job_queue_size?"),
        ("xyzzy=1", ":3: xyzzy: TorchServe does not know this key and ignores it — delete it"),
        ("batch_size=8", ":3: batch_size: TorchServe ignores it here, it belongs to a model — write batchSize into"),
        ("maxBatchDelay=8", ":3: maxBatchDelay: TorchServe ignores it here, it belongs to a model — write maxBatchDelay into"),
    ],
)
def test_unknown_keys(store: Path, line: str, said: str) -> None:
    assert one(problems(store, line)).startswith(said)


def test_duplicate_keys(store: Path) -> None:
    found = one(problems(store, "job_queue_size=1", "#", "job_queue_size=1"))
    assert found.startswith(":5: job_queue_size: stands in line 3 as well")


def test_the_known_keys_are_those_of_the_installed_torchserve() -> None:
    """Each is a constant in ConfigManager.class, or read by the Python launcher."""
    ts = pytest.importorskip("ts")
    frontend = Path(ts.__file__).parent / "frontend" / "model-server.jar"
    constants = zipfile.ZipFile(frontend).read("org/pytorch/serve/util/ConfigManager.class")
    launcher = Path(ts.__file__).with_name("model_server.py").read_text()
    assert [key for key in KEYS if key.encode() not in constants and f'"{key}"' not in launcher] == []


@pytest.mark.parametrize("value", ["1.5", "4 ", "many", "", "99999999999"])
def test_numbers_that_stop_torchserve(store: Path, value: str) -> None:
    assert one(problems(store, f"job_queue_size={value}")).startswith(f":3: job_queue_size: {value!r} is not a whole number")


@pytest.mark.parametrize("value", ["yes", "1", "true ", ""])
def test_booleans_that_are_read_as_false(store: Path, value: str) -> None:
    assert one(problems(store, f"enable_model_api={value}")).startswith(f":3: enable_model_api: TorchServe reads {value!r} as false")


def test_addresses_that_stop_torchserve(store: Path) -> None:
    assert one(problems(store, "inference_address=127.0.0.1:80")).startswith(":3: inference_address: '127.0.0.1:80' is no address")


def test_an_envelope_would_fail_all_but_one(store: Path) -> None:
    found = one(problems(store, "service_envelope=kserve"))
    assert found.startswith(":3: service_envelope: an envelope answers one request of a batch and fails the others — delete it")
    assert problems(store, "service_envelope=") == []


@pytest.mark.parametrize("mode", ["log", "prometheus", "legacy"])
def test_known_metrics_modes(store: Path, mode: str) -> None:
    assert problems(store, f"metrics_mode={mode}") == []


@pytest.mark.parametrize("mode", ["prometeus", "Log ", "json", ""])
def test_an_unknown_metrics_mode(store: Path, mode: str) -> None:
    assert one(problems(store, f"metrics_mode={mode}")).startswith(f":3: metrics_mode: TorchServe knows no mode {mode!r}")


def test_a_metrics_file_that_is_not_there(store: Path) -> None:
    line = "metrics_config=my-metrics.yaml"
    assert one(problems(store, line)).startswith(":3: metrics_config: there is no file my-metrics.yaml")
    (store.parent / "my-metrics.yaml").write_text("")
    assert problems(store, line) == []
    assert problems(store, f"metrics_config={store.parent / 'my-metrics.yaml'}") == []
    assert len(problems(store, f"metrics_config={store.parent}")) == 1  # a folder


@pytest.mark.parametrize("size", ["0", "00", "-1"])
def test_a_queue_that_holds_nothing(store: Path, size: str) -> None:
    assert one(problems(store, f"job_queue_size={size}")).startswith(
        ":3: job_queue_size: a queue that holds nothing answers every request 503"
    )
    assert problems(store, "job_queue_size=1") == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["management_address=http://127.0.0.1:8080"], ":3: management_address: port 8080 is inference_address's already"),
        (["metrics_address=http://127.0.0.1:8081"], ":3: metrics_address: port 8081 is management_address's already"),
        (["inference_address=http://127.0.0.1:8082"], ": metrics_address: port 8082 is inference_address's already"),
        (["grpc_inference_port=8080"], ":3: grpc_inference_port: port 8080 is inference_address's already"),
        (["grpc_inference_port=7071"], ": grpc_management_port: port 7071 is grpc_inference_port's already"),
        (["grpc_inference_port=9", "grpc_management_port=9"], ":4: grpc_management_port: port 9 is grpc_inference_port's already"),
    ],
)
def test_one_port_twice(store: Path, lines: list[str], said: str) -> None:
    assert one(problems(store, *lines)).startswith(f"{said} — give each its own")


def test_sockets_have_no_port(store: Path) -> None:
    assert problems(store, "inference_address=unix:/tmp/a", "management_address=unix:/tmp/b") == []


@pytest.mark.parametrize("load", ["a.mar,a.mar", "a.mar,b.mar,a.mar"])
def test_an_archive_named_twice(store: Path, load: str) -> None:
    write_archive(store, "b")
    settings = json.dumps({"a": {"1.0": GOOD}, "b": {"1.0": GOOD}})
    found = [said for said in problems(store, load=load, settings=f"models={settings}") if "load_models" in said]
    assert one(found) == ":1: load_models: a.mar stands there twice — name each archive once"


@pytest.mark.parametrize(
    ("load", "wanted"),
    [
        ("all", ["a.mar", "b.mar"]),
        ("ALL", ["a.mar", "b.mar"]),
        ("All", ["a.mar", "b.mar"]),
        ("a.mar", ["a.mar"]),
        ("x=a.mar,b.mar", ["a.mar", "b.mar"]),
        ("", []),
    ],
)
def test_the_archives_to_wait_for(store: Path, load: str, wanted: list[str]) -> None:
    write_archive(store, "b")
    path = store.parent / "config.properties"
    path.write_text(f"load_models={load}\n")
    assert archives(read_configuration(path), store) == wanted


# the models JSON


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch_size": 8}, "TorchServe ignores batch_size of a 1.0 — did you mean batchSize?"),
        ({"batchsize": 8}, "TorchServe ignores batchsize of a 1.0 — did you mean batchSize?"),
        ({"xyzzy": 8}, "TorchServe ignores xyzzy of a 1.0 — delete it"),
        ({"batchSize": "8"}, "batchSize of a 1.0 is '8' — write a whole number"),
        ({"batchSize": 1.5}, "batchSize of a 1.0 is 1.5 — write a whole number"),
        ({"batchSize": True}, "batchSize of a 1.0 is True — write a whole number"),
        ({"batchSize": None}, "batchSize of a 1.0 is None — write a whole number"),
        ({"batchSize": 2**31}, "batchSize of a 1.0 is 2147483648 — write a whole number"),
        ({"batchSize": 0}, "batchSize of a 1.0 is 0, which TorchServe takes for not given"),
        ({"maxBatchDelay": 0}, "maxBatchDelay of a 1.0 is 0, which TorchServe takes for not given: 100 ms — write 1 or more"),
        ({"maxBatchDelay": -5}, "maxBatchDelay of a 1.0 is -5"),
        ({"minWorkers": 2}, "minWorkers 2 of a 1.0 is more than maxWorkers 1 — make them equal"),
        ({"maxWorkers": 2}, "a 1.0 would have 1 workers for ever: TorchServe never scales up to 2 by itself — make them equal"),
        ({"minWorkers": 0, "maxWorkers": 0}, "minWorkers of a 1.0 is 0"),
    ],
)
def test_what_stands_in_the_models(store: Path, settings: dict[str, Any], said: str) -> None:
    assert problems(store, settings=models(**settings))[0].startswith(f":2: models: {said}")


def test_only_one_worker_count(store: Path) -> None:
    settings = json.dumps({"a": {"1.0": {key: value for key, value in GOOD.items() if key != "maxWorkers"}}})
    assert "a 1.0 has only one of minWorkers and maxWorkers" in one(problems(store, settings=f"models={settings}"))


def test_a_lone_request_needs_no_delay(store: Path) -> None:
    assert problems(store, settings=models(batchSize=1, maxBatchDelay=0)) == []


def test_keys_of_torchserves_own_examples_are_known(store: Path) -> None:
    assert problems(store, settings=models(defaultVersion=True, marName="a.mar", startupTimeout=120)) == []


# threads


@pytest.mark.parametrize(
    ("workers", "threads", "cores", "refused"),
    [(2, None, 2, False), (3, None, 2, True), (1, 2, 2, False), (2, 2, 2, True), (2, 2, 4, False), (2, 0, 2, False), (1, 3, 2, True)],
)
def test_more_threads_than_cores(store: Path, workers: int, threads: int | None, cores: int, refused: bool) -> None:
    write_archive(store, "a", config=YAML if threads is None else {**YAML, "threads": threads})
    found = problems(store, settings=models(minWorkers=workers, maxWorkers=workers), cores=cores)
    assert bool(found) is refused
    if refused:
        said = f":2: models: a: {workers} workers of {threads or 1} threads are more than {cores} cores"
        assert one(found).startswith(said)


def test_idle_models_cost_no_core(store: Path) -> None:
    names = ("a", "b", "c")
    for name in names:
        write_archive(store, name)
    settings = json.dumps({name: {"1.0": GOOD} for name in names})
    assert problems(store, load="a.mar,b.mar,c.mar", settings=f"models={settings}", cores=2) == []


def test_workers_of_a_gpu(store: Path) -> None:
    many = models(minWorkers=8, maxWorkers=8)
    assert problems(store, "number_of_gpu=4", settings=many) == []
    assert len(problems(store, "number_of_gpu=0", settings=many)) == 1
    write_archive(store, "a", config={**YAML, "deviceType": "cpu"})
    assert len(problems(store, "number_of_gpu=4", settings=many)) == 1
    write_archive(store, "a", config={**YAML, "threads": 2})
    assert len(problems(store, "number_of_gpu=4", settings=many)) == 1


def test_default_workers_count(store: Path) -> None:
    settings = json.dumps({"a": {"1.0": {"batchSize": 1}}})
    assert problems(store, settings=f"models={settings}") == []
    assert "a: 3 workers" in one(problems(store, "default_workers_per_model=3", settings=f"models={settings}"))


# the archive's own configuration


@pytest.mark.parametrize("key", ["minWorkers", "maxWorkers", "batchSize", "maxBatchDelay"])
def test_batch_and_worker_numbers_in_the_archive(store: Path, key: str) -> None:
    write_archive(store, "a", config={**YAML, key: 1})
    assert one(problems(store)).startswith(f":2: models: model-config.yaml in a.mar sets {key}, which would silently win over this file")


def test_a_yaml_without_timeouts_resets_them(store: Path) -> None:
    write_archive(store, "a", config={"startupTimeout": 120})
    found = one(problems(store))
    assert found.startswith(":2: models: responseTimeout 60 is lost: model-config.yaml in a.mar has no responseTimeout, which makes it 120")
    assert found.endswith("write responseTimeout: 60 into model-config.yaml and build the archive again")
    write_archive(store, "a", config={"responseTimeout": 60})
    assert problems(store) == []
    assert "startupTimeout 300 is lost" in one(problems(store, "default_startup_timeout=300"))
    assert "startupTimeout 200 is lost" in one(problems(store, settings=models(startupTimeout=200)))


def test_a_yaml_with_another_timeout(store: Path) -> None:
    write_archive(store, "a", config={**YAML, "responseTimeout": 90})
    assert "responseTimeout 60 is lost: model-config.yaml in a.mar says 90" in one(problems(store))
    write_archive(store, "a", config=YAML)
    assert problems(store, "default_response_timeout=30", "default_startup_timeout=30") == []  # a model may differ from a default


def test_an_archive_without_yaml_resets_nothing(store: Path) -> None:
    write_archive(store, "a", config=None)
    assert problems(store, "default_startup_timeout=300") == []


def test_max_response_size(store: Path) -> None:
    found = one(problems(store, "max_response_size=1000"))
    assert found.startswith(
        f":3: max_response_size: is 1000, but the handler in a.mar goes by {DEFAULT_SIZE}: an answer between the two would kill"
    )
    write_archive(store, "a", config={**YAML, "max_response_size": 1000})
    assert problems(store, "max_response_size=1000") == []
    assert "it refuses answers that TorchServe would send" in one(problems(store))
    write_archive(store, "a", ours=False)
    assert problems(store, "max_response_size=1000") == []  # another handler knows nothing of the limit


def test_requirements(store: Path) -> None:
    write_archive(store, "a", extra={"requirements.txt": "x"})
    assert "a.mar holds a requirements.txt, which is ignored unless this is true" in one(problems(store))
    on = "install_py_dep_per_model=true"
    assert one(problems(store, on)).startswith(
        ":3: install_py_dep_per_model: a.mar holds a requirements.txt that its manifest does not name"
    )
    write_archive(store, "a", extra={"requirements.txt": "x"}, requirementsFile="requirements.txt")
    assert problems(store, on) == []
    assert len(problems(store)) == 1


# who can reach it


@pytest.mark.parametrize("key", ["inference_address", "management_address", "grpc_inference_address", "grpc_management_address"])
@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "example.com"])
def test_reachable_without_authorization(store: Path, key: str, host: str) -> None:
    line = f"{key}={host}" if key.startswith("grpc") else f"{key}=http://{host}:9000"
    assert problems(store, line) == []
    found = one(problems(store, line, "disable_token_authorization=true"))
    assert found.startswith(f":3: {key}: {host} can be reached from other machines and token authorization is off")


@pytest.mark.parametrize("off", ["true", "false"])
def test_reachable_metrics(store: Path, off: str) -> None:
    found = one(problems(store, "metrics_address=http://0.0.0.0:8082", f"disable_token_authorization={off}"))
    assert "/metrics never asks for a token" in found


@pytest.mark.parametrize("place", ["http://127.0.0.1:1", "http://127.1.2.3:1", "http://localhost:1", "unix:/tmp/s"])
def test_loopback_needs_no_authorization(store: Path, place: str) -> None:
    assert problems(store, f"inference_address={place}", "disable_token_authorization=true") == []


# snapshots


STATE = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 1, "maxBatchDelay": 1}


def snapshot(state: Any) -> str:
    return "model_snapshot=" + json.dumps({"name": "s", "models": {"a": {"1.0": state}}})


def test_a_snapshot_with_missing_fields(store: Path) -> None:
    path = store.parent / "config.properties"
    for key in STATE:
        path.write_text(snapshot({k: v for k, v in STATE.items() if k != key}) + "\n")
        said = one([str(problem) for problem in lint(read_configuration(path), store, 2)])
        assert said.startswith(f"{path}:1: model_snapshot: a 1.0 has no {key}: TorchServe would stop at the start — ")
    path.write_text(snapshot(STATE) + "\n")
    assert lint(read_configuration(path), store, 2) == []


def test_a_snapshot_makes_the_rest_void(store: Path) -> None:
    assert "makes TorchServe ignore load_models and models" in one(problems(store, snapshot(STATE)))


@pytest.mark.parametrize("value", ["[]", "{}", '{"models": []}', '{"models": {"a": 1}}', '{"models": {"a": {"1": 1}}}'])
def test_a_snapshot_of_another_form(store: Path, value: str) -> None:
    path = store.parent / "config.properties"
    path.write_text(f"model_snapshot={value}\n")
    assert "has not the form that TorchServe restores" in one([str(problem) for problem in lint(read_configuration(path), store, 2)])

"""Refuses a configuration that TorchServe would misread, ignore or die of, naming line, key and remedy.

Threads are counted model by model: workers of one model run at the same time under its own load, while an idle model costs no core,
so three models of one worker each are fine on two cores and one model of three workers is not.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import yaml

from batchline.errors import ConfigError
from batchline.keys import BOOLEANS, INTEGERS, KEYS
from batchline.properties import LARGEST, SETTINGS, Configuration, parse_json, read_configuration
from batchline.properties import Problem as Problem

# What a model's JSON may hold; the last four are read from a snapshot only, or from none, and stand in TorchServe's own examples.
MODEL_KEYS = (*SETTINGS, "startupTimeout", "runtimeType", "defaultVersion", "marName", "parallelLevel")
NUMBERS = (*SETTINGS, "startupTimeout")
ONE_HOME = ("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay")
PER_MODEL = {key.lower(): key for key in MODEL_KEYS}
KINDS = ("inference", "management", "metrics")
DEFAULT_TIMEOUT_S = 120
DEFAULT_SIZE = 6553500  # bytes, of a request and of a response


@dataclass(frozen=True)
class ArchiveFacts:
    """What the lint needs to know of one archive.

    Attributes:
        name, version: from its manifest.
        config: its model-config.yaml; None where it has none.
        requirements: it holds a requirements.txt.
        requirements_listed: its manifest names one; TorchServe looks at no other.
        ours: it carries batchline's handlers.
        fault: why it cannot be served; empty when it can.
    """

    name: str
    version: str
    config: Mapping[str, Any] | None = None
    requirements: bool = False
    requirements_listed: bool = False
    ours: bool = True
    fault: str = ""


Facts = Mapping[str, ArchiveFacts]  # by file name


def check(path: Path, model_store: Path, cores: int | None = None) -> Configuration:
    """Reads and lints a configuration against the archives in model_store; raises ConfigError with one problem a line."""
    configuration = read_configuration(path)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    problems = lint(configuration, model_store, cores or allowed)
    if problems:
        raise ConfigError("\n".join(map(str, problems)))
    return configuration


def lint(configuration: Configuration, archives: Facts | Path, cores: int) -> list[Problem]:
    """Everything wrong with a configuration, in the order of the file.

    Args:
        configuration: what was read.
        archives: file name -> facts of every archive in the model store, or the store itself.
        cores: cores that TorchServe's workers may use.
    """
    facts = read_archives(archives) if isinstance(archives, Path) else archives
    found = [problem for rule in (_keys, _values, _choices, _ports, _reach, _snapshot, _numbers) for problem in rule(configuration)]
    found += [problem for rule in (_loading, _orphans, _unset) for problem in rule(configuration, facts)]
    for file, archive in _loaded(configuration, facts):
        for one in (_batching_in_yaml, _timeouts, _response_size, _requirements):
            found += one(configuration, file, archive)
        found += _threads(configuration, archive, cores)
    return sorted(found, key=lambda problem: (problem.line is None, problem.line or 0))


def read_archives(store: Path) -> dict[str, ArchiveFacts]:
    """File name -> facts of every .mar in a model store; one that cannot be read has a fault."""
    return {path.name: _read_archive(path) for path in sorted(store.glob("*.mar")) if not path.name.startswith(".")}


def _read_archive(path: Path) -> ArchiveFacts:
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            model = json.loads(archive.read("MAR-INF/MANIFEST.json"))["model"]
            listed = model.get("requirementsFile")
            return ArchiveFacts(
                name=model.get("modelName") or path.stem,
                version=str(model.get("modelVersion", "1.0")),
                config=_read_config(archive, model["configFile"]) if model.get("configFile") else None,
                requirements=bool(listed) or "requirements.txt" in names,
                requirements_listed=bool(listed),
                ours="batchline/handlers/__init__.py" in names,
            )
    # whatever bytes lie there: not a zip, no manifest, no JSON, no YAML, other types than expected
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, LookupError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        return ArchiveFacts(path.stem, "", fault=f"cannot be read ({type(error).__name__}: {' '.join(str(error).split())})")


def _read_config(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    config = yaml.safe_load(archive.read(name)) or {}
    if not isinstance(config, dict):
        raise ValueError(f"{name} must hold keys and values")
    return config


def _wanted(configuration: Configuration, facts: Facts) -> list[tuple[str, str]]:
    """What load_models names: (file name, the model's name or "" for the one in the manifest). A URL counts as its last part."""
    if configuration.get("load_models").upper() == "ALL":
        return [(file, "") for file in facts]
    items = [item.strip() for item in configuration.load_models if item.strip()]
    pairs = [item.split("=", 1) if "=" in item else ["", item] for item in items]
    return [(url.rsplit("/", 1)[-1], alias) for alias, url in pairs if url]


def _loaded(configuration: Configuration, facts: Facts) -> list[tuple[str, ArchiveFacts]]:
    """Every archive that TorchServe would load, under the name that it would have."""
    wanted = [(file, alias, facts[file]) for file, alias in _wanted(configuration, facts) if file in facts]
    return [(file, replace(archive, name=alias or archive.name)) for file, alias, archive in wanted if not archive.fault]


def _closest(word: str, known: Iterable[str], otherwise: str) -> str:
    """A remedy: the name that was meant, spelling of underscores and capitals aside, or what else to do."""
    plain = {name.replace("_", "").lower(): name for name in known}
    match = difflib.get_close_matches(word.replace("_", "").lower(), plain, n=1)
    return f"did you mean {plain[match[0]]}?" if match else otherwise


def _keys(configuration: Configuration) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for entry in configuration.entries:
        at = partial(Problem, entry.line, entry.key, file=str(configuration.path))
        if entry.key in first:
            yield at(f"stands in line {first[entry.key]} as well, and Java takes the last without a word", "delete one of the two")
        elif entry.key not in KEYS and (inside := PER_MODEL.get(entry.key.replace("_", "").lower())):
            yield at("TorchServe ignores it here, it belongs to a model", f"write {inside} into the model's line of models={{...}}")
        elif entry.key not in KEYS:
            yield at("TorchServe does not know this key and ignores it", _closest(entry.key, sorted(KEYS), "delete it"))
        first.setdefault(entry.key, entry.line)


def _values(configuration: Configuration) -> Iterator[Problem]:
    for key, value in configuration.values.items():
        if key in BOOLEANS and value.lower() not in ("true", "false"):
            yield configuration.problem(key, f"TorchServe reads {value!r} as false", "write true or false, no blank after it")
    readers: list[Callable[[], object]] = [partial(configuration.integer, key, 0) for key in configuration.values if key in INTEGERS]
    readers += [partial(configuration.address, kind) for kind in KINDS]
    yield from filter(None, map(_fault, readers))


def _choices(configuration: Configuration) -> Iterator[Problem]:
    """Values that TorchServe takes and then fails on, or that take the handlers' work out of their hands."""
    values, say = configuration.values, configuration.problem
    if values.get("service_envelope"):
        yield say(
            "service_envelope", "an envelope answers one request of a batch and fails the others", "delete it: the handlers read KServe"
        )
    if (mode := values.get("metrics_mode", "log")) not in ("log", "prometheus", "legacy"):
        yield say("metrics_mode", f"TorchServe knows no mode {mode!r}", "write prometheus, log or legacy")
    if values.get("job_queue_size", "1").strip() in ("0", "00") or values.get("job_queue_size", "").startswith("-"):
        yield say("job_queue_size", "a queue that holds nothing answers every request 503", "write at least batchSize x workers")
    metrics = values.get("metrics_config", "")
    if metrics and not any((folder / metrics).is_file() for folder in (Path.cwd(), configuration.path.parent)):
        yield say("metrics_config", f"there is no file {metrics}: every worker would die of it", "name metrics.yaml of this repository")


def _ports(configuration: Configuration) -> Iterator[Problem]:
    """Two of the five APIs on one port; TorchServe itself allows inference, management and metrics to share, but not their tokens."""
    taken: dict[int, str] = {}
    keyed = [(f"{kind}_address", partial(configuration.address, kind)) for kind in KINDS]
    pairs = [(key, address()[1]) for key, address in keyed if not _fault(address)]
    if not _fault(lambda: configuration.grpc_ports):
        pairs += zip(("grpc_inference_port", "grpc_management_port"), configuration.grpc_ports, strict=True)
    for key, port in pairs:
        if port > 0 and port in taken:
            yield configuration.problem(key, f"port {port} is {taken[port]}'s already", "give each its own")
        taken.setdefault(port, key)


def _fault(reader: Callable[[], object]) -> Problem | None:
    try:
        reader()
    except ConfigError as error:
        return cast(Problem, error.args[0])
    return None


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.startswith("/")


def _reach(configuration: Configuration) -> Iterator[Problem]:
    """Addresses that other machines reach and that ask for no token; /metrics never asks for one."""
    hosts = {f"{kind}_address": configuration.address(kind)[0] for kind in KINDS if not _fault(partial(configuration.address, kind))}
    hosts |= {key: configuration.get(key, "127.0.0.1") for key in ("grpc_inference_address", "grpc_management_address")}
    for key in [key for key, host in hosts.items() if not _loopback(host)]:
        reachable = f"{hosts[key]} can be reached from other machines"
        if key == "metrics_address":
            yield configuration.problem(key, f"{reachable} and /metrics never asks for a token", "bind it to 127.0.0.1")
        elif not configuration.token_auth:
            remedy = "bind it to 127.0.0.1, or write disable_token_authorization=false"
            yield configuration.problem(key, f"{reachable} and token authorization is off", remedy)


def _snapshot(configuration: Configuration) -> Iterator[Problem]:
    if "model_snapshot" not in configuration.values:
        return
    say = partial(configuration.problem, "model_snapshot")
    if ignored := [key for key in ("load_models", "models") if key in configuration.values]:
        yield say(f"makes TorchServe ignore {' and '.join(ignored)}", "delete it and start with --ncs")
    try:
        models = parse_json(configuration, "model_snapshot")["models"].items()
        versions = [(name, version, state) for name, states in models for version, state in states.items()]
        lacking = [(name, version, [key for key in ONE_HOME if key not in state]) for name, version, state in versions]
    except (LookupError, TypeError, AttributeError):
        yield say("has not the form that TorchServe restores", "delete it and start with --ncs")
        return
    for name, version, missing in lacking:
        if missing:
            message = f"{name} {version} has no {', '.join(missing)}: TorchServe would stop at the start"
            yield say(message, "add them, or delete the snapshot and start with --ncs", f'"{name}"')


def _loading(configuration: Configuration, facts: Facts) -> Iterator[Problem]:
    say = partial(configuration.problem, "load_models")
    if configuration.model_settings and not configuration.load_models:
        yield configuration.problem("models", "loads nothing without load_models", "add load_models=NAME.mar,...")
    for item in configuration.load_models:
        if item != item.strip():
            yield say(f"a blank beside {item.strip()!r}: TorchServe would look for {item!r}", "write commas without blanks", item.strip())
    for item in dict.fromkeys(item for item in configuration.load_models if configuration.load_models.count(item) > 1):
        yield say(f"{item} stands there twice", "name each archive once", item)
    for file, _ in _wanted(configuration, facts):
        if file not in facts:
            yield say(f"the model store has no archive {file}", _closest(file, facts, "build it, or leave it out"), file)
        elif facts[file].fault:
            yield say(f"{file} {facts[file].fault}", "build it again with `make archive`", file)


def _known(configuration: Configuration, facts: Facts) -> set[tuple[str, str]]:
    """Name and version of every archive, under the names that load_models gives as well."""
    archives = [*facts.values(), *(archive for _, archive in _loaded(configuration, facts))]
    return {(archive.name, archive.version) for archive in archives if not archive.fault}


def _orphans(configuration: Configuration, facts: Facts) -> Iterator[Problem]:
    """Settings that reach no model, less those of an archive that `_loading` complains of."""
    known = _known(configuration, facts)
    broken = {alias or file.removesuffix(".mar") for file, alias in _wanted(configuration, facts) if file not in facts or facts[file].fault}
    for name, given in configuration.model_settings.items():
        versions = sorted(version for other, version in known if other == name)
        for version in [version for version in given if version not in versions and name not in broken]:
            message = f"no archive has a model {name}"
            remedy = _closest(name, sorted(other for other, _ in known), "build its archive, or delete the model here")
            if versions:
                message = f"no archive has version {version!r} of {name}, only {', '.join(map(repr, versions))}"
                remedy = f'write "{versions[-1]}"'
            yield configuration.problem("models", message, remedy, f'"{name}"')


def _unset(configuration: Configuration, facts: Facts) -> Iterator[Problem]:
    """Loaded models without settings, less those whose version is mistaken: `_orphans` says so."""
    known = _known(configuration, facts)
    for file, archive in _loaded(configuration, facts):
        given = configuration.model_settings.get(archive.name, {})
        if archive.version not in given and all((archive.name, version) in known for version in given):
            message = f"{file} ({archive.name} {archive.version}) has no settings: TorchServe would take batchSize 1 and a worker a core"
            yield configuration.problem("models", message, f'add "{archive.name}": {{"{archive.version}": {{...}}}}')


def _numbers(configuration: Configuration) -> Iterator[Problem]:
    """What stands in the `models` JSON itself."""
    models = configuration.model_settings.items()
    for name, version, given in [(name, version, given) for name, versions in models for version, given in versions.items()]:
        say = partial(configuration.problem, "models", word=f'"{name}"')
        for key in [key for key in given if key not in MODEL_KEYS]:
            yield say(f"TorchServe ignores {key} of {name} {version}", _closest(key, MODEL_KEYS, "delete it"))
        whole = {key: given[key] for key in NUMBERS if type(given.get(key)) is int}  # true is no number
        for key in [key for key in NUMBERS if key in given]:
            if key not in whole or whole[key] > LARGEST:
                yield say(f"{key} of {name} {version} is {given[key]!r}", "write a whole number")
            elif whole[key] < 1 and (key != "maxBatchDelay" or whole.get("batchSize", 1) > 1):
                default = "100 ms" if key == "maxBatchDelay" else "its default"
                yield say(f"{key} of {name} {version} is {whole[key]}, which TorchServe takes for not given: {default}", "write 1 or more")
        yield from _workers(say, f"{name} {version}", whole.get("minWorkers"), whole.get("maxWorkers"))


def _workers(say: Callable[[str, str], Problem], model: str, least: int | None, most: int | None) -> Iterator[Problem]:
    if least is None and most is None:
        return
    if least is None or most is None:
        yield say(f"{model} has only one of minWorkers and maxWorkers: the other becomes the number of GPUs or cores", "give both")
    elif least > most:
        yield say(f"minWorkers {least} of {model} is more than maxWorkers {most}", "make them equal")
    elif least < most:
        yield say(f"{model} would have {least} workers for ever: TorchServe never scales up to {most} by itself", "make them equal")


def _batching_in_yaml(configuration: Configuration, file: str, archive: ArchiveFacts) -> Iterator[Problem]:
    for key in [key for key in ONE_HOME if key in (archive.config or {})]:
        message = f"model-config.yaml in {file} sets {key}, which would silently win over this file"
        yield configuration.problem("models", message, "delete it there and build the archive again", f'"{archive.name}"')


def _timeouts(configuration: Configuration, file: str, archive: ArchiveFacts) -> Iterator[Problem]:
    """A model-config.yaml that does not give a timeout sets it to 120 s, whatever stands here."""
    given = configuration.model_settings.get(archive.name, {}).get(archive.version, {})
    for key, default in (("responseTimeout", "default_response_timeout"), ("startupTimeout", "default_startup_timeout")):
        in_yaml = (archive.config or {}).get(key)
        stands = type(in_yaml) is int and in_yaml > 0
        # a default of the whole file may differ from what one model's yaml says; a number of that very model may not
        wanted = given.get(key, in_yaml if stands else _integer(configuration, default, DEFAULT_TIMEOUT_S))
        effective = in_yaml if stands else DEFAULT_TIMEOUT_S
        if archive.config is not None and wanted != effective:
            why = f"says {in_yaml}" if stands else f"has no {key}, which makes it {DEFAULT_TIMEOUT_S}"
            remedy = f"write {key}: {wanted} into model-config.yaml and build the archive again"
            yield configuration.problem("models", f"{key} {wanted} is lost: model-config.yaml in {file} {why}", remedy, f'"{archive.name}"')


def _response_size(configuration: Configuration, file: str, archive: ArchiveFacts) -> Iterator[Problem]:
    """The handlers refuse an answer that would kill the worker; they know the limit from model-config.yaml."""
    limit = _integer(configuration, "max_response_size", DEFAULT_SIZE)
    in_yaml = (archive.config or {}).get("max_response_size", DEFAULT_SIZE if archive.ours else limit)
    if type(in_yaml) is int and in_yaml != limit:
        worse = "an answer between the two would kill the worker" if limit < in_yaml else "it refuses answers that TorchServe would send"
        message = f"is {limit}, but the handler in {file} goes by {in_yaml}: {worse}"
        remedy = f"write max_response_size: {limit} into its model-config.yaml and build the archive again"
        yield configuration.problem("max_response_size", message, remedy)


def _requirements(configuration: Configuration, file: str, archive: ArchiveFacts) -> Iterator[Problem]:
    say = partial(configuration.problem, "install_py_dep_per_model")
    if archive.requirements and not configuration.flag("install_py_dep_per_model"):
        yield say(f"{file} holds a requirements.txt, which is ignored unless this is true", "set it, or install the packages yourself")
    elif archive.requirements and not archive.requirements_listed:
        yield say(f"{file} holds a requirements.txt that its manifest does not name: it is ignored", "build it with --requirements-file")


def _threads(configuration: Configuration, archive: ArchiveFacts, cores: int) -> Iterator[Problem]:
    config = archive.config or {}
    on_gpu = _integer(configuration, "number_of_gpu", 0) > 0 and config.get("deviceType") != "cpu"
    given = configuration.model_settings.get(archive.name, {}).get(archive.version, {}).get("minWorkers")
    workers = given if type(given) is int else _integer(configuration, "default_workers_per_model", 0) or cores
    threads = config.get("threads")
    if type(threads) is not int or threads < 1:
        if on_gpu:  # workers of a GPU wait for it most of the time
            return
        threads = 1
    if workers * threads > cores:
        message = f"{archive.name}: {workers} workers of {threads} threads are more than {cores} cores; throughput would collapse"
        remedy = f"give it at most {max(1, cores // threads)} workers" + (", or fewer threads in model-config.yaml" if threads > 1 else "")
        yield configuration.problem("models", message, remedy, f'"{archive.name}"')


def _integer(configuration: Configuration, key: str, default: int) -> int:
    """A number, or the default where `_values` complains of it."""
    return default if _fault(partial(configuration.integer, key, default)) else configuration.integer(key, default)

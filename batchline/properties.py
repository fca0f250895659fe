"""config.properties, read as TorchServe's Java reads it, with the line of every key; and the one block in it that batchline writes.

TorchServe reads the file with java.util.Properties (Latin-1, a backslash joins lines, the last of equal keys wins), replaces $$NAME$$
by environment variables, and hands `models` to a JSON parser. Variables named TS_* (enable_envvars_config) are not looked at here.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import javaproperties

from batchline.errors import ConfigError

BEGIN = "# batchline: begin (written by batchline; edits between the markers are lost)"
END = "# batchline: end"
# As they stand in the JSON, in the order they are written -> ModelSettings.
SETTINGS = {
    "minWorkers": "min_workers",
    "maxWorkers": "max_workers",
    "batchSize": "batch_size",
    "maxBatchDelay": "max_batch_delay_ms",
    "responseTimeout": "response_timeout_s",
}
LARGEST = 2**31 - 1  # Java's int
_ADDRESS = re.compile(r"(?:(https?)://([^:^/]+)(?::([0-9]+))?)|unix:(/.*)", re.IGNORECASE)  # TorchServe's own pattern
_ADDRESSES = {"inference": "http://127.0.0.1:8080", "management": "http://127.0.0.1:8081", "metrics": "http://127.0.0.1:8082"}
_NO_PORT = {"inference": (80, 443), "management": (8081, 8444), "metrics": (8082, 8445)}  # where an address names none: http, https
_VARIABLE = re.compile(r"\$\$([^$]+[^$])\$\$")  # TorchServe's own pattern
_NEWLINE = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Problem:
    """One complaint; its text is FILE:LINE: KEY: what is wrong — what to do. A ConfigError from here carries one."""

    line: int | None
    key: str
    message: str
    remedy: str
    file: str = "config.properties"

    def __str__(self) -> str:
        return f"{self.file}{f':{self.line}' if self.line else ''}: {self.key}: {self.message} — {self.remedy}"


@dataclass(frozen=True)
class ModelSettings:
    """What the `models` JSON says of one version of one model; None where it says nothing."""

    name: str
    version: str
    batch_size: int | None = None
    max_batch_delay_ms: int | None = None
    min_workers: int | None = None
    max_workers: int | None = None
    response_timeout_s: int | None = None


@dataclass(frozen=True)
class Entry:
    """One key and its value; `line` is its first line, `source` the text of all its lines."""

    key: str
    value: str
    line: int
    source: str

    @property
    def last_line(self) -> int:
        """The line on which the value ends."""
        return self.line + len(_NEWLINE.findall(self.source.rstrip("\r\n")))

    def line_of(self, word: str) -> int:
        """The first of its lines that holds the word, else its first line."""
        lines = enumerate(_NEWLINE.split(self.source), self.line)
        return next((number for number, text in lines if word in text), self.line) if word else self.line


@dataclass(frozen=True)
class Configuration:
    """One config.properties.

    Attributes:
        path: the file.
        values: what TorchServe sees under each key.
        lines: the line of each key; where one stands twice, of the last, which counts.
        entries: every key in the order of the file, also those that a later one overrides.
    """

    path: Path
    values: dict[str, str]
    lines: dict[str, int]
    entries: tuple[Entry, ...] = ()

    def get(self, key: str, default: str = "") -> str:
        """The value of a key."""
        return self.values.get(key, default)

    def flag(self, key: str) -> bool:
        """A boolean as Java reads it: anything but `true`, in any case, is false."""
        return self.get(key).lower() == "true"

    def integer(self, key: str, default: int) -> int:
        """A number as Java reads it; raises ConfigError for what it would not read: blanks, fractions, more than 32 bits."""
        text = self.get(key, str(default))
        if not re.fullmatch(r"[+-]?[0-9]+", text) or not -LARGEST <= int(text) <= LARGEST:
            raise self.error(key, f"{text!r} is not a whole number, TorchServe would not start", "write digits only, no blank after them")
        return int(text)

    def line_of(self, key: str, word: str = "") -> int | None:
        """The line of a key, or that line of its value that holds the word."""
        entry = next((entry for entry in reversed(self.entries) if entry.key == key), None)
        return entry.line_of(word) if entry else self.lines.get(key)

    def problem(self, key: str, message: str, remedy: str, word: str = "") -> Problem:
        """A complaint about a key, or about that line of its value that holds the word."""
        return Problem(self.line_of(key, word), key, message, remedy, str(self.path))

    def error(self, key: str, message: str, remedy: str, word: str = "") -> ConfigError:
        """The same as an exception."""
        return ConfigError(self.problem(key, message, remedy, word))

    @property
    def model_settings(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The `models` JSON: name -> version -> settings, as it stands there."""
        found = parse_json(self, "models") if "models" in self.values else {}
        try:
            good = all(isinstance(settings, dict) for versions in found.values() for settings in versions.values())
        except AttributeError:
            good = False
        if not good:
            raise self.error("models", "has not the form that TorchServe reads", 'write {"NAME": {"VERSION": {"batchSize": 1, ...}}}')
        return dict(found)

    @property
    def models(self) -> list[ModelSettings]:
        """Every model and version in the `models` JSON; raises ConfigError where a setting is not a whole number."""
        found = self.model_settings.items()
        return [self._settings(name, version, given) for name, versions in found for version, given in versions.items()]

    @property
    def load_models(self) -> list[str]:
        """load_models as TorchServe splits it: at commas, blanks kept, empty ones at the end dropped."""
        items = self.get("load_models").split(",")
        while items and not items[-1]:
            items.pop()
        return items

    @property
    def grpc_ports(self) -> tuple[int, int]:
        """The ports of gRPC inference and gRPC management."""
        return self.integer("grpc_inference_port", 7070), self.integer("grpc_management_port", 7071)

    @property
    def token_auth(self) -> bool:
        """Whether requests need a token; on unless it is switched off."""
        return not self.flag("disable_token_authorization")

    def address(self, kind: str) -> tuple[str, int]:
        """Host and port of `inference`, `management` or `metrics`; (path, -1) for a unix socket. Raises ConfigError."""
        key = f"{kind}_address"
        text = self.get(key, _ADDRESSES[kind])
        match = _ADDRESS.fullmatch(text)
        if not match:
            raise self.error(key, f"{text!r} is no address, TorchServe would not start", "write http://HOST:PORT (no IPv6, no blank)")
        scheme, host, port, socket_path = match.groups()
        if socket_path:
            return socket_path, -1
        number = int(port) if port else _NO_PORT[kind][scheme.lower() == "https"]
        if number >= 65535:  # TorchServe refuses 65535 itself as well
            raise self.error(key, f"port {number} is out of range", "write one below 65535")
        return host, number

    def _settings(self, name: str, version: str, given: dict[str, Any]) -> ModelSettings:
        for key in SETTINGS:
            if type(given.get(key, 0)) is not int:  # not isinstance: true is no number
                raise self.error("models", f"{key} of {name} {version} is {given[key]!r}", "write a whole number", f'"{name}"')
        return ModelSettings(name, version, **{field: given.get(key) for key, field in SETTINGS.items()})


def read_configuration(path: Path) -> Configuration:
    """Reads config.properties; raises ConfigError when TorchServe could not: file, escapes, variables, JSON."""
    elements = _elements(path, _text(path))
    entries = tuple(Entry(e.key, e.value, line, e.source) for line, e in elements if isinstance(e, javaproperties.KeyValue))
    lines = {entry.key: entry.line for entry in entries}
    values = {entry.key: _substituted(path, entry) for entry in entries}
    configuration = Configuration(path, values, lines, entries)
    _ = configuration.model_settings  # raises where TorchServe would not start
    if "model_snapshot" in values:
        parse_json(configuration, "model_snapshot")
    return configuration


def parse_json(configuration: Configuration, key: str) -> Any:
    """The JSON under a key, read strictly; raises ConfigError that tells a value which Java cut short from one which is just wrong."""
    try:
        return json.loads(configuration.values[key], object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        line, message, remedy = _json_fault(configuration, key, error)
        raise ConfigError(Problem(line, key, message, remedy, str(configuration.path))) from None


def write_models(path: Path, settings: Sequence[ModelSettings]) -> None:
    """Writes the `models` block between its markers; every other line stays as it is, byte for byte.

    A `models` outside the markers is replaced; a file without one gets the block at its end. Keys of a model that ModelSettings
    does not know (startupTimeout) are kept. The file is replaced at once, after what was written has been read back.

    Raises:
        ConfigError: the file cannot be read or written, its markers do not pair, or a setting is missing or below 1.
    """
    _must_be_complete(path, settings)
    path = path.resolve()  # a link stays a link
    before = read_configuration(path)
    text = _text(path)
    changed = _with_block(path, text, _block(settings, before.model_settings))
    if changed != text:
        _replace(path, changed, before, settings)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("iso-8859-1")  # Java's encoding; any byte survives it
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror} — name an existing configuration file.") from None


def _elements(path: Path, text: str) -> Iterator[tuple[int, javaproperties.PropertiesElement]]:
    """Comments, blanks and keys with the line on which each begins; their sources joined are the text."""
    line = 1
    try:
        for element in javaproperties.parse(text):
            yield line, element
            line += len(_NEWLINE.findall(element.source))
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError(
            Problem(line, error.escape, "is no Unicode escape, Java would not read on", "double the backslash", str(path))
        ) from None


def _substituted(path: Path, entry: Entry) -> str:
    missing = next((name for name in _VARIABLE.findall(entry.value) if name not in os.environ), None)
    if missing:
        raise ConfigError(
            Problem(entry.line, entry.key, f"the environment has no {missing}", "set it, or write the value itself", str(path))
        )
    return _VARIABLE.sub(lambda match: os.environ[match.group(1)], entry.value)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} stands there twice")
        found[name] = value
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _json_fault(configuration: Configuration, key: str, error: Exception) -> tuple[int | None, str, str]:
    """Line, message and remedy of a JSON value that cannot be parsed."""
    places = [i for i, entry in enumerate(configuration.entries) if entry.key == key]
    if not places:
        return configuration.lines.get(key), f"is not valid JSON ({error})", "correct it"
    entry, rest = configuration.entries[places[-1]], configuration.entries[places[-1] + 1 :]
    if re.search(r"\\[ \t\f]+$", entry.source.rstrip("\r\n")):
        return entry.last_line, "Java cuts the JSON here: a blank follows the backslash", "delete the blank"
    if rest and rest[0].source.lstrip(" \t\f").startswith(tuple('"{}[],')):
        message = "Java cuts the JSON here and reads the next line as a key of its own"
        return entry.last_line, message, f"end line {entry.last_line} with a backslash"
    if comment := re.search(r"(?:\r\n|\n|\r)[ \t\f]*[#!].*", entry.source):
        return entry.line_of(comment.group().strip()), "a comment inside a value is part of it", "move it above the key"
    if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data" and entry.last_line > entry.line:
        line = entry.line_of(re.split(r"[=:\s]", entry.value[error.pos :].strip())[0])
        return line, "this line is joined to the JSON above it", f"delete the backslash at the end of line {line - 1}"
    return entry.line, f"is not valid JSON ({error})", "correct it; names stand in double quotes, numbers in none"


def _must_be_complete(path: Path, settings: Sequence[ModelSettings]) -> None:
    for i, model in enumerate(settings):
        given = {key: getattr(model, field) for key, field in SETTINGS.items()}
        faults = [f"{key} is {value!r}" for key, value in given.items() if type(value) is not int or not 1 <= value <= LARGEST]
        faults += ["minWorkers is not maxWorkers"] * (model.min_workers != model.max_workers)
        faults += ["it stands there twice"] * any((model.name, model.version) == (other.name, other.version) for other in settings[:i])
        if faults:
            raise ConfigError(f"{path}: not written: {model.name} {model.version}: {faults[0]} — give every number once, 1 or more.")


def _block(settings: Sequence[ModelSettings], before: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """The lines of the block, markers included: one a model."""
    models: dict[str, dict[str, dict[str, Any]]] = {}
    for model in settings:
        own = {key: getattr(model, field) for key, field in SETTINGS.items()}
        others = {key: value for key, value in before.get(model.name, {}).get(model.version, {}).items() if key not in SETTINGS}
        models.setdefault(model.name, {})[model.version] = own | others
    rows = [f"  {json.dumps(name)}: {json.dumps(versions)}".replace("\\", "\\\\") for name, versions in models.items()]
    return [BEGIN, "models={\\", *(f"{row}{',' if row is not rows[-1] else ''}\\" for row in rows), "}", END]


def _with_block(path: Path, text: str, block: list[str]) -> str:
    """The text with the block in place of the old one, of the first `models` key, or at its end."""
    parts = list(_elements(path, text))
    old_block = _marked(path, parts)
    gone = {*old_block, *(i for i, (_, part) in enumerate(parts) if isinstance(part, javaproperties.KeyValue) and part.key == "models")}
    place = old_block[0] if old_block else min(gone, default=len(parts))
    newline = match.group() if (match := _NEWLINE.search(text)) else "\n"
    above = "".join(part.source for i, (_, part) in enumerate(parts[:place]) if i not in gone)
    below = "".join(part.source for i, (_, part) in enumerate(parts) if i > place and i not in gone)
    if above and not gone:  # the empty line also ends a value that a backslash at the end of the file left open
        above += newline if above.endswith(("\n", "\r")) else newline * 2
    last = newline if below or not gone or text.endswith(("\n", "\r")) else ""
    return above + newline.join(block) + last + below


def _marked(path: Path, parts: list[tuple[int, javaproperties.PropertiesElement]]) -> range:
    """The old block, markers included; empty where there is none."""
    comments = [(i, line, part.source.strip()) for i, (line, part) in enumerate(parts) if isinstance(part, javaproperties.Comment)]
    begins = [(i, line) for i, line, text in comments if text == BEGIN]
    ends = [(i, line) for i, line, text in comments if text == END]
    if not begins and not ends:
        return range(0)
    if len(begins) != 1 or len(ends) != 1 or begins[0] > ends[0]:
        line = (begins or ends)[0][1]
        raise ConfigError(f"{path}:{line}: the markers of batchline's block do not pair — leave one begin above one end, or delete both.")
    return range(begins[0][0], ends[0][0] + 1)


def _replace(path: Path, text: str, before: Configuration, settings: Sequence[ModelSettings]) -> None:
    """Writes a neighbour file, reads it back, and puts it in the place of the old one: killed at any point, one of the two is there."""
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temp.open("wb") as file:
            file.write(text.encode("iso-8859-1"))
            file.flush()
            os.fsync(file.fileno())
        temp.chmod(stat.S_IMODE(path.stat().st_mode))
        _must_say(read_configuration(temp), before, settings)
        os.replace(temp, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror} — make its folder writable.") from None
    finally:
        temp.unlink(missing_ok=True)


def _must_say(after: Configuration, before: Configuration, settings: Sequence[ModelSettings]) -> None:
    kept = [{key: value for key, value in each.values.items() if key != "models"} for each in (before, after)]
    lost = [key for key in kept[0] if kept[1].get(key) != kept[0][key]]
    if lost:
        raise before.error(lost[0], "stands between batchline's markers and would be lost", "move it above the begin marker")
    if set(after.models) != set(settings) or kept[0] != kept[1]:
        raise ConfigError(f"{before.path}: not written: it would read back otherwise — give models plain names and versions.")

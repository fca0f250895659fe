"""Asks a running TorchServe: predictions, models, metrics. One request at a time; load.py is for many."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import requests

from batchline.errors import RequestFailed, ServerError

ENTRY = re.compile(r'\s*(?P<name>[\w-]+)(?P<params>(?:\s*;\s*[\w-]+\s*=\s*(?:"[^"]*"|[^;,"]*))*)\s*(?:,|$)')
PARAM = re.compile(r';\s*(?P<key>[\w-]+)\s*=\s*(?:"(?P<quoted>[^"]*)"|(?P<bare>[^;,"]*))')
ANYWHERE = "0.0.0.0"  # a server that listens on every address is asked on loopback


class Addresses(Protocol):
    """The part of a Configuration that a client needs."""

    @property
    def token_auth(self) -> bool:
        """Whether requests must carry a key from key_file.json."""

    def address(self, kind: str) -> tuple[str, int]:
        """Host and port of inference, management or metrics."""

    def get(self, key: str, default: str = "") -> str:
        """The value of one key."""


@dataclass(frozen=True)
class Answer:
    """What came back for one prediction.

    Attributes:
        status: HTTP status code.
        body: the bytes of the answer.
        headers: names in lower case.
        seconds: from before the request was sent until its answer was read.
        stages: milliseconds a stage, from Server-Timing; empty if the handler sends none.
        batch: how many requests the batch held, if the handler says so.
    """

    status: int
    body: bytes
    headers: Mapping[str, str]
    seconds: float
    stages: dict[str, float]
    batch: int | None = None


class Client:
    """TorchServe's three REST APIs.

    Args:
        inference, management, metrics: base URLs without a slash at the end.
        key_file: key_file.json of a server with token authorization on, else None.
        timeout_s: how long one answer may take.
    """

    def __init__(self, inference: str, management: str, metrics: str, key_file: Path | None = None, timeout_s: float = 120.0) -> None:
        self.inference, self.management, self.metrics_url = inference, management, metrics
        self.key_file, self.timeout_s = key_file, timeout_s
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy or a .netrc from the environment has no business on the way to one's own server

    @classmethod
    def of(cls, configuration: Addresses, home: Path = Path(), timeout_s: float = 120.0) -> Client:
        """A client for the server that this configuration describes, started in the folder home."""
        inference, management, metrics = (base_url(configuration, kind) for kind in ("inference", "management", "metrics"))
        return cls(inference, management, metrics, home / "key_file.json" if configuration.token_auth else None, timeout_s)

    def predict(self, model: str, body: bytes, content_type: str | None = None, version: str | None = None) -> Answer:
        """Sends one request; an answer of any status is returned, ServerError is raised when none comes."""
        path = f"/predictions/{quote(model, safe='')}" + (f"/{quote(version, safe='')}" if version else "")
        headers = {"X-Request-Start": f"t={time.time():.6f}"} | ({"Content-Type": content_type} if content_type else {})
        began = time.perf_counter()
        response = self._send("POST", self.inference, path, "inference", data=body, headers=headers)
        seconds = time.perf_counter() - began
        timing = parse_server_timing(response.headers.get("Server-Timing", ""))
        lower = {key.lower(): value for key, value in response.headers.items()}
        return Answer(response.status_code, response.content, lower, seconds, stage_times(timing), batch_size(timing))

    def describe(self, model: str, version: str | None = None) -> list[dict[str, Any]]:
        """GET /models/NAME: one entry a version; version "all" gives every one, None the default one."""
        path = f"/models/{quote(model, safe='')}" + (f"/{quote(version, safe='')}" if version else "")
        found: list[dict[str, Any]] = self._get(self.management, path, "management").json()
        return found

    def scale(self, model: str, workers: int) -> None:
        """PUT /models/NAME: returns when so many workers run, or raises RequestFailed with what TorchServe says."""
        path = f"/models/{quote(model, safe='')}?min_worker={workers}&max_worker={workers}&synchronous=true"
        response = self._send("PUT", self.management, path, "management")
        if response.status_code >= 400:
            raise RequestFailed(response.status_code, error_message(response.content))

    def models(self) -> list[dict[str, str]]:
        """GET /models: modelName and modelUrl of every registered model."""
        found: list[dict[str, str]] = []
        token = "0"
        while token:  # TorchServe answers at most 1,000 at a time
            page = self._get(self.management, f"/models?limit=1000&next_page_token={token}", "management").json()
            found += page["models"]
            token = page.get("nextPageToken", "")
        return found

    def metrics(self) -> str:
        """GET /metrics: Prometheus' text format."""
        return self._get(self.metrics_url, "/metrics", None).text

    def _get(self, base: str, path: str, key: str | None) -> requests.Response:
        response = self._send("GET", base, path, key)
        if response.status_code >= 400:
            raise RequestFailed(response.status_code, error_message(response.content))
        return response

    def _send(self, method: str, base: str, path: str, key: str | None, **kwargs: Any) -> requests.Response:
        headers = kwargs.pop("headers", {})
        try:
            for attempt in ("first", "again with a fresh key"):
                response = self._session.request(
                    method, base + path, headers=headers | self._authorization(key), timeout=self.timeout_s, **kwargs
                )
                refused = response.status_code in (400, 401) and b"InvalidKeyException" in response.content
                if not (refused and self.key_file and attempt == "first"):
                    break
        except requests.Timeout:
            raise ServerError(f"no answer from {base} within {self.timeout_s:g} s; `make status` shows workers and queue.") from None
        except requests.ConnectionError:
            raise ServerError(f"no TorchServe answers at {base}; start it with `make serve`.") from None
        except requests.RequestException as error:
            raise ServerError(f"cannot ask {base}: {error}") from None
        return response

    def inference_headers(self) -> dict[str, str]:
        """What a request to the inference API must carry: the token, where the server asks for one."""
        return self._authorization("inference")

    def _authorization(self, kind: str | None) -> dict[str, str]:
        """The header with TorchServe's key; keys last an hour by default, and a spent one is renewed with the file's own API key."""
        if self.key_file is None or kind is None:
            return {}
        keys = self._keys()
        if _spent(keys.get(kind, {})) and "API" in keys:
            bearer = {"Authorization": f"Bearer {keys['API']['key']}"}
            self._session.get(f"{self.management}/token?type={kind}", headers=bearer, timeout=self.timeout_s)  # rewrites key_file.json
            keys = self._keys()
        return {"Authorization": f"Bearer {keys[kind]['key']}"} if kind in keys else {}

    def _keys(self) -> dict[str, dict[str, str]]:
        assert self.key_file is not None
        try:
            keys: dict[str, dict[str, str]] = json.loads(self.key_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}  # not written yet, or half written: the server says what it lacks
        return keys


def base_url(configuration: Addresses, kind: str) -> str:
    """http://host:port of one API, as this machine reaches it; raises ServerError for a unix socket (port -1)."""
    host, port = configuration.address(kind)
    if port < 0:
        raise ServerError(f"{kind}_address is the unix socket {host}; batchline speaks HTTP over TCP: write http://127.0.0.1:PORT.")
    scheme = "https" if configuration.get(f"{kind}_address", "").lower().startswith("https:") else "http"
    return f"{scheme}://{'127.0.0.1' if host == ANYWHERE else host}:{port}"


def parse_server_timing(header: str) -> dict[str, dict[str, str]]:
    """`queue;dur=1.2, batch;desc="3"` -> {"queue": {"dur": "1.2"}, "batch": {"desc": "3"}}; what does not parse is left out."""
    found = {}
    for entry in ENTRY.finditer(header):
        params = PARAM.finditer(entry["params"])
        found[entry["name"]] = {p["key"].lower(): p["quoted"] if p["quoted"] is not None else p["bare"].strip() for p in params}
    return found


def stage_times(timing: Mapping[str, Mapping[str, str]]) -> dict[str, float]:
    """Milliseconds of each entry that has a duration."""
    found = {}
    for name, params in timing.items():
        try:
            found[name] = float(params["dur"])
        except (KeyError, ValueError):
            continue
    return found


def batch_size(timing: Mapping[str, Mapping[str, str]]) -> int | None:
    """How many requests travelled together."""
    said = timing.get("batch", {}).get("desc", "")
    return int(said) if said.isascii() and said.isdigit() else None


def error_message(body: bytes) -> str:
    """`BadInput: what is wrong` from an error body, whoever wrote it."""
    text = body.decode("utf-8", errors="replace")
    try:
        said = json.loads(text)
    except ValueError:
        return text.strip() or "no reason given"
    if not isinstance(said, dict) or "message" not in said:
        return text.strip()
    return f"{said['type']}: {said['message']}" if "type" in said else str(said["message"])


def _spent(key: Mapping[str, str]) -> bool:
    try:
        until = datetime.strptime(key["expiration time"][:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    except (KeyError, ValueError):
        return False
    return until <= datetime.now(timezone.utc)

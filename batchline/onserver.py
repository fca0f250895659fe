"""A model on a running server that does what config.properties says, or a sentence about what it does otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import requests

from batchline.client import Client
from batchline.destination import check_server, triton_target
from batchline.destination import target as load_target
from batchline.errors import MeasureError, RequestFailed, ServerError
from batchline.load import Target
from batchline.properties import Configuration
from batchline.status import Settings, compare


@dataclass(frozen=True)
class Subject:
    """A model on a server.

    Attributes:
        model: its name there.
        target: where requests go.
        client: asks TorchServe's counters; None for another server.
        settings: in effect; None where they are not known.
    """

    model: str
    target: Target
    client: Client | None = None
    settings: Settings | None = None


def find(configuration: Configuration, model: str, models: Path, server: str = "torchserve", url: str = "", home: Path = Path()) -> Subject:
    """`subject` or `triton_subject`; raises LoadError for a server that is neither."""
    check_server(server)
    if server == "triton":
        return triton_subject(configuration, model, models, url)
    return subject(configuration, model, models, home)


def subject(configuration: Configuration, model: str, models: Path, home: Path = Path()) -> Subject:
    """The model on the running server of a configuration, which must do what the configuration says.

    Raises:
        ServerError, RequestFailed: no server answers, or it does not know the model.
        MeasureError: the configuration says nothing of the model, or the server does otherwise.
        LoadError: the model has no samples.
    """
    client = Client.of(configuration, home)
    (served,) = client.describe(model)
    key = (model, served["modelVersion"])
    found = next(each for each in compare(configuration, [served]) if (each.name, each.version) == key)
    if found.wanted is None or found.effective is None:
        raise MeasureError(
            f"{configuration.path} has no settings for {model} {key[1]}: write some first (batchline plan RUN.JSON --write)."
        )
    if not found.matches:
        raise MeasureError(
            f"{configuration.path} and the running server differ ({_differences(found.wanted, found.effective, found.ready)}): "
            "`make stop serve` starts it with what is written."
        )
    return Subject(model, load_target(configuration, model, models, home), client, found.effective)


def triton_subject(configuration: Configuration, model: str, models: Path, url: str) -> Subject:
    """The model's export on a running Triton, which must be of the configuration's settings. Raises as `subject` does."""
    target = triton_target(url, model, models)
    effective = _triton_settings(url, model)
    wanted = next((each for each in configuration.models if each.name == model), None)
    if wanted is None:
        raise MeasureError(f"{configuration.path} has no settings for {model}: write some first (batchline plan RUN.JSON --write).")
    said = Settings(wanted.batch_size, wanted.max_batch_delay_ms, wanted.min_workers, wanted.min_workers)
    if not said.agrees(effective):
        words = _differences(said, effective, effective.min_workers or 0)
        raise MeasureError(f"{configuration.path} and the Triton at {url} differ ({words}): `batchline export triton {model}` and load it.")
    return Subject(model, target, None, effective)


def _differences(wanted: Settings, effective: Settings, ready: int) -> str:
    pairs = ((name, want, getattr(effective, name)) for name, want in vars(wanted).items())
    said = [f"{name} {want} is written, {now} in effect" for name, want, now in pairs if want is not None and want != now]
    return ", ".join(said) or f"{effective.min_workers} workers are written, {ready} are READY"


def _triton_settings(url: str, model: str) -> Settings:
    with requests.Session() as session:
        session.trust_env = False
        try:
            reply = session.get(f"{url.rstrip('/')}/v2/models/{quote(model, safe='')}/config", timeout=10)
        except requests.RequestException as error:
            raise ServerError(f"no Triton answers at {url} ({type(error).__name__}).") from None
    if reply.status_code != 200:
        raise RequestFailed(reply.status_code, f"the Triton at {url} shows no configuration of {model}")
    told = reply.json()
    delay_us = int(told.get("dynamic_batching", {}).get("max_queue_delay_microseconds", 0))
    instances = sum(int(group.get("count", 1)) * max(1, len(group.get("gpus", []))) for group in told.get("instance_group", []))
    return Settings(max(1, int(told.get("max_batch_size", 1))), delay_us // 1000, instances, instances)

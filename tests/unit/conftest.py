"""The real models, each loaded once in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.harness import ROOT, Worker, entry_class, load, unpack

settings.register_profile(
    "unit", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("unit")


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archives")


@pytest.fixture(scope="session")
def digits(archives: Path) -> Worker:
    return load(entry_class("digits"), unpack("digits", archives), "digits")


@pytest.fixture(scope="session")
def efficientnet(archives: Path) -> Worker:
    return load(entry_class("efficientnet_lite0"), unpack("efficientnet_lite0", archives), "efficientnet_lite0")


@pytest.fixture(scope="session")
def minilm(archives: Path) -> Worker:
    return load(entry_class("minilm"), unpack("minilm", archives), "minilm")


@pytest.fixture(scope="session")
def samples() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in ROOT.glob("models/*/samples/*")}


@pytest.fixture(autouse=True)
def one_thread_count() -> Iterator[None]:
    """A test that sets torch's threads leaves them as they were."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)

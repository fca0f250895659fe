"""Every command of the README and of docs/, run in order in a copy of the checkout; what it prints must look as the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchline.ports import free_ports
from tests import checkout
from tests.harness import ROOT
from tests.server.served import moved

# The suite cannot run itself; that this is the command CI runs is checked below.
THIS_VERY_RUN = {"make test"}
# The shape of a load's and a benchmark's output is checked here, not its figures.
SHORT = {"ROUNDS": "1", "BENCH_SECONDS": "1"}
SHORT_LOAD = "--duration-s 2"


def commands(page: str) -> list[tuple[str, str]]:
    """(command, the output shown for it) of every console block."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.replace("\\\n", "").splitlines()
            found.append((lines[0], "\n".join(lines[1:]).strip()))
    return found


def shape(text: str) -> str:
    """Text without what differs from run to run: numbers, bars, spacing."""
    text = re.sub(r"[█■#]+", " ", text)
    text = re.sub(r"\d+(\.\d+)?(e-?\d+)?", "0", text)
    return re.sub(r"\s+", " ", text).strip()


def looks_like(shown: str, printed: str) -> bool:
    """Each line shown stands in the output, in order; `...` stands for anything."""
    pattern = ".*?".join(re.escape(shape(part)).replace(r"\.\.\.", ".*?") for part in shown.splitlines())
    return re.search(pattern, shape(printed), re.DOTALL) is not None


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[int]]]:
    folder, ports = checkout.copy(tmp_path_factory.mktemp("readme")), free_ports(5)
    for config in (folder / "config.properties", folder / "deploy" / "config.properties"):
        config.write_text(moved(config.read_text(), ports))
    try:
        yield folder, ports
    finally:
        checkout.run("make stop", folder, check=False)


@pytest.mark.timeout(1200)  # a benchmark and `make check` are among them
@pytest.mark.parametrize("page", ["README.md"])
def test_every_command_of_the_page(home: tuple[Path, list[int]], page: str) -> None:
    folder, ports = home
    listed = commands((ROOT / page).read_text())
    assert len(listed) >= 10
    for command, shown in listed:
        if command in THIS_VERY_RUN:
            continue
        printed = checkout.run(re.sub(r"--duration-s \d+", SHORT_LOAD, moved(command, ports)), folder, **SHORT).stdout
        assert looks_like(moved(shown, ports), printed), f"{command} printed\n{printed}\nwhere {page} shows\n{shown}"


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert "make test" in [command for command, _ in commands((ROOT / "README.md").read_text())]
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()


def test_help_names_every_verb(home: tuple[Path, list[int]]) -> None:
    folder, _ = home
    verbs = ["help", "setup", "archive", "serve", "status", "stop", "check", "test", "clean"]
    printed = checkout.run("make", folder).stdout
    assert [verb for verb in re.findall(r"^  ([a-z-]+) ", printed, re.MULTILINE) if verb in verbs] == verbs


def test_pages_that_are_named_exist() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_shape_of_an_output_can_differ() -> None:
    assert looks_like("espresso 0.95 ████\n...\ntotal 9.1 ms", "espresso 0.951 ██\ncup\ntotal 12.0 ms")
    assert not looks_like("espresso 0.95", "lungo 0.95")


def test_make_tune_says_all_that_it_was_given() -> None:
    """The verb itself is tested on a server of its own; here, that the recipe hands everything on."""
    printed = checkout.run("make --dry-run tune MODEL=digits P99_MS=25 RATE=400 CONFIG=other.properties", ROOT).stdout
    assert "batchline tune digits --p99-ms 25 --rate-per-s 400 --config other.properties" in printed

"""One model on one server in several builds, which differ by lines of their model-config.yaml: two servers would differ by more."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from batchline.candidates import Candidates

CONFIG = "model-config.yaml"


class Builds(Candidates):
    """Settings whose name is in `builds` are of that archive instead."""

    builds: Mapping[str, Path]

    def archive_of(self, batch_size: int) -> Path:
        """By the setting's name."""
        return self.builds.get(self.candidates[batch_size].name, self.archive)


def build_with(archive: Path, folder: Path, lines: str) -> Path:
    """The archive in `folder`, these lines added to its model-config.yaml: of a key that is there twice the last one counts."""
    made = folder / f"{archive.stem}_{len(list(folder.iterdir()))}.mar"
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(made, "w") as packed:
        for entry in source.infolist():
            content = source.read(entry)
            packed.writestr(entry, content + f"\n{lines}\n".encode() if entry.filename == CONFIG else content)
    return made

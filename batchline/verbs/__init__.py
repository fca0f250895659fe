"""The command line's verbs: a function each, and no logic; the work is in the modules they name, imported when a verb runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path, typer.Option(help="TorchServe's configuration file.")]
Store = Annotated[Path, typer.Option(help="The folder of *.mar archives.")]
Models = Annotated[Path, typer.Option(help="The folder of model folders.")]

CONFIG = Path("config.properties")
STORE = Path("model_store")
MODELS = Path("models")

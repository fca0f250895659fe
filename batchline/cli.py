"""The command line: every verb, and how an error and Ctrl-C end it."""

from __future__ import annotations

import signal
import sys

import typer

from batchline.errors import BatchlineError
from batchline.verbs import loading, measuring, planning, serving

app = typer.Typer(help="Serve PyTorch models on TorchServe and know what a batch costs.", no_args_is_help=True, add_completion=False)
for verbs in (serving, loading, measuring, planning):
    app.add_typer(verbs.app)  # without a name of its own: its verbs are this one's


def main() -> None:
    """The `batchline` command: an error on purpose is one message on stderr and exit status 1."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as Ctrl-C does: no server of a measurement stays behind
    try:
        app()
    except BatchlineError as error:
        sys.stderr.write(f"batchline: {error}\n")
        sys.exit(1)

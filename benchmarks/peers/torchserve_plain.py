"""A plain TorchServe handler around the same computation, batched: what a user writes where TorchServe has no stock handler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from work import load


class PlainHandler:
    """A list of requests in, a list of answers out."""

    def initialize(self, context: Any) -> None:
        """Loads the weights that lie in the archive."""
        self.predict = load(RECIPE["model"], RECIPE["runtime"], Path(context.system_properties["model_dir"]))

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        """A body that came without a JSON type arrives as bytes."""
        return self.predict([bytes(row.get("data") or row.get("body")) for row in data])


RECIPE = {"model": "MODEL", "runtime": "RUNTIME"}

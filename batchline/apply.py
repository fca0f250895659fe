"""Plans -> config.properties: what would change, and the change, at once or not at all."""

from __future__ import annotations

import difflib
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from batchline.errors import ConfigError
from batchline.properties import Configuration, ModelSettings, read_configuration, write_models
from batchline.targets import Plan

RESPONSE_TIMEOUT_S = 120  # where the file names none: TorchServe's default


def settings(configuration: Configuration, plans: Sequence[Plan]) -> list[ModelSettings]:
    """The `models` of config.properties with the plans in place; models without a plan stay as they are.

    Raises:
        ConfigError: a planned model, in the version that was measured, is not in `models`.
    """
    found = {(model.name, model.version): model for model in configuration.models}
    for plan in plans:
        key = (plan.model, plan.model_version)
        if key not in found:
            known = ", ".join(f"{name} {version}" for name, version in found) or "none"
            raise ConfigError(
                f"{configuration.path}: not written: `models` has no {plan.model} {plan.model_version}, it has {known} — "
                f"add the model there, in the version of its archive."
            )
        found[key] = _settings(found[key], plan)
    return list(found.values())


def _settings(before: ModelSettings, plan: Plan) -> ModelSettings:
    setting = plan.setting
    return replace(
        before,
        batch_size=setting.batch_size,
        max_batch_delay_ms=max(1, round(setting.max_batch_delay_ms)),
        min_workers=setting.workers,
        max_workers=setting.workers,
        response_timeout_s=before.response_timeout_s or RESPONSE_TIMEOUT_S,
    )


def difference(path: Path, plans: Sequence[Plan]) -> list[str]:
    """Lines of a unified diff of what apply() would change; empty where the file says it already. Nothing is written.

    Raises:
        ConfigError: what apply() would raise, but for a folder that cannot be written to.
    """
    wanted = settings(read_configuration(path), plans)
    with tempfile.TemporaryDirectory(prefix="batchline-plan-") as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        try:
            write_models(copy, wanted)
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(copy), str(path))) from None
        before, after = (each.read_bytes().decode("iso-8859-1").splitlines() for each in (path, copy))
    return list(difflib.unified_diff(before, after, fromfile=str(path), tofile=f"{path} (planned)", n=1, lineterm=""))


def apply(path: Path, plans: Sequence[Plan]) -> None:
    """Writes the plans into config.properties; killed at any point, the old file or the new one is there, whole.

    Raises:
        ConfigError: a model that is not in it, a file that cannot be written, or other settings that are not complete.
    """
    write_models(path, settings(read_configuration(path), plans))

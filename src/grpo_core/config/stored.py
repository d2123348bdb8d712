"""The configuration that a run folder keeps: written when the run starts, read to resume or use it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grpo_core.config.load import dump_config, parse_config
from grpo_core.config.root import RunConfig
from grpo_core.errors import CheckpointError

CONFIG = "config.yaml"


def store_config(config: RunConfig, folder: Path) -> None:
    """Write every value of the configuration into the run's folder."""
    (folder / CONFIG).write_text(dump_config(config), encoding="utf-8")


def stored_config(folder: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The resolved configuration a run was started with, with overrides such as `train.steps=200` over it.

    Raises CheckpointError when the folder is not a run's, and ConfigError for a bad override.
    """
    file = folder / CONFIG
    if not file.is_file():
        raise CheckpointError(f"{folder} is not a run folder (no {CONFIG})", fix="name the folder of a run")
    return parse_config(file.read_text(encoding="utf-8"), source=str(file), overrides=overrides)

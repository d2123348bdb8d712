"""Where a run lives and how it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from grpo_core.config.section import Flag, Section


class RunSection(Section):
    """The run's folder, seed, checkpoints and stop rules."""

    folder: str = "runs/{name}"
    """Where everything is written. `{name}` is replaced by run.name."""
    name: str = "run"
    """Name of the run."""
    seed: int = Field(default=0, ge=0)
    """Seeds weights that start random, prompt order and sampling."""
    checkpoint_every: int = Field(default=50, ge=0)
    """Steps between checkpoints; 0 writes one at the end only."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Latest checkpoints kept, beside the best one."""
    keep_best: Flag = True
    """Keep the checkpoint with the best held-out reward."""
    save_rollouts_every: int = Field(default=1, ge=0)
    """Steps between saved rollouts (Parquet); 0 saves none."""
    tensorboard: Flag = True
    """Write TensorBoard events."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads for torch; its own choice by default."""
    reuse_memory: Flag = True
    """Keep freed CPU memory for the next step instead of giving it back to the system: faster steps on Linux."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Stop (with a checkpoint) after this many minutes."""
    stop_at_reward: float | None = None
    """Stop once the held-out reward reaches this value."""
    watch: Literal["warn", "stop", "off"] = "warn"
    """What to do about a run that wastes its time: truncation, groups without spread, constant reward,
    runaway KL."""

    @property
    def path(self) -> Path:
        """`folder` with the run's name put in."""
        return Path(self.folder.replace("{name}", self.name))

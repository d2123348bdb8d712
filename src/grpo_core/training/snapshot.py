"""Everything a run needs to go on as if it had never stopped."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from grpo_core.errors import CheckpointError
from grpo_core.runtime.checkpoint import checkpoints, prune, verify, write_checkpoint
from grpo_core.runtime.seeding import random_state, set_random_state
from grpo_core.training.run import Progress, Run

STATE = "state.pt"


def folder_of(run: Run) -> Path:
    """Where the run's checkpoints are."""
    return run.folder / "checkpoints"


def save(run: Run, *, best: bool = False) -> Path:
    """Write a checkpoint of this step, then drop the ones that are no longer kept."""
    folder = folder_of(run)
    if best:
        run.progress.best_checkpoint = f"step-{run.progress.step:06d}"
    path = write_checkpoint(folder, run.progress.step, lambda aside: _write(run, aside))
    protected = {run.progress.best_checkpoint} if run.config.run.keep_best and run.progress.best_checkpoint else set()
    prune(folder, run.config.run.keep_checkpoints, protected)
    return path


def _write(run: Run, aside: Path) -> None:
    run.storage.save(aside)
    state: dict[str, Any] = {
        "progress": asdict(run.progress),
        "optimizer": run.optimizer.state_dict(),
        "kl_coef": run.kl.coef,
        "penalty": None if run.algorithm.penalty is None else run.algorithm.penalty.state(),
        "order": run.order.state(),
        "tracker": run.tracker.state(),
        "random": random_state(),
    }
    torch.save(state, aside / STATE)


def restore_latest(run: Run) -> Path | None:
    """Put the run back to its newest complete checkpoint; None when it had not written any yet."""
    found = checkpoints(folder_of(run))
    if not found:
        run.tracker.restore({}, -1)
        return None
    restore(run, found[-1])
    return found[-1]


def restore(run: Run, checkpoint: Path) -> None:
    """Weights, optimizer moments, counters, KL coefficient, the penalty's lambda, prompt order, generators, records.

    Raises CheckpointError when a file is damaged or belongs to another configuration.
    """
    verify(checkpoint)
    run.storage.load(checkpoint)
    state = torch.load(checkpoint / STATE, weights_only=True, map_location="cpu")
    try:
        run.optimizer.load_state_dict(state["optimizer"])
    except ValueError as error:
        raise CheckpointError(
            f"the optimizer state of {checkpoint.name} does not fit: {error}",
            fix="resume with the configuration the run was started with",
        ) from error
    run.progress = Progress(**state["progress"])
    run.kl.coef = state["kl_coef"]
    if run.algorithm.penalty is not None:
        run.algorithm.penalty.restore(state["penalty"])
    run.order.restore(state["order"])
    run.tracker.restore(state["tracker"], run.progress.step)
    set_random_state(state["random"])

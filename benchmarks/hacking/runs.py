"""One run through the library's own path, and what it left."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any

from grpo_core.config.load import config_from_mapping
from grpo_core.config.root import RunConfig
from grpo_core.config.stored import stored_config
from grpo_core.errors import GrpoCoreError
from grpo_core.tracking.writer import read_metrics

CURVES = {
    "proxy": "reward/part/proxy",
    "true": "reward/part/true",
    "kl": "reward/part/start_kl",
    "entropy": "policy/entropy",
    "grad_norm": "optim/grad_norm",
    "seconds": "time/step",
}
_EARLY = 20


def finished(config: RunConfig) -> bool:
    """Whether this very run is in its folder already, to its last step."""
    reports = read_metrics(config.run.path)
    try:
        return bool(reports) and reports[-1].step == config.train.steps and stored_config(config.run.path) == config
    except GrpoCoreError:  # the config is of another version
        return False


def train(mapping: dict[str, Any]) -> None:
    """Train afresh, quietly; the checkpoint is not kept. A run that is interrupted ends the benchmark."""
    from grpo_core.assemble import assemble
    from grpo_core.training.loop import train as loop

    config = config_from_mapping(mapping)
    shutil.rmtree(config.run.path, ignore_errors=True)
    outcome = loop(assemble(config, config.run.path, quiet=True))
    shutil.rmtree(config.run.path / "checkpoints")
    if outcome.stopped_by == "interrupt":
        raise KeyboardInterrupt


def curves(folder: Path) -> dict[str, list[float]]:
    """What is reported of a run, step by step."""
    reports = read_metrics(folder)
    return {name: [report.metrics[metric] for report in reports] for name, metric in CURVES.items()}


def clip_limit(folder: Path) -> float:
    """Half of the median gradient norm of a run's first steps."""
    return statistics.median(curves(folder)["grad_norm"][:_EARLY]) / 2

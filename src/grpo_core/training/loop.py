"""The training loop: collect, update, log, evaluate, checkpoint, stop."""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from grpo_core.records import StepReport
from grpo_core.runtime.checkpoint import checkpoints
from grpo_core.runtime.interrupt import Interrupt
from grpo_core.runtime.memory import memory_metrics
from grpo_core.training.collect import collect
from grpo_core.training.evaluate import evaluate
from grpo_core.training.run import Run
from grpo_core.training.snapshot import folder_of, save
from grpo_core.training.update import update


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    steps: int
    stopped_by: str
    """`steps`, `interrupt`, `time`, `reward` or `watch`."""
    folder: Path
    """The run's folder."""
    checkpoint: Path | None
    """The last checkpoint."""
    held_out: float | None
    """Mean held-out reward at the end, if it was measured there."""


def train(run: Run) -> Outcome:
    """Run from `run.progress.step` to `train.steps`, or until a stop rule, Ctrl-C or a limit ends it.

    A checkpoint is written at the end whatever ended it, except an error: then the last one stands.
    """
    with closing(run.tracker), Interrupt() as interrupt:
        held_out = _first_evaluation(run) if run.progress.step == 0 else None
        stopped_by, checkpoint = "", _last_checkpoint(run)
        while not stopped_by and run.progress.step < run.config.train.steps:
            metrics, warned = _step(run)
            held_out = metrics.get("held_out/reward")
            stopped_by = _stop_reason(run, metrics, warned, interrupt)
            better = _is_best(run, held_out)
            if better or stopped_by or _checkpoint_due(run):
                checkpoint = save(run, best=better)
        best = run.progress.best_checkpoint if run.config.run.keep_best else None
        to_use = folder_of(run) / best if best else checkpoint
        run.tracker.finish(stopped_by or "steps", run.progress.seconds, to_use)
    return Outcome(
        steps=run.progress.step,
        stopped_by=stopped_by or "steps",
        folder=run.folder,
        checkpoint=checkpoint,
        held_out=held_out,
    )


def _checkpoint_due(run: Run) -> bool:
    every, step = run.config.run.checkpoint_every, run.progress.step
    return step >= run.config.train.steps or bool(every and step % every == 0)


def _last_checkpoint(run: Run) -> Path | None:
    found = checkpoints(folder_of(run))
    return found[-1] if found else None


def _first_evaluation(run: Run) -> float | None:
    """Held-out reward of the untrained policy, logged as step 0."""
    began = time.perf_counter()
    metrics = evaluate(run)
    if metrics:
        run.progress.best_reward = metrics["held_out/reward"]
        run.tracker.log(StepReport(step=0, metrics=metrics | {"time/evaluation": time.perf_counter() - began}))
    return metrics.get("held_out/reward")


def _step(run: Run) -> tuple[dict[str, float], list[str]]:
    """One step with its figures; returns them and the warnings they raised."""
    config, progress = run.config, run.progress
    began = time.perf_counter()
    experience = collect(run, progress.step + 1)
    metrics = experience.metrics | update(run, experience.batch, progress.step + 1)
    progress.step += 1
    elapsed = time.perf_counter() - began
    metrics |= {"time/step": elapsed, "speed/tokens_per_second": metrics["rollout/tokens"] / elapsed}
    every = config.evaluation.every
    if progress.step == config.train.steps or (every and progress.step % every == 0):
        evaluation_began = time.perf_counter()
        metrics |= evaluate(run)
        metrics["time/evaluation"] = time.perf_counter() - evaluation_began
    progress.seconds += time.perf_counter() - began
    metrics |= memory_metrics()
    saved_every = config.run.save_rollouts_every
    if saved_every and progress.step % saved_every == 0:
        run.tracker.save_rollouts(progress.step, experience.rollouts)
    return metrics, run.tracker.log(StepReport(step=progress.step, metrics=metrics))


def _stop_reason(run: Run, metrics: dict[str, float], warned: list[str], interrupt: Interrupt) -> str:
    settings = run.config.run
    if interrupt.requested:
        return "interrupt"
    if settings.stop_at_reward is not None and metrics.get("held_out/reward", -math.inf) >= settings.stop_at_reward:
        return "reward"
    if settings.max_minutes is not None and run.progress.seconds >= 60 * settings.max_minutes:
        return "time"
    return "watch" if warned and settings.watch == "stop" else ""


def _is_best(run: Run, held_out: float | None) -> bool:
    best = run.progress.best_reward
    if held_out is None or (best is not None and held_out <= best):
        return False
    run.progress.best_reward = held_out
    return run.config.run.keep_best

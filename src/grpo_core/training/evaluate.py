"""Held-out evaluation: the same reward on prompts that are never trained on."""

from __future__ import annotations

import math

from grpo_core.records import Sampling
from grpo_core.runtime.seeding import derive
from grpo_core.training.collect import judge, sample
from grpo_core.training.run import Run


def evaluate(run: Run) -> dict[str, float]:
    """Mean reward, its standard error, length and truncation on `run.held_out`; empty without held-out prompts.

    The draws depend on run.seed alone, so evaluations of one run share their noise and never disturb training's.
    """
    if not run.held_out:
        return {}
    settings = run.config.evaluation
    how = Sampling(
        max_new_tokens=run.config.rollout.max_new_tokens,
        n=settings.samples,
        temperature=settings.temperature,
        seed=derive(run.config.run.seed, "evaluation"),
    )
    rollouts = judge(run, sample(run, run.held_out, how))
    values = [r.score.value for r in rollouts if r.score is not None and r.score.failure is None]
    parts = [r.score.parts for r in rollouts if r.score is not None and r.score.failure is None]
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    return {
        "held_out/reward": mean,
        "held_out/reward_se": math.sqrt(variance / len(values)),
        "held_out/length_mean": sum(len(r.completion.token_ids) for r in rollouts) / len(rollouts),
        "held_out/truncated": sum(r.truncated for r in rollouts) / len(rollouts),
        "held_out/failed": float(len(rollouts) - len(values)),
        **{f"held_out/part/{name}": sum(part[name] for part in parts) / len(parts) for name in parts[0]},
    }

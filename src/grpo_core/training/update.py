"""Update: epochs and minibatches over one rollout, each an optimizer step on grad L."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from grpo_core.algorithm.batch import Batch
from grpo_core.algorithm.objective import regularized_gradient
from grpo_core.algorithm.passes import Direction
from grpo_core.algorithm.penalty import PenaltyReport
from grpo_core.algorithm.value_losses import explained_variance
from grpo_core.errors import TrainingError
from grpo_core.runtime.seeding import derive
from grpo_core.training.run import Run
from grpo_core.training.schedule import factor
from grpo_core.training.shares import Seen, shares


def update(run: Run, batch: Batch, step: int) -> dict[str, float]:
    """All optimizer steps of one rollout; returns their mean figures. Ends early at `rl.target_kl`."""
    began = time.perf_counter()
    rows: list[dict[str, float]] = []
    stopped = 0.0
    for epoch in range(run.config.train.epochs):
        for minibatch in _minibatches(run, batch, step, epoch):
            figures = _optimizer_step(run, minibatch, can_stop=bool(rows))
            if figures is None:
                stopped = 1.0
                break
            rows.append(figures)
        if stopped:
            break
    metrics = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    metrics["optim/skipped"] = sum(row["optim/skipped"] for row in rows)
    metrics |= {"optim/updates": float(len(rows)), "optim/stopped_early": stopped}
    if batch.returns is not None and batch.old_values is not None:
        explained = explained_variance(batch.old_values, batch.returns, batch.response_mask)
        metrics["value/explained_variance"] = explained
    metrics["time/update"] = time.perf_counter() - began
    return metrics


def _minibatches(run: Run, batch: Batch, step: int, epoch: int) -> list[Batch]:
    """The rollout in seeded order, cut into optimizer batches with their loss weights set."""
    train = run.config.train
    order = torch.arange(len(batch))
    if train.minibatches > 1:
        generator = torch.Generator().manual_seed(derive(run.config.run.seed, "minibatches", step, epoch))
        order = torch.randperm(len(batch), generator=generator)
    result = []
    for rows in order.tensor_split(train.minibatches):
        if len(rows):
            part = batch.select(rows)
            result.append(replace(part, weights=run.algorithm.reduction(part.loss_mask)))
    return result


def _optimizer_step(run: Run, batch: Batch, *, can_stop: bool) -> dict[str, float] | None:
    """One step on one minibatch; None when the policy has moved past `rl.target_kl` and the rest is dropped."""
    train, progress = run.config.train, run.progress
    rate = factor(
        progress.updates,
        total=train.steps * run.config.updates_per_step,
        warmup=train.warmup_steps,
        shape=train.schedule,
    )
    for group in run.optimizer.param_groups:
        group["lr"] = group["peak_lr"] * rate
    run.optimizer.zero_grad(set_to_none=True)
    rows = contributing(run, batch)
    seen, parts = shares(run, batch.select(rows)) if len(rows) else (Seen(), [])
    policy, value = run.policy.policy_parameters(), run.policy.value_parameters()
    report = regularized_gradient(
        parts,
        policy,
        value,
        run.algorithm.penalty,
        run.policy.buffers(),
        scale=_penalty_scale(run),
        moments=partial(first_moments, run.optimizer),
    )
    kl_rollout = seen.kl_rollout / max(1, len(rows))
    target = run.config.rl.target_kl
    if can_stop and target is not None and kl_rollout > target:
        return None
    if parts:
        _check_gradients(policy)
    norm, clipped = _clip([*policy, *value], train.grad_clip)
    finite = report.finite and bool(torch.isfinite(torch.tensor(norm)))
    if finite and parts:
        run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    _count(run, finite)
    return _figures(seen, report, kl_rollout) | {
        "optim/grad_norm": norm,
        "optim/clipped": float(clipped),
        "optim/lr": train.learning_rate * rate,
        "optim/skipped": float(not finite),
        "optim/rows_used": float(len(rows)),
    }


def _penalty_scale(run: Run) -> float:
    """The share of lambda that the penalty's own schedule gives this update."""
    train, penalty = run.config.train, run.config.penalty
    return factor(
        run.progress.updates,
        total=train.steps * run.config.updates_per_step,
        warmup=penalty.warmup_steps,
        shape=penalty.schedule,
    )


def contributing(run: Run, batch: Batch) -> Tensor:
    """Rows that must be computed: all, or those with an advantage where nothing else is in the loss."""
    if not run.algorithm.linear_in_advantage:
        return torch.arange(len(batch))
    assert batch.advantages is not None and batch.weights is not None
    return ((batch.advantages != 0) & (batch.weights != 0)).any(1).nonzero()[:, 0]


def first_moments(optimizer: torch.optim.Optimizer, params: Sequence[Tensor]) -> Direction | None:
    """AdamW's running mean of the gradients, m / (1 - beta_1^t), for the parameters that have one."""
    beta = optimizer.param_groups[0]["betas"][0]
    known = [p for p in params if "exp_avg" in optimizer.state.get(p, {})]
    if not known:
        return None
    updates = float(optimizer.state[known[0]]["step"])
    moments = [optimizer.state[p]["exp_avg"] for p in known]
    return Direction(params=known, values=moments, scale=1 / (1 - beta**updates))


def _check_gradients(parameters: list[torch.nn.Parameter]) -> None:
    """A graph that is cut somewhere trains nothing and says nothing (KF25): refuse it."""
    if all(p.grad is None for p in parameters):
        raise TrainingError(
            "no trainable weight received a gradient",
            fix="check model.lora.targets and model.gradient_checkpointing; report it with the model's name",
        )


def _clip(parameters: list[torch.nn.Parameter], limit: float | None) -> tuple[float, bool]:
    """(norm before, whether it was clipped)."""
    grads = [p for p in parameters if p.grad is not None]
    if not grads:
        return 0.0, False
    norm = float(torch.nn.utils.get_total_norm([p.grad for p in grads if p.grad is not None]))
    if limit is None or not norm > limit:
        return norm, False
    torch.nn.utils.clip_grads_with_norm_(grads, limit, torch.tensor(norm, device=grads[0].device))
    return norm, True


def _count(run: Run, finite: bool) -> None:
    """Count the step; too many non-finite ones in a row end the run before a good checkpoint is replaced."""
    progress, limit = run.progress, run.config.train.max_nonfinite_steps
    progress.updates += 1
    progress.nonfinite_in_a_row = 0 if finite else progress.nonfinite_in_a_row + 1
    if progress.nonfinite_in_a_row >= limit:
        raise TrainingError(
            f"{limit} optimizer steps in a row had a non-finite loss or gradient; the weights are those before them",
            fix="lower train.learning_rate or train.lambda, or resume from the last checkpoint with another run.seed",
        )


def _figures(seen: Seen, report: PenaltyReport, kl_rollout: float) -> dict[str, float]:
    tokens = max(1.0, seen.tokens)
    return {
        "loss/total": seen.policy + seen.value + seen.entropy + seen.kl,
        "loss/policy": seen.policy,
        "loss/value": seen.value,
        "loss/entropy": seen.entropy,
        "loss/kl": seen.kl,
        "policy/ratio_max": seen.ratio_max,
        "policy/clip_fraction": seen.clipped / tokens,
        "policy/kl_rollout": kl_rollout,
        "penalty/grad_norm": report.grad_norm,
        "penalty/ratio": report.ratio,
        "penalty/cosine": report.cosine,
        "penalty/lambda": report.lam,
        "penalty/capped": float(report.capped),
        "penalty/measured": float(report.measured),
        "penalty/shift": report.shift,
        "penalty/shift_realised": report.shift_realised,
        "time/penalty": report.seconds,
    }

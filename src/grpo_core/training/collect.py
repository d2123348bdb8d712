"""Collect: draw prompts, sample completions, judge them, and compute what stays frozen during the updates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from grpo_core.algorithm.advantages import spread, totals
from grpo_core.algorithm.batch import Batch, collate, pad_right
from grpo_core.algorithm.kl import k1
from grpo_core.algorithm.reductions import masked_mean, whiten
from grpo_core.errors import RewardError
from grpo_core.records import Prompt, Rollout, Sampling
from grpo_core.runtime.seeding import derive
from grpo_core.training.micro_batches import micro_batches
from grpo_core.training.run import Run


@dataclass(frozen=True, kw_only=True)
class Experience:
    """One rollout phase: everything sampled (failures too), the batch that trains, and its figures."""

    rollouts: list[Rollout]
    batch: Batch
    metrics: dict[str, float]


def sample(run: Run, prompts: Sequence[Prompt], how: Sampling) -> list[Rollout]:
    """`how.n` unscored rollouts for each prompt; a group is one prompt of this call."""
    ready = [run.prepare(prompt) for prompt in prompts]
    completions = run.engine.generate(ready, how)
    owners = [(group, prompt) for group, prompt in enumerate(ready) for _ in range(how.n)]
    return [
        Rollout(
            prompt=prompt,
            group_id=group,
            completion=completion,
            text=run.decode(completion.token_ids),
            sampling=how,
            policy_version=run.progress.updates,
        )
        for (group, prompt), completion in zip(owners, completions, strict=True)
    ]


def judge(run: Run, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts with their scores. Raises RewardError when too many have none."""
    scores = run.reward(rollouts)
    scored = [replace(rollout, score=score) for rollout, score in zip(rollouts, scores, strict=True)]
    failed = [score.failure for score in scores if score.failure is not None]
    limit = run.config.reward.max_failure_rate
    if failed and len(failed) > limit * len(scores):
        raise RewardError(
            f"{len(failed)} of {len(scores)} completions have no reward (limit {limit:g}); the first: {failed[0]}",
            fix="mend the reward, or raise reward.max_failure_rate",
        )
    return scored


def training_sampling(run: Run, step: int) -> Sampling:
    """The rollout section as a record, seeded by the run's seed and the step."""
    rollout = run.config.rollout
    return Sampling(
        max_new_tokens=rollout.max_new_tokens,
        n=rollout.group_size,
        temperature=rollout.temperature,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
        min_p=rollout.min_p,
        min_new_tokens=rollout.min_new_tokens,
        seed=derive(run.config.run.seed, "rollout", step),
    )


def collect(run: Run, step: int) -> Experience:
    """One rollout phase of `config.completions_per_step` completions."""
    began = time.perf_counter()
    prompts = run.order.take(run.config.prompts_per_step)
    rollouts = sample(run, prompts, training_sampling(run, step))
    sampled = time.perf_counter()
    rollouts = judge(run, rollouts)
    judged = time.perf_counter()
    valid = [r for r in rollouts if r.score is not None and r.score.failure is None]
    if not valid:
        raise RewardError("no completion of this step has a reward", fix="mend the reward")
    batch = collate(valid, mask_truncated=run.config.rollout.mask_truncated)
    batch, kl_metrics = freeze(run, batch, [r.completion.policy_logprobs for r in valid])
    metrics = rollout_metrics(rollouts, batch) | kl_metrics
    metrics |= {
        "time/rollout": sampled - began,
        "time/reward": judged - sampled,
        "time/score": time.perf_counter() - judged,
    }
    return Experience(rollouts=rollouts, batch=batch, metrics=metrics)


@torch.no_grad()
def freeze(run: Run, batch: Batch, sampled: Sequence[Sequence[float]]) -> tuple[Batch, dict[str, float]]:
    """Old log-probs, old values, reference log-probs, KL penalty, advantages: fixed for all updates on this batch.

    With a single update the old log-probs are the current ones (ratio exactly 1), so nothing is computed twice.
    """
    algorithm, metrics = run.algorithm, {}
    engine_logprobs = pad_right(sampled, 0.0, torch.float32)
    several = run.config.updates_per_step > 1
    if several or algorithm.critic or algorithm.kl == "reward" or algorithm.old_logprobs_first:
        batch = _score_old(run, batch)
        assert batch.old_logprobs is not None
        gap = (batch.old_logprobs - engine_logprobs).abs()
        metrics["rollout/logprob_mismatch"] = float(masked_mean(gap, batch.response_mask))
    if run.reference is not None:
        reference = _reference(run, batch)
        batch = replace(batch, ref_logprobs=reference)
        now = engine_logprobs if batch.old_logprobs is None else batch.old_logprobs
        gap = torch.where(batch.response_mask, k1(now, reference), 0.0)
        if algorithm.kl == "reward":
            batch = replace(batch, kl_penalty=run.kl.coef * gap)
        metrics |= {"kl/reference": float(gap.sum(1).mean()), "kl/coef": run.kl.coef}
        run.kl.update(metrics["kl/reference"], len(batch))
    advantages = algorithm.advantage(batch)
    if algorithm.critic and batch.old_values is not None:
        batch = replace(batch, returns=(advantages + batch.old_values) * batch.response_mask)
    if algorithm.whiten_advantages:
        advantages = whiten(advantages, batch.loss_mask)
    return replace(batch, advantages=advantages), metrics


def _score_old(run: Run, batch: Batch) -> Batch:
    """Old log-probs and values, micro-batch by micro-batch through the same function as the loss."""
    logprobs = torch.zeros(batch.response_mask.shape)
    values = torch.zeros(batch.response_mask.shape)
    for rows, part in micro_batches(batch, run.config.train.gradient_accumulation):
        out = run.policy.score(
            part.to(run.policy.device), temperature=run.config.rollout.temperature, values=run.algorithm.critic
        )
        logprobs[rows, : out.logprobs.shape[1]] = out.logprobs.float().cpu()
        if out.values is not None:
            values[rows, : out.values.shape[1]] = out.values.float().cpu()
    return replace(batch, old_logprobs=logprobs, old_values=values if run.algorithm.critic else None)


def _reference(run: Run, batch: Batch) -> torch.Tensor:
    assert run.reference is not None
    result = torch.zeros(batch.response_mask.shape)
    for rows, part in micro_batches(batch, run.config.train.gradient_accumulation):
        found = run.reference.logprobs(part.to(run.policy.device), temperature=run.config.rollout.temperature)
        result[rows, : found.shape[1]] = found.float().cpu()
    return result


def rollout_metrics(rollouts: Sequence[Rollout], batch: Batch) -> dict[str, float]:
    """Figures of what was sampled: rewards, parts, lengths, truncation, groups without spread, entropy."""
    scores = [r.score for r in rollouts if r.score is not None and r.score.failure is None]
    lengths = [len(r.completion.token_ids) for r in rollouts]
    rewards = batch.rewards.double()
    flat = spread(totals(batch), batch.group_ids) == 0
    groups = torch.unique(batch.group_ids)
    dead = sum(bool(flat[batch.group_ids == group].all()) for group in groups)
    surprise = [-value for r in rollouts for value in r.completion.policy_logprobs]
    metrics = {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std(correction=0)),
        "reward/failed": float(len(rollouts) - len(scores)),
        "rollout/length_mean": sum(lengths) / len(lengths),
        "rollout/truncated": sum(r.truncated for r in rollouts) / len(rollouts),
        "rollout/tokens": float(sum(lengths)),
        "groups/counted": float(len(groups)),
        "groups/zero_spread": dead / len(groups),
        "policy/entropy": sum(surprise) / len(surprise),
    }
    for name in scores[0].parts:
        metrics[f"reward/part/{name}"] = sum(score.parts[name] for score in scores) / len(scores)
    return metrics

"""Advantage estimators: how much better a token was than expected. `Batch -> tensor [rollout, token]`.

Group estimators read `group_ids` and never positions; groups may have different sizes. A rollout without a finite
reward gets 0 and is in nobody's statistics. All of them work in float64 inside, and a group whose rewards are equal
gives exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_core.algorithm.batch import Batch

Advantage = Callable[[Batch], Float[Tensor, "rollout token"]]
PerRollout = Float[Tensor, "rollout"]
Ids = Int[Tensor, "rollout"]


def totals(batch: Batch) -> PerRollout:
    """Score minus the summed KL penalty of the sequence: what group estimators compare."""
    if batch.kl_penalty is None:
        return batch.rewards.double()
    return batch.rewards.double() - (batch.kl_penalty * batch.response_mask).sum(1).double()


def token_rewards(batch: Batch) -> Float[Tensor, "rollout token"]:
    """Minus the KL penalty on every token, plus the score on the last one."""
    rewards = torch.zeros_like(batch.response_mask, dtype=torch.float64)
    if batch.kl_penalty is not None:
        rewards = -batch.kl_penalty.double() * batch.response_mask
    last = batch.response_mask.sum(1).clamp(min=1) - 1
    return rewards.scatter_add(1, last[:, None], batch.rewards.double()[:, None])


def _groups(values: PerRollout, ids: Ids) -> tuple[Ids, Bool[Tensor, "rollout"], PerRollout, PerRollout]:
    """(group row of each rollout, whether it has a value, members and sum of its group)."""
    _, row = torch.unique(ids, return_inverse=True)
    valid = values.isfinite()
    filled = torch.where(valid, values, 0.0)
    count = torch.zeros(len(ids), dtype=values.dtype).index_add(0, row, valid.to(values.dtype))
    total = torch.zeros(len(ids), dtype=values.dtype).index_add(0, row, filled)
    return row, valid, count[row], total[row]


def spread(values: PerRollout, ids: Ids) -> PerRollout:
    """max - min of each rollout's group, over the rollouts that have a value; 0 for a lone one."""
    _, row = torch.unique(ids, return_inverse=True)
    valid = values.isfinite()
    start = torch.full_like(values, torch.inf)
    low = start.scatter_reduce(0, row, torch.where(valid, values, torch.inf), "amin")
    high = (-start).scatter_reduce(0, row, torch.where(valid, values, -torch.inf), "amax")
    return (high - low).clamp(min=0)[row]


def centered(values: PerRollout, ids: Ids) -> PerRollout:
    """r_i - mean of its group. Dr. GRPO (arXiv 2503.20783, eq. 2). 0 for an equal or lone group."""
    _, valid, count, total = _groups(values, ids)
    result = values - total / count.clamp(min=1)
    return torch.where(valid & (spread(values, ids) > 0), result, 0.0)


def normalized(values: PerRollout, ids: Ids) -> PerRollout:
    """(r_i - mean) / std of its group, sample std (n - 1). DeepSeekMath (arXiv 2402.03300, section 4.1.2).

    Fails when a group's rewards differ only by noise: the noise is blown up to unit size.
    """
    row, _, count, _ = _groups(values, ids)
    difference = centered(values, ids)
    squares = torch.zeros_like(values).index_add(0, row, difference.square())[row]
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    return torch.where(std > 0, difference / torch.where(std > 0, std, 1.0), 0.0)


def leave_one_out_difference(values: PerRollout, ids: Ids) -> PerRollout:
    """r_i - mean of the others in its group. RLOO (arXiv 2402.14740, eq. 6). 0 for an equal or lone group."""
    _, valid, count, total = _groups(values, ids)
    result = values - (total - values) / (count - 1).clamp(min=1)
    return torch.where(valid & (spread(values, ids) > 0), result, 0.0)


def _spread_over_tokens(per_rollout: PerRollout, batch: Batch) -> Float[Tensor, "rollout token"]:
    return (per_rollout[:, None] * batch.response_mask).to(batch.rewards.dtype)


def group_centered(batch: Batch) -> Float[Tensor, "rollout token"]:
    """`centered` totals, the same for every token of a completion."""
    return _spread_over_tokens(centered(totals(batch), batch.group_ids), batch)


def group_normalized(batch: Batch) -> Float[Tensor, "rollout token"]:
    """`normalized` totals, the same for every token of a completion."""
    return _spread_over_tokens(normalized(totals(batch), batch.group_ids), batch)


def leave_one_out(batch: Batch) -> Float[Tensor, "rollout token"]:
    """`leave_one_out_difference` of totals, the same for every token of a completion."""
    return _spread_over_tokens(leave_one_out_difference(totals(batch), batch.group_ids), batch)


def batch_baseline(batch: Batch) -> Float[Tensor, "rollout token"]:
    """Total minus the batch's mean total: REINFORCE with the simplest baseline (Williams 1992)."""
    return _spread_over_tokens(centered(totals(batch), torch.zeros_like(batch.group_ids)), batch)


def gae(batch: Batch, *, gamma: float = 1.0, lam: float = 0.95) -> Float[Tensor, "rollout token"]:
    """Generalised advantage estimation: A_t = delta_t + gamma*lam*A_{t+1}, delta_t = r_t + gamma*V_{t+1} - V_t.

    Schulman et al. 2015 (arXiv 1506.02438, eq. 16). Runs over response tokens only: masked slots are no transitions.
    The value after the last token is 0. Raises ValueError without `old_values`.
    """
    if batch.old_values is None:
        raise ValueError("gae needs old_values: set algorithm.critic to shared or separate")
    result = generalised(token_rewards(batch), batch.old_values, batch.response_mask, gamma, lam)
    return torch.where(batch.rewards.isfinite()[:, None], result, 0.0).to(batch.rewards.dtype)


def generalised(
    rewards: Float[Tensor, "rollout token"],
    values: Float[Tensor, "rollout token"],
    mask: Bool[Tensor, "rollout token"],
    gamma: float,
    lam: float,
) -> Float[Tensor, "rollout token"]:
    """The GAE recursion on plain tensors, backwards over the slots where `mask` holds."""
    rewards, values = rewards.double(), values.double()
    result = torch.zeros_like(rewards)
    ahead_value = torch.zeros(rewards.shape[0], dtype=torch.float64)
    ahead = torch.zeros_like(ahead_value)
    for t in range(rewards.shape[1] - 1, -1, -1):
        here = mask[:, t]
        delta = rewards[:, t] + gamma * ahead_value - values[:, t]
        ahead = torch.where(here, delta + gamma * lam * ahead, ahead)
        ahead_value = torch.where(here, values[:, t], ahead_value)
        result[:, t] = torch.where(here, ahead, 0.0)
    return result

"""The tensors of one optimizer batch, and the axis legend of the whole library.

Axes: `rollout` (one sampled completion), `token` (response position, right padded), `prompt` (distinct prompt),
`ptoken` (prompt position, left padded), `vocab`. Masks come from lengths, never from comparing ids with the pad id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_core.records import Rollout


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rollouts side by side. Everything but the ids and masks may be filled in later with `replace`."""

    prompt_ids: Int[Tensor, "prompt ptoken"]
    prompt_mask: Bool[Tensor, "prompt ptoken"]
    prompt_index: Int[Tensor, "rollout"]
    """Row of `prompt_ids` that each rollout continues."""
    response_ids: Int[Tensor, "rollout token"]
    response_mask: Bool[Tensor, "rollout token"]
    """Sampled tokens, the EOS included."""
    loss_mask: Bool[Tensor, "rollout token"]
    """Sampled tokens that train (truncated completions may be left out)."""
    group_ids: Int[Tensor, "rollout"]
    rewards: Float[Tensor, "rollout"]
    """Score of each rollout; NaN where there is none: such a row leaves statistics and loss."""
    kl_penalty: Float[Tensor, "rollout token"] | None = None
    """KL coefficient x (log pi - log pi_ref), subtracted from the reward of each token."""
    old_logprobs: Float[Tensor, "rollout token"] | None = None
    """Log-probs under the policy that sampled, frozen; None means "the current ones, detached" (ratio 1)."""
    ref_logprobs: Float[Tensor, "rollout token"] | None = None
    old_values: Float[Tensor, "rollout token"] | None = None
    advantages: Float[Tensor, "rollout token"] | None = None
    returns: Float[Tensor, "rollout token"] | None = None
    weights: Float[Tensor, "rollout token"] | None = None
    """Each token's share of the loss: the reduction of the whole optimizer batch, so any split sums to the same."""

    def __len__(self) -> int:
        return self.response_ids.shape[0]

    def select(self, rows: Int[Tensor, "rows"]) -> Batch:
        """The given rollouts in the given order, with padding columns and unused prompts trimmed."""
        used, prompt_index = torch.unique(self.prompt_index[rows], return_inverse=True)
        width = max(1, int(self.response_mask[rows].sum(1).max())) if len(rows) else 1
        left = self.prompt_ids.shape[1] - int(self.prompt_mask[used].sum(1).max()) if len(rows) else 0
        chosen: dict[str, Tensor | None] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None:
                continue
            if item.name in ("prompt_ids", "prompt_mask"):
                chosen[item.name] = value[used, left:]
            else:
                chosen[item.name] = value[rows, :width] if value.dim() == 2 else value[rows]
        return replace(self, **chosen | {"prompt_index": prompt_index})

    def to(self, device: torch.device) -> Batch:
        """A copy on another device."""
        moved = {f.name: getattr(self, f.name).to(device) for f in fields(self) if getattr(self, f.name) is not None}
        return replace(self, **moved)


Statistic = Literal["entropy", "collision"]
"""What a policy can say about its distribution at each token, beside the log-prob of the one that was sampled."""


@dataclass(frozen=True, kw_only=True)
class PolicyOutputs:
    """What the policy says about a batch; the optional parts are None when not asked for."""

    logprobs: Float[Tensor, "rollout token"]
    entropy: Float[Tensor, "rollout token"] | None = None
    """Nats."""
    collision: Float[Tensor, "rollout token"] | None = None
    """sum_k p_k^2: the chance that two draws agree."""
    values: Float[Tensor, "rollout token"] | None = None


def pad_right(rows: Sequence[Sequence[int | float]], fill: int | float, dtype: torch.dtype) -> Tensor:
    """Rows of different lengths as one tensor, filled at the right end; at least one column."""
    width = max([1, *map(len, rows)])
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], dtype=dtype)


def length_mask(lengths: Sequence[int]) -> Bool[Tensor, "row token"]:
    """True for the first `lengths[i]` columns of row i; at least one column."""
    width = max([1, *lengths])
    return torch.arange(width)[None, :] < torch.tensor(list(lengths))[:, None]


def collate(rollouts: Sequence[Rollout], *, mask_truncated: bool = False, fill: int = 0) -> Batch:
    """Rollouts with scores to one batch. Rows of the same prompt (id and tokens) share one row of `prompt_ids`.

    A rollout without a reward (no score, a declared failure, or a value that is not finite) has reward NaN and an
    empty loss mask. `fill` is the id put into padded slots; it is never attended to nor scored.
    """
    keys = [(rollout.prompt.id, rollout.prompt.token_ids) for rollout in rollouts]
    place = {key: row for row, key in enumerate(dict.fromkeys(keys))}
    rewards = torch.tensor([_reward(rollout) for rollout in rollouts])
    ids = [rollout.completion.token_ids for rollout in rollouts]
    response_mask = length_mask([len(row) for row in ids])
    keep = torch.tensor([not (mask_truncated and rollout.truncated) for rollout in rollouts])
    reversed_prompts = [tokens[::-1] for _, tokens in place]
    return Batch(
        prompt_ids=pad_right(reversed_prompts, fill, torch.long).flip(1),
        prompt_mask=length_mask([len(row) for row in reversed_prompts]).flip(1),
        prompt_index=torch.tensor([place[key] for key in keys]),
        response_ids=pad_right(ids, fill, torch.long),
        response_mask=response_mask,
        loss_mask=response_mask & (keep & rewards.isfinite())[:, None],
        group_ids=torch.tensor([rollout.group_id for rollout in rollouts]),
        rewards=rewards,
    )


def _reward(rollout: Rollout) -> float:
    score = rollout.score
    if score is None or score.failure is not None or not math.isfinite(score.value):
        return math.nan
    return score.value

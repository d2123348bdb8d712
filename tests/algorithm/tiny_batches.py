"""Batches written out by hand for the tests of the algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_core.algorithm.batch import Batch, length_mask
from grpo_core.records import Completion, FinishReason, Prompt, Rollout, Sampling, Score


def batch_of(rewards: Sequence[float], groups: Sequence[int], *, mask: Any = None, **more: Any) -> Batch:
    """One prompt of one token; `mask` defaults to one response token each. float64 rewards unless given a tensor."""
    response = torch.ones(len(groups), 1, dtype=torch.bool) if mask is None else torch.as_tensor(mask).bool()
    values = rewards if isinstance(rewards, Tensor) else torch.tensor(list(rewards), dtype=torch.float64)
    return Batch(
        prompt_ids=torch.zeros(1, 1, dtype=torch.long),
        prompt_mask=torch.ones(1, 1, dtype=torch.bool),
        prompt_index=torch.zeros(len(groups), dtype=torch.long),
        response_ids=torch.zeros(response.shape, dtype=torch.long),
        response_mask=response,
        loss_mask=response,
        group_ids=torch.tensor(list(groups)),
        rewards=values,
        **more,
    )


def rollout_of(
    prompt: Sequence[int],
    response: Sequence[int],
    *,
    prompt_id: str = "p",
    group: int = 0,
    score: Score | float | None = 0.0,
    reason: FinishReason = "eos",
    answer: str | None = None,
) -> Rollout:
    """A rollout of the given ids."""
    logprobs = tuple(-1.0 for _ in response)
    return Rollout(
        prompt=Prompt(id=prompt_id, text="-", token_ids=tuple(prompt), answer=answer),
        group_id=group,
        completion=Completion(
            prompt_id=prompt_id,
            token_ids=tuple(response),
            logprobs=logprobs,
            policy_logprobs=logprobs,
            finish_reason=reason,
        ),
        text="",
        sampling=Sampling(max_new_tokens=64),
        policy_version=0,
        score=Score(value=score) if isinstance(score, (int, float)) else score,
    )


def random_batch(*, rollouts: int = 8, prompts: int = 3, vocab: int = 384, seed: int = 0, ragged: bool = True) -> Batch:
    """Responses, and if `ragged` prompts too, of different lengths, with advantages and token-mean weights."""
    draw = torch.Generator().manual_seed(seed)

    def some(low: int, high: int, size: tuple[int, ...]) -> Tensor:
        return torch.randint(low, high, size, generator=draw)

    prompt_lengths = (1 + some(0, 6, (prompts,))).tolist()
    prompt_mask = length_mask(prompt_lengths if ragged else [4] * prompts).flip(1)
    response_mask = length_mask((1 + some(0, 7, (rollouts,))).tolist())
    advantages = torch.randn(rollouts, 1, generator=draw, dtype=torch.float64) * response_mask
    return Batch(
        prompt_ids=some(0, vocab, tuple(prompt_mask.shape)) * prompt_mask,
        prompt_mask=prompt_mask,
        prompt_index=some(0, prompts, (rollouts,)),
        response_ids=some(0, vocab, tuple(response_mask.shape)) * response_mask,
        response_mask=response_mask,
        loss_mask=response_mask,
        group_ids=torch.zeros(rollouts, dtype=torch.long),
        rewards=torch.zeros(rollouts),
        advantages=advantages,
        weights=response_mask.double() / response_mask.sum(),
    )

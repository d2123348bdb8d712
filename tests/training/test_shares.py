"""What the first pass over a micro-batch counts, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from grpo_core.algorithm import policy_losses
from grpo_core.algorithm.batch import Batch
from grpo_core.algorithm.objective import Algorithm, Terms
from grpo_core.algorithm.reductions import token_mean
from grpo_core.training.shares import Seen


def unused(batch: Batch) -> torch.Tensor:
    raise AssertionError("the advantages are given")


ALGORITHM = Algorithm(
    advantage=unused,
    policy_loss=partial(policy_losses.clipped, low=0.2, high=0.2),
    reduction=token_mean,
    clipped=partial(policy_losses.is_clipped, low=0.2, high=0.2),
)
MASK = torch.tensor([[True, True], [True, False]])
BATCH = Batch(
    prompt_ids=torch.zeros(1, 1, dtype=torch.long),
    prompt_mask=torch.ones(1, 1, dtype=torch.bool),
    prompt_index=torch.tensor([0, 0]),
    response_ids=torch.zeros(2, 2, dtype=torch.long),
    response_mask=MASK,
    loss_mask=MASK,
    group_ids=torch.tensor([0, 0]),
    rewards=torch.tensor([1.0, 0.0]),
    advantages=torch.tensor([[1.0, 1.0], [-1.0, -1.0]]),
    old_logprobs=torch.full((2, 2), -1.0),
)
TERMS = Terms(*(torch.tensor(value) for value in (0.5, 0.25, -0.125, 0.0625, 3.0)))


def test_ratio_clip_and_kl_are_those_of_the_given_log_probs() -> None:
    seen = Seen()
    here = torch.tensor([[-1 + math.log(1.5), -1 + math.log(0.5)], [-1 + math.log(1.5), 9.0]])
    seen.add(TERMS, BATCH, ALGORITHM, here)
    assert (seen.policy, seen.value, seen.entropy, seen.kl) == (0.5, 0.25, -0.125, 0.0625)
    assert seen.tokens == 3
    assert seen.clipped == 1, "1.5 with A > 0 is clipped; 0.5 with A > 0 and 1.5 with A < 0 are not; padding never"
    assert seen.ratio_max == pytest.approx(1.5)
    # k3 of d = log old - log now, per token: r - 1 - log r with r = now / old
    assert seen.kl_rollout == pytest.approx(sum(r - 1 - math.log(r) for r in (1.5, 0.5, 1.5)))


def test_without_old_log_probs_the_ratio_is_1_and_parts_add_up() -> None:
    seen = Seen()
    for _ in range(2):
        seen.add(TERMS, replace(BATCH, old_logprobs=None), ALGORITHM, torch.full((2, 2), -2.0))
    assert (seen.ratio_max, seen.kl_rollout, seen.clipped) == (1.0, 0.0, 0.0)
    assert (seen.policy, seen.tokens) == (1.0, 6.0)

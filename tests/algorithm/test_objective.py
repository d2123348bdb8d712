"""The terms of J on a case small enough to work by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tiny_batches import batch_of

from grpo_core.algorithm import kl, policy_losses
from grpo_core.algorithm.batch import Batch, PolicyOutputs
from grpo_core.algorithm.objective import Algorithm, surrogate
from grpo_core.algorithm.reductions import token_mean


def unused(batch: Batch) -> torch.Tensor:
    raise AssertionError("the advantages are given")


PLAIN = Algorithm(advantage=unused, policy_loss=policy_losses.unclipped, reduction=token_mean)


def tensor(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def hand_batch() -> Batch:
    """Three tokens of weight 1/3 and one of padding full of garbage."""
    mask = torch.tensor([[1, 1], [1, 0]])
    return batch_of(
        [0.0, 0.0],
        [0, 0],
        mask=mask,
        advantages=tensor([1.0, 1.0], [-2.0, 55.0]),
        weights=token_mean(mask.bool()),
        old_logprobs=tensor([-1.0, -2.0], [-1.0, 77.0]),
        ref_logprobs=tensor([-1.5, -2.0], [-0.5, 88.0]),
        old_values=tensor([0.5, 0.0], [1.0, 66.0]),
        returns=tensor([1.0, 1.0], [0.0, 99.0]),
    )


def hand_outputs() -> PolicyOutputs:
    return PolicyOutputs(
        logprobs=tensor([-1.0 + math.log(1.5), -2.0], [-1.0 + math.log(0.5), 3.0]),
        entropy=tensor([0.3, 0.9], [0.6, 1e9]),
        values=tensor([0.6, 0.1], [1.1, -1e9]),
    )


def test_all_terms_by_hand() -> None:
    algorithm = replace(
        PLAIN, critic=True, value_coef=0.5, value_clip=None, entropy_coef=0.1, kl="loss", kl_estimator=kl.k2
    )
    terms = surrogate(hand_outputs(), hand_batch(), algorithm, kl_coef=2.0)
    # policy: -(1.5*1 + 1*1 + 0.5*(-2))/3; value: 0.5 * (0.16 + 0.81 + 1.21)/2/3; entropy: -0.1*(0.3+0.9+0.6)/3
    first, third = 0.5 + math.log(1.5), -0.5 + math.log(0.5)
    assert float(terms.policy) == pytest.approx(-0.5)
    assert float(terms.value) == pytest.approx(0.5 * 2.18 / 6)
    assert float(terms.entropy) == pytest.approx(-0.06)
    assert float(terms.kl) == pytest.approx(2.0 * (first**2 + third**2) / 6)
    assert float(terms.total) == pytest.approx(sum(map(float, (terms.policy, terms.value, terms.entropy, terms.kl))))


def test_terms_that_are_switched_off_are_exactly_zero() -> None:
    terms = surrogate(hand_outputs(), hand_batch(), PLAIN, kl_coef=2.0)
    assert float(terms.value) == float(terms.entropy) == float(terms.kl) == 0.0
    assert float(terms.total) == float(terms.policy)


def test_both_clips_are_passed_on() -> None:
    bounds = {"low": 0.2, "high": 0.2}
    algorithm = replace(
        PLAIN,
        policy_loss=partial(policy_losses.clipped, **bounds),
        critic=True,
        value_coef=1.0,
        value_clip=0.05,
    )
    terms = surrogate(hand_outputs(), hand_batch(), algorithm)
    assert float(terms.policy) == pytest.approx(-(1.2 + 1.0 - 1.6) / 3)
    # held values 0.55, 0.05, 1.05: errors 0.45^2, 0.95^2, 1.1^2 (the unclipped 1.1 is the larger one there)
    assert float(terms.value) == pytest.approx((0.45**2 + 0.95**2 + 1.1**2) / 6)


def test_kf02_without_old_logprobs_the_ratio_is_exactly_1_and_the_gradient_flows() -> None:
    out = replace(hand_outputs(), logprobs=hand_outputs().logprobs.requires_grad_(True))
    batch = replace(hand_batch(), old_logprobs=None)
    terms = surrogate(out, batch, PLAIN)
    (gradient,) = torch.autograd.grad(terms.total, out.logprobs)
    torch.testing.assert_close(gradient, tensor([-1 / 3, -1 / 3], [2 / 3, 0.0]))


def policy_of(weight: torch.Tensor, batch: Batch) -> PolicyOutputs:
    """A policy in which every rollout's tokens depend on all weights."""
    features = torch.arange(1.0, 1.0 + weight.numel(), dtype=torch.float64)
    logits = torch.sin(features[None, None] * (1.0 + batch.response_ids[..., None])) * weight
    return PolicyOutputs(
        logprobs=logits.log_softmax(-1)[..., 0], entropy=logits.square().sum(-1), values=logits.sum(-1)
    )


def gradient_of(algorithm: Algorithm, batch: Batch) -> torch.Tensor:
    weight = torch.linspace(-1, 1, 5, dtype=torch.float64, requires_grad=True)
    terms = surrogate(policy_of(weight, batch), batch, algorithm, kl_coef=0.5)
    return torch.autograd.grad(terms.total, weight)[0]


CLIPPED = replace(PLAIN, policy_loss=policy_losses.clipped)
REINFORCE = replace(PLAIN, policy_loss=policy_losses.reinforce)


@pytest.mark.parametrize(
    "algorithm",
    [PLAIN, CLIPPED, REINFORCE, replace(PLAIN, kl="reward")],
    ids=["unclipped", "clipped", "reinforce", "kl-reward"],
)
def test_rows_of_advantage_0_contribute_nothing_where_the_algorithm_says_so(algorithm: Algorithm) -> None:
    whole, kept = zero_advantage_batch()
    assert algorithm.linear_in_advantage
    torch.testing.assert_close(gradient_of(algorithm, kept), gradient_of(algorithm, whole), atol=1e-15, rtol=1e-13)


@pytest.mark.parametrize(
    "changes", [{"critic": True}, {"entropy_coef": 0.1}, {"kl": "loss"}], ids=["critic", "entropy", "kl-loss"]
)
def test_rows_of_advantage_0_are_needed_where_something_else_is_in_the_loss(changes: dict[str, Any]) -> None:
    algorithm = replace(PLAIN, **changes)
    whole, kept = zero_advantage_batch()
    assert not algorithm.linear_in_advantage
    assert float((gradient_of(algorithm, kept) - gradient_of(algorithm, whole)).abs().max()) > 1e-3


def zero_advantage_batch() -> tuple[Batch, Batch]:
    """Four rollouts of which two have no advantage; and the batch without them."""
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool()
    draw = torch.Generator().manual_seed(3)

    def some() -> torch.Tensor:
        return torch.randn(4, 3, generator=draw, dtype=torch.float64) * 0.3

    advantages = torch.tensor([[0.0], [1.5], [0.0], [-0.7]], dtype=torch.float64) * mask
    batch = replace(
        batch_of([0.0] * 4, [0] * 4, mask=mask),
        response_ids=torch.arange(12).reshape(4, 3),
        advantages=advantages,
        weights=token_mean(mask),
        old_logprobs=some() - 1.5,
        ref_logprobs=some() - 1.5,
        old_values=some(),
        returns=some() + 1,
    )
    return batch, batch.select(torch.tensor([1, 3]))

"""Policy losses against the clip cases and numbers worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from conftest import case_params

from grpo_core.algorithm import policy_losses


def one(value: float, *, grad: bool = False) -> torch.Tensor:
    return torch.tensor([[value]], dtype=torch.float64, requires_grad=grad)


@pytest.mark.parametrize("row", case_params("clip.jsonl"))
def test_kf08_clip_cases(row: dict[str, Any]) -> None:
    bounds = {"low": row["eps_low"], "high": row["eps_high"]}
    old = one(-1.3)
    logprobs = (old + math.log(row["ratio"])).requires_grad_(True)
    loss = policy_losses.clipped(logprobs, old, one(row["advantage"]), **bounds)
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    assert (-loss).item() == pytest.approx(row["expected"]["objective"], abs=1e-9)
    assert float(-gradient) == pytest.approx(row["expected"]["d_objective_d_logp"], abs=1e-9)
    flag = policy_losses.is_clipped(logprobs, old, one(row["advantage"]), **bounds)
    assert bool(flag) is row["expected"]["clipped"]


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_kf08_the_flag_is_set_exactly_where_the_gradient_is_cut(advantage: float) -> None:
    logprobs = torch.linspace(-1, 1, 101, dtype=torch.float64)[None].requires_grad_(True)
    old, weight = torch.zeros_like(logprobs), torch.full_like(logprobs, advantage)
    flags = policy_losses.is_clipped(logprobs, old, weight, low=0.2, high=0.28)
    (gradient,) = torch.autograd.grad(policy_losses.clipped(logprobs, old, weight, low=0.2, high=0.28).sum(), logprobs)
    expected = torch.where(flags, 0.0, -advantage * logprobs.exp())
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)
    assert bool(flags.any()) is (advantage != 0)


def test_unclipped_is_minus_ratio_times_advantage() -> None:
    logprobs = one(math.log(3.0), grad=True)
    loss = policy_losses.unclipped(logprobs, one(0.0), one(2.0))
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    assert float(loss) == pytest.approx(-6.0)
    assert float(gradient) == pytest.approx(-6.0)


def test_reinforce_ignores_the_old_logprobs() -> None:
    logprobs = one(-0.5, grad=True)
    loss = policy_losses.reinforce(logprobs, one(123.0), one(2.0))
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    assert float(loss) == pytest.approx(1.0)
    assert float(gradient) == pytest.approx(-2.0)


@pytest.mark.parametrize("loss", [policy_losses.clipped, policy_losses.unclipped, policy_losses.reinforce])
def test_on_the_sampling_policy_every_loss_has_the_policy_gradient(loss: Any) -> None:
    logprobs = torch.tensor([[-0.2, -3.0, -0.7]], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[0.5, -2.0, 0.0]], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(loss(logprobs, logprobs.detach(), advantages).sum(), logprobs)
    torch.testing.assert_close(gradient, -advantages, atol=1e-15, rtol=0)
    assert bool((policy_losses.ratio(logprobs, logprobs.detach()) == 1).all())


@pytest.mark.parametrize("loss", [policy_losses.clipped, policy_losses.unclipped])
@pytest.mark.parametrize("gap", [-500.0, 500.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_kf01_a_far_ratio_stays_finite(loss: Any, gap: float, advantage: float) -> None:
    logprobs = torch.tensor([[gap]], dtype=torch.float32, requires_grad=True)
    value = loss(logprobs, torch.zeros(1, 1), torch.full((1, 1), advantage))
    value.sum().backward()
    assert logprobs.grad is not None
    assert bool(value.isfinite().all())
    assert bool(logprobs.grad.isfinite().all())

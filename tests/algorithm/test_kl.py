"""KL estimators and the controllers of the coefficient."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import case_params
from tiny_batches import batch_of

from grpo_core.algorithm import kl
from grpo_core.algorithm.batch import PolicyOutputs
from grpo_core.algorithm.kl import AdaptiveKL, DualKL, FixedKL
from grpo_core.algorithm.objective import Algorithm, surrogate
from grpo_core.algorithm.policy_losses import unclipped
from grpo_core.algorithm.reductions import masked_mean, token_mean

ESTIMATORS = {"k1": kl.k1, "k2": kl.k2, "k3": kl.k3}


@pytest.mark.parametrize("row", case_params("kl.jsonl", kind="tokens"))
@pytest.mark.parametrize("name", ESTIMATORS)
def test_kf06_values_and_masked_means(row: dict[str, Any], name: str) -> None:
    policy, ref = (torch.tensor(row[key], dtype=torch.float64) for key in ("policy_logp", "ref_logp"))
    mask = torch.tensor(row["mask"]).bool()
    value = ESTIMATORS[name](policy, ref)
    expected = torch.tensor(row["expected"][name], dtype=torch.float64)
    torch.testing.assert_close(torch.where(mask, value, 0.0), expected, atol=1e-9, rtol=0)
    assert float(masked_mean(value, mask)) == pytest.approx(row["expected"][f"{name}_masked_mean"], abs=1e-9)


@pytest.mark.parametrize("row", case_params("kl.jsonl", kind="distribution"))
@pytest.mark.parametrize("name", ESTIMATORS)
def test_kf07_each_estimator_has_the_gradient_its_docs_name(row: dict[str, Any], name: str) -> None:
    logits = torch.tensor(row["policy_logits"], dtype=torch.float64, requires_grad=True)
    policy = logits.log_softmax(-1)
    ref = torch.tensor(row["ref_logits"], dtype=torch.float64).log_softmax(-1)
    per_action = ESTIMATORS[name](policy, ref)
    drawn = policy.detach().exp()
    assert float((drawn * per_action).detach().sum()) == pytest.approx(row["expected"][f"E_{name}"], abs=1e-9)
    (gradient,) = torch.autograd.grad((drawn * per_action).sum(), logits)
    listed = torch.tensor(row["expected"][f"E_grad_of_{name}_as_loss"], dtype=torch.float64)
    torch.testing.assert_close(gradient, listed, atol=1e-9, rtol=0)
    promised = {"k2": "grad_reverse_kl", "k3": "grad_forward_kl"}
    if name in promised:
        wanted = torch.tensor(row["expected"][promised[name]], dtype=torch.float64)
        torch.testing.assert_close(gradient, wanted, atol=1e-9, rtol=0)


@pytest.mark.parametrize("row", case_params("kl.jsonl", kind="extreme"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_kf01_extremes_stay_finite_forward_and_backward(row: dict[str, Any], dtype: torch.dtype, name: str) -> None:
    policy = torch.tensor([row["policy_logp"]], dtype=dtype, requires_grad=True)
    ref = torch.tensor([row["ref_logp"]], dtype=dtype)
    value = ESTIMATORS[name](policy, ref)
    value.sum().backward()
    assert policy.grad is not None
    assert bool(value.isfinite().all())
    assert bool(policy.grad.isfinite().all())
    assert float(policy.grad) <= (1.0 if name == "k1" else 0.0), "the loss never pushes a lost token further down"
    if name == "k1":
        assert float(value.detach()) == pytest.approx(row["expected"]["k1"], rel=4e-3)


def test_kf01_ordinary_gaps_keep_their_exact_value_and_gradient() -> None:
    gap = torch.linspace(-19.9, 30, 200, dtype=torch.float64, requires_grad=True)
    value = kl.k3(gap, torch.zeros_like(gap))
    (gradient,) = torch.autograd.grad(value.sum(), gap)
    torch.testing.assert_close(value, (-gap).exp() - 1 + gap, atol=0, rtol=1e-15)
    torch.testing.assert_close(gradient, 1 - (-gap).exp(), atol=1e-15, rtol=1e-15)
    assert bool((value >= 0).all())


@pytest.mark.parametrize("row", case_params("adaptive_kl.jsonl"))
def test_kf26_adaptive_coefficient_continues_across_a_save(row: dict[str, Any]) -> None:
    def controller(coef: float) -> AdaptiveKL:
        return AdaptiveKL(coef, float(row["target"]), float(row["horizon"]))

    straight, interrupted = controller(row["initial_coef"]), controller(row["initial_coef"])
    for count, (reading, expected) in enumerate(
        zip(row["observed_kl"], row["expected"]["coef_after_each_update"], strict=True)
    ):
        if count == row["save_after_updates"]:
            saved = interrupted.coef
            interrupted = controller(row["initial_coef"])
            interrupted.coef = saved
            assert saved == pytest.approx(row["expected"]["coef_right_after_resume"], rel=1e-9)
        straight.update(reading, row["steps_per_update"])
        interrupted.update(reading, row["steps_per_update"])
        assert straight.coef == pytest.approx(expected, rel=1e-9)
        assert interrupted.coef == straight.coef


def test_fixed_coefficient_never_moves() -> None:
    controller = FixedKL(0.3)
    controller.update(1e9, 100)
    assert controller.coef == 0.3


def test_kf52_a_reading_that_is_not_a_number_moves_no_coefficient() -> None:
    for controller in (AdaptiveKL(0.2, 6.0, 1000.0), DualKL(0.2, 6.0, 0.1)):
        controller.update(math.nan, 64)
        assert controller.coef == 0.2
    adaptive = AdaptiveKL(0.2, 6.0, 1000.0)
    adaptive.update(math.inf, 100)
    assert adaptive.coef == pytest.approx(0.2 * (1 + 0.2 * 0.1)), "an infinite one counts as too large"


def test_dual_step_and_slack_constraint() -> None:
    controller = DualKL(0.5, target=2.0, lr=0.1)
    controller.update(5.0, 64)
    assert controller.coef == pytest.approx(0.8)
    for _ in range(10):
        controller.update(0.0, 64)
    assert controller.coef == 0.0


# A3: a five-action policy, everything exact. The optimum of E[r] - beta KL(pi || ref) is ref * exp(r / beta), normalised.

REWARD = torch.tensor([1.0, 0.2, -0.5, 0.8, 0.0], dtype=torch.float64)
REF = torch.tensor([0.5, -1.0, 0.3, -0.2, 1.0], dtype=torch.float64).log_softmax(-1)


def optimum(beta: float) -> torch.Tensor:
    return (REF + REWARD / beta).log_softmax(-1)


def divergence(policy: torch.Tensor) -> torch.Tensor:
    return (policy.exp() * (policy - REF)).sum(-1)


def library_gradient(logits: torch.Tensor, beta: float) -> torch.Tensor:
    """Grad J of `surrogate` on one rollout per action, weighted by its probability: an exact expectation."""
    logits = logits.clone().requires_grad_(True)
    logprobs = logits.log_softmax(-1)
    batch = batch_of(
        REWARD,
        [0] * 5,
        advantages=REWARD[:, None],
        ref_logprobs=REF[:, None],
        weights=logprobs.detach().exp()[:, None],
    )
    algorithm = Algorithm(advantage=_unused, policy_loss=unclipped, reduction=token_mean, kl="loss", kl_estimator=kl.k2)
    terms = surrogate(PolicyOutputs(logprobs=logprobs[:, None]), batch, algorithm, beta)
    return torch.autograd.grad(terms.total, logits)[0]


def _unused(batch: Any) -> torch.Tensor:
    raise AssertionError("the advantages are given")


@pytest.mark.parametrize("beta", [0.4, 1.0])
def test_kl_loss_gradient_is_that_of_the_penalised_objective(beta: float) -> None:
    start = torch.tensor([0.1, 0.4, -0.3, 0.0, 0.9], dtype=torch.float64)
    logits = start.clone().requires_grad_(True)
    policy = logits.log_softmax(-1)
    (true,) = torch.autograd.grad(-((policy.exp() * REWARD).sum() - beta * divergence(policy)), logits)
    torch.testing.assert_close(library_gradient(start, beta), true, atol=1e-12, rtol=1e-12)
    assert float(library_gradient(optimum(beta), beta).abs().max()) < 1e-12, "stationary at the closed form"
    for _ in range(1500):
        start = start - 4.0 * library_gradient(start, beta)
    torch.testing.assert_close(start.softmax(-1), optimum(beta).exp(), atol=1e-5, rtol=0)


def on_the_boundary(directions: torch.Tensor, delta: float) -> torch.Tensor:
    """For each direction of the logits the policy at KL = delta from the reference, by bisection."""
    low, high = (
        torch.zeros(len(directions), 1, dtype=torch.float64),
        torch.full((len(directions), 1), 60.0).double(),
    )
    for _ in range(60):
        middle = (low + high) / 2
        inside = divergence((REF + middle * directions).log_softmax(-1))[:, None] < delta
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return (REF + low * directions).log_softmax(-1)


def test_the_penalised_optimum_is_the_constrained_one_at_its_own_kl() -> None:
    beta = 0.4
    best = optimum(beta)
    delta = float(divergence(best))
    directions = torch.randn(4000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    others = on_the_boundary(torch.cat([directions, REWARD[None], REWARD[None] + 0.05 * directions]), delta)
    gains = (others.exp() * REWARD).sum(-1)
    reached = float((best.exp() * REWARD).sum())
    assert float(gains.max()) <= reached + 1e-9
    assert float(gains.max()) > reached - 1e-6, "the reward's own direction attains it"


@pytest.mark.parametrize("start", [0.05, 3.0])
def test_dual_controller_finds_the_multiplier_of_the_constraint(start: float) -> None:
    beta = 0.4
    controller = DualKL(start, target=float(divergence(optimum(beta))), lr=0.5)
    for _ in range(400):
        controller.update(float(divergence(optimum(controller.coef))), 64)
    assert controller.coef == pytest.approx(beta, abs=1e-4)


def test_controllers_can_be_rebuilt_from_their_coefficient() -> None:
    assert replace(DualKL(0.1, 2.0, 0.1), coef=0.7) == DualKL(0.7, 2.0, 0.1)

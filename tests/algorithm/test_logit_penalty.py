"""The penalty in the space of the logits: its closed form, and the steps made with it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from bandits import (
    LAM,
    ROWS_AS_PROMPTS,
    STATES,
    Bandit,
    BanditPolicy,
    Transformer,
    bandit_loss,
    bandit_parts,
    hessian_times,
    of_parts,
    relative_error,
    share_parts,
)
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from grpo_core.algorithm.objective import logit_norm, regularized_gradient, slope
from grpo_core.algorithm.penalty import Penalty
from grpo_core.algorithm.policy_losses import clipped, is_clipped, reinforce, unclipped
from grpo_core.algorithm.products import logit_space
from grpo_core.algorithm.quick_steps import InLoss
from grpo_core.models import logprobs as scoring

GEN = torch.Generator().manual_seed(11)
LOGITS = 2 * torch.randn(12, 7, generator=GEN, dtype=torch.float64)
TAKEN = torch.randint(0, 7, (12, 1), generator=GEN)
ADVANTAGES = torch.randn(12, 1, generator=GEN, dtype=torch.float64)
AWAY = torch.tensor([0.5, -0.5, 0.1, -0.1, 0.0, 0.0] * 2, dtype=torch.float64)[:, None]
LOSSES = {
    "clipped": clipped,
    "asymmetric": partial(clipped, low=0.05, high=0.3),
    "unclipped": unclipped,
    "reinforce": reinforce,
}


def estimator(every: int = 4, **more: Any) -> Penalty:
    """As composition.py puts it together."""
    return Penalty(
        product=logit_space, quick=InLoss(), every=every, **{"strength": LAM, "mode": "literal", "cap": None} | more
    )


@pytest.mark.parametrize("loss", list(LOSSES.values()), ids=list(LOSSES))
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_closed_form_equals_autograd_and_so_does_its_gradient(loss: Any, temperature: float) -> None:
    logits = LOGITS.clone().requires_grad_(True)
    old = (LOGITS / temperature).log_softmax(-1).gather(1, TAKEN) - AWAY

    def parts_of(z: Tensor) -> tuple[Tensor, Tensor]:
        """(log-prob of the token that was drawn, sum of squared probabilities)."""
        distribution = z.log_softmax(-1)
        return distribution.gather(1, TAKEN), distribution.exp().square().sum(-1, keepdim=True)

    z = logits / temperature
    (by_autograd,) = torch.autograd.grad(loss(parts_of(z)[0], old, ADVANTAGES).sum(), z, create_graph=True)
    expected = by_autograd.square().sum(-1, keepdim=True)
    (expected_gradient,) = torch.autograd.grad((expected * torch.arange(1, 13)[:, None]).sum(), logits)

    taken, collision = parts_of(logits / temperature)
    found = logit_norm(slope(lambda logprobs: loss(logprobs, old, ADVANTAGES), taken), taken, collision)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)
    (gradient,) = torch.autograd.grad((found * torch.arange(1, 13)[:, None]).sum(), logits)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-12)
    if loss is clipped:
        gone = is_clipped(taken.detach(), old, ADVANTAGES)
        assert 0 < int(gone.sum()) < 8
        assert bool((found[gone] == 0).all()) and bool((found[~gone] > 0).all())


def test_the_closed_form_by_hand() -> None:
    """p = (1/2, 1/4, 1/4), the first token drawn, s = -3: 9 ((1 - 1/2)^2 + 1/16 + 1/16) = 27/8."""
    found = logit_norm(torch.tensor([[-3.0]]), torch.tensor([[0.5]]).log(), torch.tensor([[3 / 8]]))
    assert float(found) == pytest.approx(27 / 8, rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk", [1 << 24, 384 * 3])
@pytest.mark.parametrize("grad", [False, True])
def test_the_policy_gives_the_sum_of_squared_probabilities(
    temperature: float, chunk: int, grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "CHUNK_ELEMENTS", chunk)
    model = Transformer("gpt2", "sdpa")
    batch = model.batch
    with torch.set_grad_enabled(grad):
        out = model.policy.score(batch, temperature=temperature, wanted=("collision",))
        both = model.policy.score(batch, temperature=temperature, wanted=("entropy", "collision"))
    assert out.collision is not None and both.collision is not None and out.entropy is None
    assert torch.equal(out.collision, both.collision)
    assert bool((out.collision[~batch.response_mask] == 0).all())
    with torch.no_grad():
        for place, row in enumerate(model.rows(dict(model.policy.model.named_parameters()))):
            p = (row.z * 0.8 / temperature).softmax(-1)
            kept = out.collision[place][batch.response_mask[place]]
            torch.testing.assert_close(kept.detach(), p.square().sum(-1), rtol=1e-10, atol=1e-14)


def bandit_penalty(model: nn.Module, weights: dict[str, Tensor]) -> Tensor:
    """mean ||d(-ratio A) / d logits||^2 over the bandit's rows, by autograd."""
    z = functional_call(model, weights, (STATES,))
    logprobs = z.log_softmax(-1).gather(1, ROWS_AS_PROMPTS.response_ids)
    loss = -((logprobs - ROWS_AS_PROMPTS.old_logprobs).exp() * ROWS_AS_PROMPTS.advantages).sum()
    return torch.autograd.grad(loss, z, create_graph=True)[0].square().sum(-1).mean()


def first_gradient(loss: Any, model: nn.Module) -> Tensor:
    return hessian_times(loss, model)[0]


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_measured_and_quick_steps_are_grad_j_plus_lambda_grad_p(micro_batches: int) -> None:
    model, penalty = Bandit(), estimator()
    g, p = first_gradient(partial(bandit_loss, model), model), first_gradient(partial(bandit_penalty, model), model)
    found = {}
    for step in range(3):
        parts = share_parts(BanditPolicy(model), ROWS_AS_PROMPTS, micro_batches, updates_per_step=2)
        found[step], report = of_parts(parts, list(model.parameters()), penalty)
        assert report.measured is (step == 0)
        assert (report.lam, report.shift) == (pytest.approx(LAM), 0.0)
        assert relative_error(found[step], g + LAM * p) < 1e-10
        if step == 0:
            assert report.ratio == pytest.approx(LAM * float(p.norm() / g.norm()))
            assert report.cosine == pytest.approx(float(torch.cosine_similarity(g, p, 0)))
    assert relative_error(found[1], found[0]) < 1e-12


def test_on_a_transformer_both_kinds_of_step_equal_autograd() -> None:
    model, penalty = Transformer("gpt2", "sdpa"), estimator()
    with sdpa_kernel(SDPBackend.MATH):
        g = first_gradient(model.loss, model.policy.model)
        p = first_gradient(model.logit_penalty, model.policy.model)
    assert float(LAM * p.norm() / g.norm()) > 0.1
    for _ in range(2):
        found, _ = model.share_step(penalty, 3)
        assert relative_error(found, g + LAM * p) < 1e-9


@pytest.mark.parametrize("cap", [None, 0.1])
def test_a_relative_strength_is_held_on_measured_steps(cap: float | None) -> None:
    model, penalty = Bandit(), estimator(every=2, strength=0.25, mode="relative", cap=cap)
    params = list(model.parameters())
    lam = 0.0
    for step in range(6):
        g = first_gradient(partial(bandit_loss, model), model)
        p = first_gradient(partial(bandit_penalty, model), model)
        parts = share_parts(BanditPolicy(model), ROWS_AS_PROMPTS, 2, updates_per_step=2)
        found, report = of_parts(parts, params, penalty)
        assert report.measured is (step % 2 == 0)
        if report.measured:
            wanted = 0.25 if cap is None else cap
            assert float((found - g).norm() / g.norm()) == pytest.approx(wanted, rel=1e-10)
            assert (report.ratio, report.capped) == (pytest.approx(wanted), cap is not None)
            lam = report.lam
        assert report.lam == lam
        assert relative_error(found, g + lam * p) < 1e-10
        with torch.no_grad():
            for row in params:
                row.sub_(row.grad, alpha=0.1)


def test_the_penalty_falls_when_it_alone_is_followed() -> None:
    """Its sign: a small step along -grad P lowers P by the square of the gradient."""
    model = Bandit()
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    parts = share_parts(BanditPolicy(model), ROWS_AS_PROMPTS, 1, updates_per_step=2)
    g, _ = of_parts(parts, list(model.parameters()), None)
    found, _ = of_parts(parts, list(model.parameters()), estimator())
    down = (found - g) / LAM
    pieces = down.split([w.numel() for w in weights.values()])
    size = 1e-5
    with torch.enable_grad():
        after = {
            n: (w - size * piece.reshape(w.shape)).requires_grad_(True)
            for (n, w), piece in zip(weights.items(), pieces, strict=True)
        }
        before = {n: w.requires_grad_(True) for n, w in weights.items()}
        change = float((bandit_penalty(model, after) - bandit_penalty(model, before)).detach())
    assert change == pytest.approx(-size * float(down @ down), rel=1e-3)


def test_plain_functions_do_not_know_their_logits() -> None:
    model = Bandit()
    with pytest.raises(TypeError, match="logit_space"):
        regularized_gradient(bandit_parts(model), list(model.parameters()), (), estimator())

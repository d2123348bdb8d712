"""The two forms of the penalty's function: J itself, and log-probs with frozen coefficients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from bandits import (
    ACTIONS,
    ALGORITHM,
    BANDIT_BATCH,
    LAM,
    ROWS_AS_PROMPTS,
    STATES,
    Bandit,
    BanditPolicy,
    Transformer,
    bandit_score,
    gradients,
    hessian_times,
    literal,
    of_parts,
    relative_error,
    share_parts,
)
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from grpo_core.algorithm.passes import Direction, Part
from grpo_core.algorithm.penalty import Penalty
from grpo_core.algorithm.policy_losses import clipped, is_clipped, reinforce, unclipped
from grpo_core.algorithm.products import exact, finite_difference
from grpo_core.algorithm.quick_steps import Reused

LOSSES = {"clipped": clipped, "unclipped": unclipped, "reinforce": reinforce}
EACH_LOSS = pytest.mark.parametrize("loss", list(LOSSES.values()), ids=list(LOSSES))
BOTH_FORMS = pytest.mark.parametrize("form", ["score", "literal"])

# Old log-probs around the current ones: some ratios beyond the clip where it removes the gradient, on either side of 1,
# some beyond it where it does not, and some within.
with torch.no_grad():
    NOW = Bandit()(STATES).gather(1, ACTIONS[:, None])
AWAY = torch.tensor([0.5, -0.5, 0.1, -0.1, 0.9, 0.6, 0.5, 0.3], dtype=torch.float64)[:, None]
AWAY = AWAY * BANDIT_BATCH.advantages.sign()
OFF_POLICY = replace(ROWS_AS_PROMPTS, old_logprobs=NOW - AWAY)


def bandit_parts_of(
    form: str, loss: Any = unclipped, batch: Any = OFF_POLICY, **more: Any
) -> tuple[Bandit, list[Part]]:
    model = Bandit()
    algorithm = replace(ALGORITHM, penalty_form=form, policy_loss=loss)
    return model, share_parts(BanditPolicy(model), batch, 2, algorithm=algorithm, **{"updates_per_step": 4} | more)


def coefficients(loss: Any, batch: Any = OFF_POLICY) -> Tensor:
    """d loss / d log pi at the bandit's first weights, written out."""
    a = BANDIT_BATCH.advantages[:, 0]
    if loss is reinforce:
        return -a
    log_ratio = (NOW - batch.old_logprobs)[:, 0] if batch.old_logprobs is not None else torch.zeros(8)
    ratio = log_ratio.double().exp()
    inside = torch.ones(8, dtype=torch.bool)
    if loss is clipped:
        inside = ~(((ratio > 1.2) & (a > 0)) | ((ratio < 0.8) & (a < 0)))
    return torch.where(inside, -ratio * a, 0.0)


def frozen_score(c: Tensor, model: nn.Module, weights: dict[str, Tensor]) -> Tensor:
    """mean(c log pi) of the bandit, c constant."""
    return (c * functional_call(model, weights, (STATES,))[torch.arange(8), ACTIONS]).mean()


def gradient_of(loss: Callable[[dict[str, Tensor]], Tensor], model: nn.Module) -> Tensor:
    """Its gradient."""
    return hessian_times(loss, model)[0]


def test_the_off_policy_batch_has_tokens_on_both_sides_of_the_clip() -> None:
    hit = is_clipped(NOW, OFF_POLICY.old_logprobs, OFF_POLICY.advantages)
    assert hit[:, 0].tolist() == [True, False, False, False, True, True, True, True]
    assert {bool(a > 0) for a in OFF_POLICY.advantages[hit]} == {True, False}


# A table of logits: what the score form is for


class Table(nn.Module):
    """Five logits, the same in every state."""

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(2)
        self.logits = nn.Parameter(sharpness * torch.randn(5, generator=draw, dtype=torch.float64))

    def forward(self, states: Tensor) -> Tensor:
        return self.logits.log_softmax(-1).expand(len(states), 5)


def whole_expectation(table: Table, form: str, **more: Any) -> list[Part]:
    """Every action once, weighted with its probability; advantages centred under the policy."""
    probabilities = table.logits.detach().softmax(-1)
    rewards = torch.tensor([1.0, 0.0, 0.3, -0.5, 0.2], dtype=torch.float64)
    batch = replace(
        ROWS_AS_PROMPTS.select(torch.arange(5)),
        response_ids=torch.arange(5)[:, None],
        advantages=(rewards - probabilities @ rewards)[:, None],
        weights=probabilities[:, None],
        old_logprobs=probabilities.log()[:, None],
    )
    return share_parts(BanditPolicy(table), batch, 2, algorithm=replace(ALGORITHM, penalty_form=form), **more)


@pytest.mark.parametrize("product", [exact, finite_difference])
@pytest.mark.parametrize("sharpness", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("updates", [1, 2])
def test_a_table_with_centred_advantages_has_no_penalty_in_the_score_form(
    product: Any, sharpness: float, updates: int
) -> None:
    ratios = {}
    for form in ("score", "literal"):
        table = Table(sharpness)
        plain, _ = of_parts(whole_expectation(table, form), [table.logits], None)
        parts = whole_expectation(table, form, updates_per_step=updates)
        found, report = of_parts(parts, [table.logits], literal(product))
        ratios[form] = float((found - plain).norm() / plain.norm())
        assert report.ratio == pytest.approx(ratios[form], abs=1e-12)
    assert ratios["score"] < 1e-12
    assert ratios["literal"] > 1e-3


def test_a_reused_direction_does_not_move_such_a_table_either() -> None:
    table = Table(1.0)
    v = Direction(params=[table.logits], values=[torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0], dtype=torch.float64)])
    gaps = {}
    for form in ("score", "literal"):
        reused = Reused(limit=10.0, measured=True)
        product = partial(finite_difference, along=reused.along)
        penalty = Penalty(product=product, strength=0.1, mode="literal", cap=None, quick=reused, every=9)
        plain, _ = of_parts(whole_expectation(table, form), [table.logits], None)
        for _ in range(2):
            parts = whole_expectation(table, form)
            found, report = of_parts(parts, [table.logits], penalty, moments=lambda _: v)
        if form == "literal":
            assert report.shift == pytest.approx(0.2 * v.length)
        gaps[form] = relative_error(found, plain)
    assert gaps["score"] < 1e-12
    assert gaps["literal"] > 1e-3


# A network


@EACH_LOSS
@pytest.mark.parametrize("updates", [1, 4])
def test_both_forms_have_the_gradient_of_j_at_theta(loss: Any, updates: int) -> None:
    batch = OFF_POLICY if updates > 1 else replace(OFF_POLICY, old_logprobs=None)
    model = Bandit()
    expected = gradient_of(partial(frozen_score, coefficients(loss, batch), model), model)
    for form in ("score", "literal"):
        model, parts = bandit_parts_of(form, loss, batch, updates_per_step=updates)
        plain, _ = of_parts(parts, list(model.parameters()), None)
        assert relative_error(plain, expected) < 1e-12
        model.zero_grad(set_to_none=True)
        for part in parts:
            part.again().backward()
        assert relative_error(gradients(list(model.parameters())), expected) < 1e-12


@EACH_LOSS
def test_the_score_product_is_that_of_log_probs_with_constant_coefficients(loss: Any) -> None:
    model, parts = bandit_parts_of("score", loss)
    found, _ = of_parts(parts, list(model.parameters()), literal(exact))
    g, h = hessian_times(partial(frozen_score, coefficients(loss), model), model)
    assert relative_error(found, g + 2 * LAM * h) < 1e-11
    if loss is unclipped:
        model, parts = bandit_parts_of("score", loss, ROWS_AS_PROMPTS)
        found, _ = of_parts(parts, list(model.parameters()), literal(exact))
        g, h = hessian_times(partial(bandit_score, model), model)
        assert relative_error(found, g + 2 * LAM * h) < 1e-11


@EACH_LOSS
def test_the_forms_differ_by_the_term_of_the_ratio(loss: Any) -> None:
    """hess(r A) = r A (hess log pi + grad log pi grad log pi'): the literal form has the second part too."""
    products = {}
    for form in ("score", "literal"):
        model, parts = bandit_parts_of(form, loss)
        plain, _ = of_parts(parts, list(model.parameters()), None)
        products[form] = (of_parts(parts, list(model.parameters()), literal(exact))[0] - plain) / (2 * LAM)
    names = list(dict(model.named_parameters()))
    logprobs = functional_call(model, dict(model.named_parameters()), (STATES,))[torch.arange(8), ACTIONS]
    rows = []
    for row in range(8):
        each = torch.autograd.grad(logprobs[row], [dict(model.named_parameters())[n] for n in names], retain_graph=True)
        rows.append(torch.cat([e.flatten() for e in each]))
    jacobian = torch.stack(rows)
    c = torch.zeros(8, dtype=torch.float64) if loss is reinforce else coefficients(loss)
    outer = (jacobian.T * c / 8) @ (jacobian @ plain)
    torch.testing.assert_close(products["literal"] - products["score"], outer, rtol=1e-9, atol=1e-12)


def test_the_score_product_on_a_transformer() -> None:
    model = Transformer("gpt2", "sdpa")
    with sdpa_kernel(SDPBackend.MATH):
        g, h = hessian_times(model.score_loss, model.policy.model)
        _, other = hessian_times(model.loss, model.policy.model)
    found, _ = model.share_step(literal(exact), 3, penalty_form="score")
    assert relative_error(found - g, 2 * LAM * h) < 1e-8
    found, _ = model.share_step(literal(exact), 3, penalty_form="literal")
    assert relative_error(found - g, 2 * LAM * other) < 1e-8
    assert relative_error(h, other) > 0.01


# The coefficients are those of theta wherever the weights are


def nudged(model: nn.Module) -> None:
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=draw, dtype=torch.float64), alpha=0.3)


@EACH_LOSS
@pytest.mark.parametrize("how", ["first pass", "freeze"])
@pytest.mark.parametrize("updates", [1, 4])
def test_coefficients_are_frozen_at_theta_after_a_first_pass_or_without_one(loss: Any, how: str, updates: int) -> None:
    batch = OFF_POLICY if updates > 1 else replace(OFF_POLICY, old_logprobs=None)
    model, parts = bandit_parts_of("score", loss, batch, updates_per_step=updates)
    for part in parts:
        if how == "freeze":
            part.freeze()
        else:
            part.loss()
    nudged(model)
    model.zero_grad(set_to_none=True)
    for part in parts:
        part.again().backward()
    there = dict(model.named_parameters())
    expected = torch.autograd.grad(frozen_score(coefficients(loss, batch), model, there), list(there.values()))
    found = gradients(list(model.parameters()))
    assert relative_error(found, torch.cat([e.flatten() for e in expected])) < 1e-12


@EACH_LOSS
def test_in_the_literal_form_the_ratio_follows_the_weights(loss: Any) -> None:
    model, parts = bandit_parts_of("literal", loss)
    for part in parts:
        part.loss()
    nudged(model)
    model.zero_grad(set_to_none=True)
    value = sum(float(part.again().detach()) for part in parts)
    with torch.no_grad():
        logprobs = model(STATES)[torch.arange(8), ACTIONS][:, None]
        expected = float(loss(logprobs, OFF_POLICY.old_logprobs, OFF_POLICY.advantages).mean())
    assert value == pytest.approx(expected, rel=1e-12)


@BOTH_FORMS
@EACH_LOSS
@pytest.mark.parametrize("updates", [1, 4])
def test_exact_and_finite_difference_agree_in_each_form(form: str, loss: Any, updates: int) -> None:
    """With the clip's corners well away from the shift."""
    batch = OFF_POLICY if updates > 1 else replace(OFF_POLICY, old_logprobs=None)
    found = {}
    for product in (exact, partial(finite_difference, shift=1e-5)):
        model, parts = bandit_parts_of(form, loss, batch, updates_per_step=updates)
        found[product], _ = of_parts(parts, list(model.parameters()), literal(product))
    model, parts = bandit_parts_of(form, loss, batch, updates_per_step=updates)
    plain, _ = of_parts(parts, list(model.parameters()), None)
    one, other = (value - plain for value in found.values())
    assert float(one.norm() / plain.norm()) > 0.01
    assert relative_error(other, one) < 1e-3

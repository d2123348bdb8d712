"""Measured and quick steps of the estimators against closed forms and float64 autograd."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bandits import (
    ALGORITHM,
    LAM,
    ROWS_AS_PROMPTS,
    STATES,
    Bandit,
    BanditPolicy,
    Stop,
    Transformer,
    bandit_loss,
    bandit_parts,
    bandit_score,
    gradients,
    hessian_times,
    literal,
    of_parts,
    relative_error,
    run,
    share_parts,
)
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from grpo_core.algorithm.objective import regularized_gradient
from grpo_core.algorithm.passes import Direction
from grpo_core.algorithm.penalty import Penalty
from grpo_core.algorithm.products import exact, finite_difference, logit_space
from grpo_core.algorithm.quick_steps import Cached, InLoss, Reused
from grpo_core.training.update import first_moments


def every_k(every: int = 5, product: Any = exact, strength: float = LAM, **more: Any) -> Penalty:
    more = {"mode": "literal", "cap": None} | more
    return Penalty(product=product, strength=strength, quick=Cached(), every=every, **more)


def reuse(every: int = 32, *, strength: float = 0.2, limit: float = math.inf, **more: Any) -> Penalty:
    """As composition.py puts it together."""
    reused = Reused(limit=limit, **{k: more.pop(k) for k in ("direction", "restore_by") if k in more})
    product = partial(finite_difference, shift=more.pop("shift", 1e-6), along=reused.along)
    return Penalty(product=product, strength=strength, quick=reused, every=every, **{"cap": None} | more)


def nudge(model: nn.Module, seed: int = 0, size: float = 0.05) -> None:
    """Other weights, as after an optimizer step."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=draw, dtype=torch.float64), alpha=size)


# Finite differences


@pytest.mark.parametrize("form", ["literal", "score"])
@pytest.mark.parametrize("on", ["bandit", "transformer"])
def test_finite_difference_is_close_and_of_first_order_in_both_forms(form: Any, on: str) -> None:
    if on == "bandit":
        bandit = Bandit()
        loss = {"literal": bandit_loss, "score": bandit_score}[form]
        g, h = hessian_times(partial(loss, bandit), bandit)
    else:
        model = Transformer("gpt2", "sdpa")
        with sdpa_kernel(SDPBackend.MATH):
            g, h = hessian_times({"literal": model.loss, "score": model.score_loss}[form], model.policy.model)

    def error(shift: float) -> float:
        penalty = literal(partial(finite_difference, shift=shift))
        if on == "bandit":
            found, _ = of_parts(
                share_parts(
                    BanditPolicy(bandit),
                    ROWS_AS_PROMPTS,
                    2,
                    algorithm=replace(ALGORITHM, penalty_form=form),
                    updates_per_step=2,
                ),
                list(bandit.parameters()),
                penalty,
            )
        else:
            found, _ = model.share_step(penalty, 2, penalty_form=form)
        return relative_error(found - g, 2 * LAM * h)

    assert error(1e-4) < 0.01
    assert error(1e-3) / error(1e-4) == pytest.approx(10, rel=0.2)


# every_k


@pytest.mark.parametrize("product", [exact, finite_difference])
@pytest.mark.parametrize("mode", ["literal", "relative"])
def test_every_k_measures_as_without_a_memory(product: Any, mode: Any) -> None:
    model = Bandit()
    plain, expected = run(model, Penalty(product=product, strength=0.2, mode=mode, cap=None))
    found, report = run(model, every_k(product=product, strength=0.2, mode=mode))
    assert relative_error(found, plain) < 1e-12
    assert report == expected and report.measured


@pytest.mark.parametrize("mode", ["literal", "relative"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_every_k_quick_step_adds_the_kept_orthogonal_part_scaled_with_the_gradient(
    mode: Any, micro_batches: int
) -> None:
    model, penalty = Bandit(), every_k(mode=mode, strength=0.3)
    g0, h = hessian_times(partial(bandit_loss, model), model)
    orthogonal = h - (g0 @ h) / (g0 @ g0) * g0
    lam = 0.3 if mode == "literal" else 0.15 * float(g0.norm() / h.norm())
    assert run(model, penalty, micro_batches)[1].lam == pytest.approx(lam, rel=1e-10)

    kept = torch.cat([t.flatten() for t in penalty.state()["quick"]["kept"] if t is not None])
    assert relative_error(kept, orthogonal) < 1e-10
    assert abs(float(torch.cosine_similarity(kept, g0, 0))) < 1e-12

    for seed in range(3):
        nudge(model, seed)
        g, _ = hessian_times(partial(bandit_loss, model), model)
        addition = 2 * lam * float(g.norm() / g0.norm()) * orthogonal
        found, report = run(model, penalty, micro_batches)
        assert relative_error(found, g + addition) < 1e-10
        assert not report.measured
        assert report.grad_norm == pytest.approx(float(g.norm()))
        assert report.ratio == pytest.approx(float(addition.norm() / g.norm()), rel=1e-9)
        assert report.cosine == pytest.approx(float(torch.cosine_similarity(g, addition, 0)), abs=1e-9)
        assert report.lam == pytest.approx(lam)


def test_every_k_on_a_transformer_is_exact_where_the_weights_did_not_move() -> None:
    """At the same weights the quick step lacks the part along g and nothing else."""
    model, penalty = Transformer("gpt2", "sdpa"), every_k()
    with sdpa_kernel(SDPBackend.MATH):
        g, h = hessian_times(model.loss, model.policy.model)
    assert relative_error(model.step(penalty, 2), g + 2 * LAM * h) < 1e-10
    orthogonal = h - (g @ h) / (g @ g) * g
    assert relative_error(model.step(penalty, 2), g + 2 * LAM * orthogonal) < 1e-10


def test_every_k_bandit_quick_step_makes_one_pass() -> None:
    model, penalty, calls = Bandit(), every_k(product=finite_difference), []
    for expected in ([4, 4] * 2, [4, 4]):
        calls.clear()
        regularized_gradient(bandit_parts(model, 2, calls), list(model.parameters()), (), penalty)
        assert calls == expected


class Switched:
    """A bandit whose loss can be switched to zero or NaN, trained with SGD."""

    def __init__(self, penalty: Penalty) -> None:
        self.model, self.penalty = Bandit(), penalty

    def updates(self, factors: Sequence[float]) -> list[Any]:
        """Reports of one update for each factor of the loss."""
        reports = []
        for factor in factors:
            parts = [partial(self.part, part, factor) for part in bandit_parts(self.model, 2)]
            params = list(self.model.parameters())
            for p in params:
                p.grad = None
            reports.append(regularized_gradient(parts, params, (), self.penalty))
            if reports[-1].finite:
                with torch.no_grad():
                    for p in params:
                        p.sub_(p.grad, alpha=0.02)
        return reports

    @staticmethod
    def part(part: Callable[[], Tensor], factor: float) -> Tensor:
        return part() * factor


def measured(reports: Sequence[Any]) -> list[int]:
    return [update for update, report in enumerate(reports, 1) if report.measured]


@pytest.mark.parametrize(("every", "expected"), [(5, [1, 6, 11]), (1, list(range(1, 13))), (12, [1]), (11, [1, 12])])
def test_a_second_pass_comes_every_k_updates(every: int, expected: list[int]) -> None:
    assert measured(Switched(every_k(every)).updates([1.0] * 12)) == expected


@pytest.mark.parametrize("bad", [0.0, math.nan])
def test_a_measured_step_without_a_usable_gradient_is_put_off(bad: float) -> None:
    factors = [1.0] * 14
    factors[0] = factors[6] = factors[7] = bad
    reports = Switched(every_k(5)).updates(factors)
    assert measured(reports) == [2, 9, 14]
    assert [report.ratio for report in (reports[0], reports[6], reports[7])] == [0.0] * 3


def test_every_k_leaves_a_zero_gradient_zero_on_a_quick_step() -> None:
    switched = Switched(every_k(5))
    switched.updates([1.0, 1.0])
    before = [p.detach().clone() for p in switched.model.parameters()]
    (report,) = switched.updates([0.0])
    assert report.grad_norm == 0.0
    assert all(torch.equal(a, b) for a, b in zip(switched.model.parameters(), before, strict=True))


def test_every_k_on_a_quick_step_that_is_not_finite_says_so() -> None:
    reports = Switched(every_k(5)).updates([1.0, 1.0, math.nan, 1.0])
    assert [report.finite for report in reports] == [True, True, False, True]


def test_every_k_does_not_give_one_weights_product_to_another_of_the_same_shape() -> None:
    """Two experts; only one has a gradient at a time."""
    experts = [torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True) for _ in range(2)]
    mixing = torch.tensor([[1.0, 0.5], [0.5, 3.0]], dtype=torch.float64)
    penalty = every_k()

    def step(row: int) -> Tensor | None:
        for expert in experts:
            expert.grad = None
        regularized_gradient([lambda: (experts[row] @ mixing @ experts[row]) ** 2 / 8], experts, (), penalty)
        return experts[row].grad

    step(0)
    plain = (mixing @ experts[1]) * (experts[1] @ mixing @ experts[1]) / 2
    found = step(1)
    assert found is not None
    torch.testing.assert_close(found, plain.detach(), rtol=1e-12, atol=0)


# reuse


A = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 3.0]], dtype=torch.float64)
B = torch.tensor([0.2, -1.0, 0.4], dtype=torch.float64)


class Quadratic:
    """J = 0.5 theta A theta + b theta, and a moment that the test sets."""

    def __init__(self) -> None:
        self.theta = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64, requires_grad=True)
        self.moment: Direction | None = None
        self.points: list[Tensor] = []

    def loss(self) -> Tensor:
        self.points.append(self.theta.detach().clone())
        return 0.5 * self.theta @ A @ self.theta + B @ self.theta

    def at(self, *values: float, scale: float = 1.0) -> Tensor:
        """Set the moment; returns v."""
        v = torch.tensor(values, dtype=torch.float64)
        self.moment = Direction(params=[self.theta], values=[v], scale=scale)
        return v * scale

    def step(self, penalty: Penalty, **more: Any) -> tuple[Tensor, Any]:
        self.theta.grad = None
        self.points.clear()
        report = regularized_gradient(
            [self.loss], [self.theta], (), penalty, moments=lambda params: self.moment, **more
        )
        assert self.theta.grad is not None
        return self.theta.grad.clone(), report

    @property
    def plain(self) -> Tensor:
        return (A @ self.theta + B).detach()


def started(strength: float = 0.2, **more: Any) -> tuple[Quadratic, Penalty, float]:
    """A quadratic after its two measured steps, and the lambda they found along v = 2 (0.3, 0.1, -0.2)."""
    model, penalty = Quadratic(), reuse(strength=strength, **more)
    model.step(penalty)
    v = model.at(0.3, 0.1, -0.2, scale=2.0)
    _, report = model.step(penalty)
    return model, penalty, float(0.5 * strength * model.plain.norm() / (A @ v).norm()) if report.measured else math.nan


def test_reuse_starts_with_its_own_gradient_then_measures_along_the_moment_then_is_quick() -> None:
    model, penalty = Quadratic(), reuse(strength=0.2)
    g = model.plain
    found, report = model.step(penalty)
    assert report.measured and len(model.points) == 2
    torch.testing.assert_close(found, g + 0.2 * g.norm() * (A @ g) / (A @ g).norm(), rtol=1e-7, atol=1e-8)

    v = model.at(0.3, 0.1, -0.2, scale=2.0)
    found, report = model.step(penalty)
    assert report.measured and len(model.points) == 3, "g, H v in its place, and g again: no copy"
    torch.testing.assert_close(found, g + 0.2 * g.norm() * (A @ v) / (A @ v).norm(), rtol=1e-7, atol=1e-8)
    lam = float(0.1 * g.norm() / (A @ v).norm())
    assert report.lam == pytest.approx(lam, rel=1e-7)
    assert report.ratio == pytest.approx(0.2, rel=1e-12)
    assert report.cosine == pytest.approx(float(torch.cosine_similarity(g, A @ v, 0)), rel=1e-7)

    v = model.at(-0.2, 0.4, 0.1, scale=0.5)
    found, report = model.step(penalty)
    assert not report.measured and len(model.points) == 1
    torch.testing.assert_close(model.points[0], (model.theta + 2 * lam * v).detach(), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found, A @ (model.theta + 2 * lam * v) + B, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found, g + 2 * lam * A @ v, rtol=1e-8, atol=1e-8)
    assert report.shift == pytest.approx(2 * lam * float(v.norm()), rel=1e-7)
    assert report.shift_realised == pytest.approx(report.shift, rel=1e-9)
    assert (report.capped, report.lam) == (False, pytest.approx(lam, rel=1e-7))
    assert report.grad_norm == pytest.approx(float(found.norm()))


def test_reuse_measures_again_along_the_moment_of_that_time() -> None:
    model, penalty, _ = started(every=4)
    flags = [True]
    for row in range(7):
        v = model.at(0.1 + row, 0.3, -0.2)
        _, report = model.step(penalty)
        flags.append(report.measured)
        if report.measured:
            assert report.lam == pytest.approx(float(0.1 * model.plain.norm() / (A @ v).norm()), rel=1e-6)
    assert flags == [True, False, False, False, True, False, False, False]


def test_reuse_with_a_literal_lambda_shifts_by_twice_lambda_times_v() -> None:
    model, penalty, _ = started(strength=0.05, mode="literal")
    v = model.at(-0.2, 0.4, 0.1)
    found, report = model.step(penalty)
    assert report.lam == pytest.approx(0.05)
    torch.testing.assert_close(found, model.plain + 2 * 0.05 * A @ v, rtol=1e-12, atol=1e-12)


def test_reuse_cuts_the_shift_to_its_limit_and_reports_it() -> None:
    model, penalty, lam = started(limit=0.01)
    v = model.at(3.0, -4.0, 0.0)
    assert 2 * lam * 5.0 > 0.01
    found, report = model.step(penalty)
    assert report.capped
    assert (report.shift, report.shift_realised) == (0.01, pytest.approx(0.01))
    torch.testing.assert_close(found, A @ (model.theta + 0.01 * v / 5.0) + B, rtol=1e-10, atol=1e-10)
    model.at(1e-4, 0.0, 0.0)
    _, report = model.step(penalty)
    assert not report.capped and report.shift < 0.01


def test_reuse_with_the_gradient_of_the_step_before() -> None:
    """The direction is the finished gradient, penalty included, at the weights of that step."""
    model, penalty = Quadratic(), reuse(strength=0.2, direction="gradient")
    previous, _ = model.step(penalty)
    found, report = model.step(penalty)
    assert report.measured
    expected = model.plain + 0.2 * model.plain.norm() * (A @ previous) / (A @ previous).norm()
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)
    for _ in range(3):
        previous = found
        with torch.no_grad():
            model.theta -= 0.1 * found
        found, quick = model.step(penalty)
        assert not quick.measured
        torch.testing.assert_close(found, model.plain + 2 * report.lam * A @ previous, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("direction", ["moment", "gradient"])
def test_reuse_gets_over_a_first_step_without_a_gradient(direction: Any) -> None:
    """A direction of length zero is no direction: group-relative methods have such batches daily."""
    model, penalty = Quadratic(), reuse(direction=direction)
    theta = model.theta.detach().clone()
    with torch.no_grad():
        model.theta.copy_(-torch.linalg.solve(A, B))
        model.theta.grad = None
    report = regularized_gradient([lambda: 0 * model.theta.sum()], [model.theta], (), penalty)
    assert report.grad_norm == 0.0
    model.at(0.0, 0.0, 0.0)
    with torch.no_grad():
        model.theta.copy_(theta)
    found, report = model.step(penalty)
    g = model.plain
    assert report.measured
    torch.testing.assert_close(found, g + 0.2 * g.norm() * (A @ g) / (A @ g).norm(), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("direction", ["moment", "gradient"])
def test_reuse_gets_over_a_batch_without_any_rows(direction: Any) -> None:
    model, penalty = Quadratic(), reuse(direction=direction)
    model.at(0.3, 0.1, -0.2)
    for _ in range(3):
        model.step(penalty)
    model.theta.grad = None
    assert regularized_gradient([], [model.theta], (), penalty, moments=lambda params: model.moment).grad_norm == 0.0
    for _ in range(3):
        found, report = model.step(penalty)
        assert report.finite and bool(found.isfinite().all())


def test_reuse_needs_a_measured_step_along_the_moment_and_a_batch_without_rows_is_none() -> None:
    model, penalty = Quadratic(), reuse()
    model.step(penalty)
    v = model.at(0.3, 0.1, -0.2)
    model.theta.grad = None
    regularized_gradient([], [model.theta], (), penalty, moments=lambda params: model.moment)
    _, report = model.step(penalty)
    assert report.measured
    assert report.lam == pytest.approx(float(0.1 * model.plain.norm() / (A @ v).norm()), rel=1e-6)


def hand_moment(history: Sequence[Tensor], beta: float) -> Tensor:
    m = torch.zeros_like(history[0])
    for gradient in history:
        m = beta * m + (1 - beta) * gradient
    return m / (1 - beta ** len(history))


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.95])
@pytest.mark.parametrize("fused", [False, True])
def test_the_moment_is_that_of_adamw_without_its_bias(beta: float, fused: bool) -> None:
    model = Bandit()
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": params[:2]}, {"params": params[2:]}], lr=0.01, betas=(beta, 0.999), fused=fused
    )
    assert first_moments(optimizer, params) is None
    history: list[Tensor] = []
    for _ in range(4):
        plain, _ = run(model, None)
        history.append(plain)
        optimizer.step()
        direction = first_moments(optimizer, params)
        assert direction is not None
        found = direction.scale * torch.cat([m.flatten() for m in direction.values])
        torch.testing.assert_close(found, hand_moment(history, beta), rtol=1e-12, atol=1e-14)
        assert direction.length == pytest.approx(float(found.norm()))
    optimizer.state.pop(params[1])
    partly = first_moments(optimizer, params)
    assert partly is not None
    assert [id(p) for p in partly.params] == [id(p) for p in params if p is not params[1]]


def shifted_gradient(loss: Callable[[dict[str, Tensor]], Tensor], model: nn.Module, move: Tensor) -> Tensor:
    """grad J(theta + move) by autograd on copies of the weights."""
    named = dict(model.named_parameters())
    moves = move.split([p.numel() for p in named.values()])
    weights = {
        name: (p.detach() + step.reshape(p.shape)).requires_grad_(True)
        for (name, p), step in zip(named.items(), moves, strict=True)
    }
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss(weights), list(weights.values()))])


@pytest.mark.parametrize("restore_by", ["subtract", "copy"])
@pytest.mark.parametrize("on", ["bandit", "transformer"])
def test_reuse_with_adamw_is_the_gradient_at_the_shifted_weights(restore_by: Any, on: str) -> None:
    penalty = reuse(strength=0.3, restore_by=restore_by, shift=1e-4)
    transformer = Transformer("gpt2", "sdpa") if on == "transformer" else None
    model = transformer.policy.model if transformer else Bandit()
    loss = transformer.loss if transformer else partial(bandit_loss, model)
    params, history, flags = list(model.parameters()), [], []
    optimizer = torch.optim.AdamW(params, lr=1e-3, betas=(0.8, 0.99))
    for _ in range(4):
        moments = partial(first_moments, optimizer)
        before = [p.detach().clone() for p in params]
        if transformer:
            found = transformer.step(penalty, 2, moments=moments)
        else:
            found, _ = run(model, penalty, 2, moments=moments)
        assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
        assert penalty.last is not None
        flags.append(penalty.age == 0)
        if penalty.age:
            with sdpa_kernel(SDPBackend.MATH):
                expected = shifted_gradient(loss, model, 2 * penalty.last.lam * hand_moment(history, 0.8))
            assert relative_error(found, expected) < 1e-9
        history.append(found)
        optimizer.step()
    assert flags == [True, True, False, False]


@pytest.mark.parametrize("restore_by", ["subtract", "copy"])
@pytest.mark.parametrize("error", [RuntimeError, torch.cuda.OutOfMemoryError, KeyboardInterrupt, Stop])
@pytest.mark.parametrize("when", [1, 2])
def test_kf50_a_quick_step_that_raises_leaves_the_weights(restore_by: Any, error: Any, when: int) -> None:
    model = Bandit().float()
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-2)
    penalty = reuse(restore_by=restore_by, shift=1e-2)
    x, y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3])
    calls: list[bool] = []
    state = {"armed": False}

    def part() -> Tensor:
        loss = model(x).gather(1, y[:, None]).mean()
        calls.append(all(torch.equal(p, b) for p, b in zip(params, before, strict=True)))
        if state["armed"] and len(calls) == when:
            raise error("out of luck")
        return loss

    for step in range(4):
        before = [p.detach().clone() for p in params]
        calls.clear()
        state["armed"] = step == 3
        for p in params:
            p.grad = None
        if step < 3:
            regularized_gradient([part, part], params, (), penalty, moments=partial(first_moments, optimizer))
            optimizer.step()
        else:
            age = penalty.age
            with pytest.raises(error):
                regularized_gradient([part, part], params, (), penalty, moments=partial(first_moments, optimizer))
            assert penalty.age == age, "a step that did not happen does not count"
    assert calls == [False] * when, "it was at shifted weights when it raised"
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))


def test_reuse_never_moves_what_it_does_not_cover() -> None:
    """A separate critic: its own gradient depends on its own weights alone, so that it is plain on every step."""
    model, critic = Bandit(), nn.Linear(3, 1).double()
    params, others = list(model.parameters()), list(critic.parameters())
    optimizer = torch.optim.AdamW([*params, *others], lr=1e-2)
    penalty = reuse(shift=1e-4)
    seen: list[Tensor] = []

    def part() -> Tensor:
        seen.append(critic.weight.detach().clone())
        return bandit_parts(model)[0]() + (critic(STATES)[:, 0] - 1).square().mean()

    for step in range(4):
        error = (critic(STATES)[:, 0] - 1).detach()
        expected = (2 * error[:, None] * STATES).mean(0)
        weight = critic.weight.detach().clone()
        for p in (*params, *others):
            p.grad = None
        report = regularized_gradient([part], params, others, penalty, moments=partial(first_moments, optimizer))
        assert report.measured is (step < 2)
        assert critic.weight.grad is not None
        torch.testing.assert_close(critic.weight.grad[0], expected, rtol=1e-12, atol=1e-12)
        assert all(torch.equal(s, weight) for s in seen)
        seen.clear()
        optimizer.step()


def test_reuse_trains_a_head_on_the_policys_features_at_the_shifted_weights() -> None:
    """What shares the trunk sees the trunk where it was moved to; said in the docstring of `Reused`."""
    model, head = Bandit(), nn.Linear(4, 1).double()
    params, others = list(model.parameters()), list(head.parameters())
    moment = [torch.randn(p.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64) for p in params]
    penalty = reuse(strength=0.05, mode="literal", shift=1e-4)

    def features(weights: Sequence[Tensor]) -> Tensor:
        return torch.tanh(STATES @ weights[1].T + weights[2])

    def head_loss(weights: Sequence[Tensor]) -> Tensor:
        return (head(features(weights))[:, 0] - 1).square().mean()

    names = [name for name, _ in model.named_parameters()]
    assert names[1:3] == ["layers.0.weight", "layers.0.bias"]
    direction = Direction(params=params, values=moment)
    for step in range(2):
        for p in (*params, *others):
            p.grad = None
        regularized_gradient(
            [lambda: bandit_parts(model)[0]() + head_loss(params)], params, others, penalty, moments=lambda _: direction
        )
        moved = [p.detach() + (0.1 * m if step == 1 else 0.0) for p, m in zip(params, moment, strict=True)]
        expected = torch.autograd.grad(head_loss(moved), others)
        torch.testing.assert_close(gradients(others), torch.cat([e.flatten() for e in expected]), rtol=1e-9, atol=1e-12)


# The penalty between steps: schedule, cap, checkpoint


@pytest.mark.parametrize("scale", [0.25, 1.0])
@pytest.mark.parametrize("mode", ["literal", "relative"])
def test_the_schedule_multiplies_the_penalty_on_both_kinds_of_step(scale: float, mode: Any) -> None:
    model, penalty = Bandit(), every_k(strength=0.2, mode=mode)
    g, h = hessian_times(partial(bandit_loss, model), model)
    lam = 0.2 if mode == "literal" else 0.1 * float(g.norm() / h.norm())
    found, report = run(model, penalty, scale=scale)
    assert relative_error(found - g, 2 * lam * scale * h) < 1e-10
    assert report.ratio == pytest.approx(2 * lam * scale * float(h.norm() / g.norm()))
    assert report.lam == pytest.approx(lam * scale)
    orthogonal = h - (g @ h) / (g @ g) * g
    for quick_scale in (1.0, 0.5):
        found, report = run(model, penalty, scale=quick_scale)
        assert relative_error(found - g, 2 * lam * quick_scale * orthogonal) < 1e-9
        assert report.lam == pytest.approx(lam * quick_scale)


def test_the_schedule_multiplies_the_shift_of_reuse() -> None:
    model, penalty, lam = started()
    v = model.at(-0.2, 0.4, 0.1)
    for scale in (1.0, 0.3):
        found, report = model.step(penalty, scale=scale)
        torch.testing.assert_close(found, model.plain + 2 * lam * scale * A @ v, rtol=1e-8, atol=1e-8)
        assert report.shift == pytest.approx(2 * lam * scale * float(v.norm()), rel=1e-7)
        assert report.ratio == pytest.approx(0.2 * scale)


def test_a_schedule_at_zero_is_the_plain_gradient_and_forgets_nothing() -> None:
    model, penalty, _ = started()
    state = penalty.state()
    found, report = model.step(penalty, scale=0.0)
    torch.testing.assert_close(found, model.plain, rtol=1e-15, atol=1e-15)
    assert (report.ratio, report.shift, len(model.points)) == (0.0, 0.0, 1)
    assert penalty.state() == state


def test_a_capped_literal_lambda_stays_capped_on_quick_steps() -> None:
    model, penalty = Bandit(), every_k(strength=1e4, cap=0.5)
    g, h = hessian_times(partial(bandit_loss, model), model)
    found, report = run(model, penalty)
    assert report.capped
    assert report.lam == pytest.approx(0.25 * float(g.norm() / h.norm()))
    assert float((found - g).norm() / g.norm()) == pytest.approx(0.5)
    _, report = run(model, penalty)
    assert report.lam == pytest.approx(0.25 * float(g.norm() / h.norm()))
    assert report.ratio <= 0.5 + 1e-12


def logit_penalty() -> Penalty:
    return Penalty(product=logit_space, strength=0.2, quick=InLoss(), every=3)


MEMORIES: dict[str, Callable[[], Penalty]] = {
    "reuse along the moment": partial(reuse, 5, shift=1e-3),
    "reuse along the gradient": partial(reuse, 5, shift=1e-3, direction="gradient"),
    "reuse from a copy": partial(reuse, 5, shift=1e-3, restore_by="copy"),
    "every_k": partial(every_k, 4, finite_difference, 0.2, mode="relative"),
    "logit_space": logit_penalty,
    "finite_difference": partial(Penalty, product=finite_difference, strength=0.2),
}


class Training:
    """The bandit in float32 under AdamW, its parts those of the training."""

    def __init__(self, penalty: Penalty) -> None:
        self.model, self.penalty = Bandit().float(), penalty
        self.params = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.params, lr=0.02)

    def steps(self, count: int) -> tuple[list[Tensor], list[Any]]:
        gradients_seen, reports = [], []
        policy = BanditPolicy(lambda states: self.model(states.float()))
        for _ in range(count):
            parts = share_parts(policy, ROWS_AS_PROMPTS, 2, updates_per_step=2)
            moments = partial(first_moments, self.optimizer)
            gradient, report = of_parts(parts, self.params, self.penalty, moments=moments)
            self.optimizer.step()
            gradients_seen.append(gradient)
            reports.append(report)
        return gradients_seen, reports


@pytest.mark.parametrize("name", list(MEMORIES))
@pytest.mark.parametrize("when", [1, 2, 4])
def test_kf26_a_penalty_restored_from_a_file_goes_on_bit_for_bit(name: str, when: int, tmp_path: Path) -> None:
    whole = Training(MEMORIES[name]())
    whole.steps(when)
    state = [whole.model.state_dict(), whole.optimizer.state_dict(), whole.penalty.state()]
    torch.save(state, tmp_path / "state.pt")
    expected, reports = whole.steps(6)
    if name != "finite_difference":
        assert {report.measured for report in reports} == {True, False}

    fresh = Training(MEMORIES[name]())
    weights, optimizer, kept = torch.load(tmp_path / "state.pt", weights_only=True)
    fresh.model.load_state_dict(weights)
    fresh.optimizer.load_state_dict(optimizer)
    fresh.penalty.restore(kept)
    found, again = fresh.steps(6)
    assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))
    assert again == reports


@pytest.mark.parametrize("name", [name for name in MEMORIES if name != "finite_difference"])
def test_the_state_is_needed_to_go_on(name: str) -> None:
    """A fresh penalty at the same weights takes another step: what the test above compares is not idle."""
    whole = Training(MEMORIES[name]())
    whole.steps(2)
    other = Training(MEMORIES[name]())
    other.model.load_state_dict(whole.model.state_dict())
    other.optimizer.load_state_dict(copy.deepcopy(whole.optimizer.state_dict()))
    assert not torch.equal(other.steps(1)[0][0], whole.steps(1)[0][0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(MEMORIES))
def test_a_state_read_on_the_cpu_goes_on_where_the_weights_are(name: str, tmp_path: Path) -> None:
    """`snapshot.restore` reads everything to the CPU."""
    states, actions = STATES.float().cuda(), ROWS_AS_PROMPTS.response_ids.cuda()

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, penalty: Penalty) -> Any:
        optimizer.zero_grad(set_to_none=True)
        if name == "logit_space":
            pytest.skip("keeps no tensor")
        parts = [lambda: (model(states).gather(1, actions) * torch.arange(8, device="cuda")[:, None]).mean()]
        moments = partial(first_moments, optimizer)
        report = regularized_gradient(parts, list(model.parameters()), (), penalty, moments=moments)
        optimizer.step()
        return report

    model, penalty = Bandit().float().cuda(), MEMORIES[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(3):
        step(model, optimizer, penalty)
    torch.save(penalty.state(), tmp_path / "state.pt")
    other = MEMORIES[name]()
    other.restore(torch.load(tmp_path / "state.pt", weights_only=True, map_location="cpu"))
    assert step(model, optimizer, other).finite

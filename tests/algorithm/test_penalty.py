"""The gradient of J + lambda * ||grad J||^2 against independent float64 oracles, and every trap of the second pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from bandits import (
    ALGORITHM,
    BANDIT_BATCH,
    LAM,
    STATES,
    Bandit,
    Stop,
    Transformer,
    bandit_loss,
    bandit_parts,
    gradients,
    literal,
    oracle,
    relative_error,
    run,
)
from torch import Tensor, nn

from grpo_core.algorithm.batch import PolicyOutputs
from grpo_core.algorithm.objective import regularized_gradient, surrogate
from grpo_core.algorithm.penalty import Penalty
from grpo_core.algorithm.products import exact, finite_difference
from grpo_core.algorithm.shift import shifted

PRODUCTS = {"exact": exact, "finite_difference": finite_difference}
BOTH = pytest.mark.parametrize("product", list(PRODUCTS.values()), ids=list(PRODUCTS))


def test_the_oracle_itself_equals_central_differences() -> None:
    model = Bandit()
    params = dict(model.named_parameters())
    flat = torch.cat([p.detach().flatten() for p in params.values()])

    def whole(vector: Tensor) -> float:
        pieces = vector.split([p.numel() for p in params.values()])
        weights = {n: v.reshape(p.shape).requires_grad_(True) for (n, p), v in zip(params.items(), pieces, strict=True)}
        j = bandit_loss(model, weights)
        return float((j + LAM * sum(g.square().sum() for g in torch.autograd.grad(j, list(weights.values())))).detach())

    step, unit = 1e-5, torch.eye(len(flat), dtype=torch.float64)
    numerical = torch.tensor([(whole(flat + step * u) - whole(flat - step * u)) / (2 * step) for u in unit])
    assert relative_error(numerical.double(), oracle(partial(bandit_loss, model), model)) < 1e-7


def test_exact_equals_the_oracle() -> None:
    model = Bandit()
    result, report = run(model, literal(exact))
    expected = oracle(partial(bandit_loss, model), model)
    torch.testing.assert_close(result, expected, atol=1e-12, rtol=1e-10)
    plain, _ = run(model, None)
    product = (expected - plain) / (2 * LAM)
    assert report.grad_norm == pytest.approx(float(plain.norm()))
    assert report.ratio == pytest.approx(2 * LAM * float(product.norm() / plain.norm()))
    assert report.cosine == pytest.approx(float(torch.cosine_similarity(plain, product, 0)))
    assert (report.lam, report.capped, report.shift) == (pytest.approx(LAM), False, 0.0)


def test_finite_difference_is_close_and_its_error_is_linear_in_the_shift() -> None:
    model = Bandit()
    plain, _ = run(model, None)
    product = oracle(partial(bandit_loss, model), model) - plain

    def error(shift: float) -> float:
        result, report = run(model, literal(partial(finite_difference, shift=shift)))
        assert report.shift == shift
        assert report.shift_realised == pytest.approx(shift, rel=1e-9)
        return relative_error(result - plain, product)

    coarse, middle, fine = error(1e-2), error(1e-3), error(1e-4)
    assert fine < 0.01
    assert coarse / middle == pytest.approx(10, rel=0.15)
    assert middle / fine == pytest.approx(10, rel=0.05)


@BOTH
def test_kf49_any_cut_into_micro_batches_gives_the_same(product: Any) -> None:
    model = Bandit()
    whole, _ = run(model, literal(product), 1)
    for count in (2, 4, 8):
        cut, _ = run(model, literal(product), count)
        torch.testing.assert_close(cut, whole, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("penalty", [None, literal(finite_difference, 0.0), literal(exact, 0.0)])
def test_lambda_0_is_the_plain_path_bit_for_bit_without_a_second_pass(penalty: Penalty | None) -> None:
    model, calls = Bandit(), []
    for part in bandit_parts(model, 3):
        part().backward()
    plain = gradients(list(model.parameters()))
    model.zero_grad(set_to_none=True)
    regularized_gradient(bandit_parts(model, 3, calls), list(model.parameters()), (), penalty)
    assert calls == [3, 3, 2]
    assert torch.equal(gradients(list(model.parameters())), plain)


@BOTH
@pytest.mark.parametrize("error", [RuntimeError, torch.cuda.OutOfMemoryError, KeyboardInterrupt, Stop])
@pytest.mark.parametrize("when", [3, 4])
def test_kf50_a_second_pass_that_raises_leaves_no_trace(product: Any, error: type[BaseException], when: int) -> None:
    twin, calls = Bandit(norm=True), []
    plain, _ = run(twin, None, 2)
    model = Bandit(norm=True)
    before = [p.detach().clone() for p in model.parameters()]

    def broken(part: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def share() -> Tensor:
            calls.append(1)
            value = part()
            if len(calls) == when:
                raise error("out of luck")
            return value

        return share

    parts = [broken(part) for part in bandit_parts(model, 2)]
    with pytest.raises(error):
        regularized_gradient(parts, list(model.parameters()), (), literal(product), list(model.buffers()))
    assert len(calls) == when
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert torch.equal(gradients(list(model.parameters())), plain), "plain g is left in .grad"
    for mine, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(mine, theirs)


@BOTH
def test_weights_are_bitwise_unchanged_after_a_step(product: Any) -> None:
    model = Bandit().float()
    before = [p.detach().clone() for p in model.parameters()]
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 3])
    regularized_gradient(
        [lambda: model(x).gather(1, y[:, None]).mean()], list(model.parameters()), (), literal(product)
    )
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_shifted_moves_by_the_scaled_direction_and_back() -> None:
    weights = [torch.tensor([0.1, 0.7, 1e8], requires_grad=True)]
    before = weights[0].detach().clone()
    with shifted(weights, [torch.tensor([3.0, 4.0, 0.0])], 0.5) as realised:
        torch.testing.assert_close(weights[0].detach(), torch.tensor([1.6, 2.7, 1e8]))
        assert realised == pytest.approx(2.5)
    assert torch.equal(weights[0], before)


@BOTH
def test_kf47_running_statistics_count_the_batch_once(product: Any) -> None:
    model, twin = Bandit(norm=True), Bandit(norm=True)
    run(twin, None, 2)
    run(model, literal(product), 2, buffers=list(model.buffers()))
    fresh = list(Bandit(norm=True).buffers())
    for mine, theirs, start in zip(model.buffers(), twin.buffers(), fresh, strict=True):
        assert torch.equal(mine, theirs)
        assert not torch.equal(mine, start), "the first pass did update them"


class MaskedBandit(Bandit):
    """The same policy with a given dropout mask, as a deterministic function."""

    mask: Tensor

    def forward(self, states: Tensor) -> Tensor:
        hidden = torch.tanh(self.layers[0](states)) * self.mask
        return (self.layers[3](hidden) * self.temperature[:5] + self.temperature[5:].sum()).log_softmax(-1)


@BOTH
def test_the_second_pass_replays_the_dropout_of_the_first(product: Any) -> None:
    model, masks = Bandit(dropout=0.5), []
    model.layers[2].register_forward_hook(lambda _, inputs, output: masks.append((output / inputs[0]).detach()))
    torch.manual_seed(5)
    if product is finite_difference:
        product = partial(finite_difference, shift=1e-6)
    result, _ = run(model, literal(product), 2)
    after = torch.rand(3)
    first, second = torch.cat(masks[:2]), torch.cat(masks[2:])
    torch.testing.assert_close(first, second, atol=1e-12, rtol=0)
    assert 0 < float((first == 0).double().mean()) < 1
    assert not torch.equal(masks[0], masks[1]), "the two micro-batches have masks of their own"

    frozen = MaskedBandit()
    frozen.mask = first
    torch.testing.assert_close(result, oracle(partial(bandit_loss, frozen), frozen), atol=1e-5, rtol=1e-5)

    torch.manual_seed(5)
    run(model, None, 2)
    assert torch.equal(torch.rand(3), after), "later draws do not notice the penalty"


@BOTH
def test_kf51_frozen_and_unused_parameters_are_left_alone(product: Any) -> None:
    model = Bandit()
    model.layers[0].bias.requires_grad_(False)
    unused_weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    frozen_before = model.layers[0].bias.detach().clone()
    covered = [*model.parameters(), unused_weight]
    regularized_gradient(bandit_parts(model, 2), covered, (), literal(product))
    assert model.layers[0].bias.grad is None
    assert torch.equal(model.layers[0].bias, frozen_before)
    assert unused_weight.grad is None

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return bandit_loss(model, {**weights, "layers.0.bias": frozen_before})

    weights = {n: p.detach().clone().requires_grad_(True) for n, p in model.named_parameters() if p.requires_grad}
    first = torch.autograd.grad(loss(weights), list(weights.values()), create_graph=True)
    whole = loss(weights) + LAM * torch.stack([g.square().sum() for g in first]).sum()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(whole, list(weights.values()))])
    result = gradients([p for p in model.parameters() if p.requires_grad])
    torch.testing.assert_close(result, expected, atol=1e-3 if product is finite_difference else 1e-10, rtol=1e-2)


def test_kf51_a_parameter_that_only_the_second_pass_uses_gets_no_gradient_from_it() -> None:
    weight = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    expert = torch.tensor([3.0], dtype=torch.float64, requires_grad=True)
    calls: list[int] = []

    def part() -> Tensor:
        calls.append(1)
        loss = weight.pow(3).sum()
        return loss + 7 * expert.sum() if len(calls) > 1 else loss

    report = regularized_gradient([part], [weight, expert], (), literal(finite_difference))
    assert len(calls) == 2
    assert report.ratio > 0
    assert expert.grad is None


@BOTH
def test_a_shared_tensor_is_shifted_and_counted_once(product: Any) -> None:
    def step(names: int) -> tuple[Tensor, Any]:
        tied = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
        report = regularized_gradient(
            [lambda: (tied[:, None] * tied[None]).tanh().sum()], [tied] * names, (), literal(product)
        )
        assert tied.grad is not None
        return tied.grad, report

    (once, first), (twice, second) = step(1), step(3)
    assert torch.equal(once, twice)
    assert first == second


@BOTH
@pytest.mark.parametrize("strength", [0.05, 0.2, 0.9])
def test_relative_mode_gives_exactly_the_ratio_asked_for(product: Any, strength: float) -> None:
    model = Bandit()
    plain, _ = run(model, None)
    result, report = run(model, Penalty(product=product, strength=strength, mode="relative"))
    assert report.ratio == pytest.approx(strength)
    assert not report.capped
    assert float((result - plain).norm() / plain.norm()) == pytest.approx(strength, rel=1e-9)
    again, _ = run(model, literal(product, report.lam))
    torch.testing.assert_close(again, result, atol=1e-12, rtol=1e-9)


@BOTH
@pytest.mark.parametrize("mode", ["literal", "relative"])
def test_the_cap_bounds_the_finished_penalty_and_keeps_its_direction(product: Any, mode: Any) -> None:
    model = Bandit()
    plain, _ = run(model, None)
    free, _ = run(model, Penalty(product=product, strength=500.0, mode=mode, cap=None))
    held, report = run(model, Penalty(product=product, strength=500.0, mode=mode, cap=0.5))
    assert report.capped
    assert report.ratio == pytest.approx(0.5)
    assert float((held - plain).norm() / plain.norm()) == pytest.approx(0.5, rel=1e-9)
    assert float(torch.cosine_similarity(held - plain, free - plain, 0)) == pytest.approx(1.0, abs=1e-9)
    below, report = run(model, Penalty(product=product, strength=1e-3, mode=mode, cap=0.5))
    assert not report.capped
    assert float((below - plain).norm() / plain.norm()) < 0.5


@BOTH
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_kf52_a_first_pass_that_is_not_finite_runs_no_second(product: Any, bad: float) -> None:
    weight, calls = torch.tensor([1.0, 2.0], requires_grad=True), []

    def part() -> Tensor:
        calls.append(1)
        return (weight * torch.tensor([bad, 1.0])).sum()

    report = regularized_gradient([part], [weight], (), literal(product))
    assert not report.finite
    assert len(calls) == 1


@BOTH
def test_kf52_a_value_head_that_is_not_finite_counts_as_well(product: Any) -> None:
    weight, head = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([1.0], requires_grad=True)
    calls: list[int] = []

    def part() -> Tensor:
        calls.append(1)
        return weight.pow(2).sum() + (head * float("nan")).sum()

    report = regularized_gradient([part], [weight], [head], literal(product))
    assert not report.finite
    assert len(calls) == 1
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_kf52_a_second_pass_that_is_not_finite_leaves_the_plain_gradient(bad: float) -> None:
    weight, calls = torch.tensor([1.0, 2.0], requires_grad=True), []

    def part() -> Tensor:
        calls.append(1)
        return (weight.pow(2) * (bad if len(calls) == 2 else 1.0)).sum()

    report = regularized_gradient([part], [weight], (), literal(finite_difference))
    assert not report.finite
    assert len(calls) == 2
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 4.0]
    assert weight.tolist() == [1.0, 2.0]


@BOTH
def test_kf45_the_value_head_keeps_the_plain_gradient(product: Any) -> None:
    model, head = Bandit(), nn.Linear(4, 1).double()

    def part() -> Tensor:
        features = torch.tanh(model.layers[0](STATES))
        return bandit_parts(model)[0]() + (head(features)[:, 0] - 1).square().mean()

    def both(penalty: Penalty | None) -> tuple[Tensor, Tensor]:
        model.zero_grad(set_to_none=True)
        head.zero_grad(set_to_none=True)
        regularized_gradient([part], list(model.parameters()), list(head.parameters()), penalty)
        return gradients(list(model.parameters())), gradients(list(head.parameters()))

    plain, plain_head = both(None)
    result, result_head = both(literal(product))
    assert torch.equal(result_head, plain_head)
    assert relative_error(result, plain) > 1e-3


@BOTH
def test_a_linear_loss_has_no_penalty(product: Any) -> None:
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    report = regularized_gradient([lambda: 3 * weight.sum()], [weight], (), literal(product))
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.full((2,), 3.0).double(), atol=1e-9, rtol=0)
    assert report.ratio < 1e-9
    assert report.finite


def test_old_logprobs_that_follow_the_shift_lose_the_penalty() -> None:
    """For a tabular softmax with centred advantages the finite difference is 0 if the ratio is 1 again at the shifted weights."""
    advantages = torch.tensor([[1.0], [-0.4], [-0.6], [0.5], [-0.5]], dtype=torch.float64)
    batch = replace(BANDIT_BATCH.select(torch.arange(5)), advantages=advantages)
    logits = torch.tensor([0.3, -1.0, 0.8, 0.0, 0.4], dtype=torch.float64, requires_grad=True)

    def ratio_of(old: Tensor | None, product: Any = finite_difference) -> float:
        logits.grad = None
        frozen = replace(batch, old_logprobs=old)

        def part() -> Tensor:
            return surrogate(PolicyOutputs(logprobs=logits.log_softmax(-1)[:, None]), frozen, ALGORITHM).total

        return float(regularized_gradient([part], [logits], (), literal(product)).ratio)

    frozen_old = logits.detach().log_softmax(-1)[:, None]
    assert ratio_of(None) < 1e-8
    assert ratio_of(frozen_old) > 0.01
    assert ratio_of(None, exact) == ratio_of(frozen_old, exact), "double backward never leaves theta"


FAMILIES = pytest.mark.parametrize(
    ("kind", "attention", "tolerance"),
    [("gpt2", "sdpa", 1e-8), ("llama", "eager", 2e-5)],
    ids=["gpt2", "llama"],
)


@FAMILIES
def test_on_a_transformer_both_estimators_equal_the_oracle(kind: str, attention: str, tolerance: float) -> None:
    model = Transformer(kind, attention)
    plain, expected = model.step(None), model.oracle(LAM)
    assert relative_error(plain, model.oracle(0.0)) < tolerance
    assert relative_error(model.step(literal(exact)) - plain, expected - plain) < tolerance

    def error(shift: float) -> float:
        found = model.step(literal(partial(finite_difference, shift=shift)))
        return relative_error(found - plain, expected - plain)

    assert error(1e-4) < 0.01
    if kind == "gpt2":
        assert error(1e-3) / error(1e-4) == pytest.approx(10, rel=0.2)


@BOTH
@FAMILIES
def test_kf49_on_a_transformer_1x8_equals_4x2(kind: str, attention: str, tolerance: float, product: Any) -> None:
    model = Transformer(kind, attention)
    if kind == "llama" and product is finite_difference:
        product = partial(finite_difference, shift=0.1)  # float32 rounding inside, divided by the shift
    whole = model.step(literal(product), 1)
    for count in (4, 8):
        assert relative_error(model.step(literal(product), count), whole) < tolerance

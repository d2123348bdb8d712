"""The gradient penalty on quadratics: the listed numbers. `strength` there is 2 lambda here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from conftest import case_params
from torch import Tensor

from grpo_core.algorithm.objective import regularized_gradient
from grpo_core.algorithm.penalty import Penalty, PenaltyReport
from grpo_core.algorithm.products import exact, finite_difference

ESTIMATORS = ["exact", "finite_difference"]


def penalty_for(row: dict[str, Any], estimator: str, grad_norm: float) -> Penalty:
    """Literal strength, no cap, and the very shift of the row: eps * ||g||."""
    product: Callable[..., Any] = exact
    if estimator == "finite_difference":
        product = partial(finite_difference, shift=row["eps"] * grad_norm)
    return Penalty(product=product, strength=row["strength"] / 2, mode="literal", cap=None)


def scalars(values: list[float], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """One parameter per coordinate, so that coordinates can be excluded."""
    return [torch.tensor(value, dtype=dtype, requires_grad=True) for value in values]


def quadratic(theta: list[Tensor], a: list[list[float]], b: list[float], calls: list[list[float]]) -> Tensor:
    stacked = torch.stack(theta)
    calls.append(stacked.detach().tolist())
    matrix, vector = torch.tensor(a, dtype=stacked.dtype), torch.tensor(b, dtype=stacked.dtype)
    return 0.5 * stacked @ matrix @ stacked + vector @ stacked


def close(actual: list[Tensor], expected: list[float], tolerance: float = 1e-9) -> None:
    gradient = torch.stack([p.grad if p.grad is not None else torch.tensor(torch.nan) for p in actual])
    wanted = torch.tensor(expected, dtype=gradient.dtype)
    torch.testing.assert_close(gradient, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("row", case_params("gradreg.jsonl", kind="quadratic"))
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kf45_quadratics_with_and_without_exclusions(row: dict[str, Any], estimator: str) -> None:
    theta, calls = scalars(row["theta"]), []
    covered = [p for place, p in enumerate(theta) if place not in row["excluded_indices"]]
    others = [theta[place] for place in row["excluded_indices"]]
    expected = row["expected"]
    covered_norm = sum(expected["g1"][i] ** 2 for i in range(len(theta)) if i not in row["excluded_indices"]) ** 0.5
    report = regularized_gradient(
        [lambda: quadratic(theta, row["A"], row["b"], calls)],
        covered,
        others,
        penalty_for(row, estimator, covered_norm),
    )
    close(theta, expected["combined"])
    for place in row["excluded_indices"]:
        assert float(theta[place].grad) == expected["g1"][place], "bit for bit the first pass"
    assert [p.item() for p in theta] == expected["theta_after"]
    assert report.grad_norm == pytest.approx(covered_norm)
    assert report.finite
    if row["strength"] == 0:
        assert len(calls) == 1, "no second pass"
        assert [float(p.grad) for p in theta] == expected["g1"]
    else:
        assert len(calls) == 2
        assert report.lam == pytest.approx(row["strength"] / 2)
    if row["strength"] and estimator == "finite_difference":
        assert calls[1] == pytest.approx(expected["theta_perturbed"], abs=1e-12)
        assert report.shift_realised == pytest.approx(row["eps"] * covered_norm)


@pytest.mark.parametrize("row", case_params("gradreg.jsonl", kind="zero_gradient"))
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("mode", ["literal", "relative"])
def test_kf48_a_zero_gradient_gives_zero(row: dict[str, Any], estimator: str, dtype: torch.dtype, mode: Any) -> None:
    theta = scalars(row["theta"], dtype)
    penalty = Penalty(product=exact if estimator == "exact" else finite_difference, strength=0.1, mode=mode)
    report = regularized_gradient([lambda: quadratic(theta, row["A"], row["b"], [])], theta, (), penalty)
    close(theta, row["expected"]["combined"], 0.0)
    assert report == PenaltyReport(grad_norm=0.0)
    assert [p.item() for p in theta] == row["theta"]


@pytest.mark.parametrize("row", case_params("gradreg.jsonl", kind="micro_batches"))
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kf49_every_micro_batch_is_replayed(row: dict[str, Any], estimator: str) -> None:
    theta, share = scalars(row["theta"]), 1 / len(row["A_list"])

    def part(a: list[list[float]], b: list[float]) -> Callable[[], Tensor]:
        return lambda: share * quadratic(theta, a, b, [])

    parts = [part(a, b) for a, b in zip(row["A_list"], row["b_list"], strict=True)]
    norm = sum(g * g for g in row["expected"]["g1"]) ** 0.5
    regularized_gradient(parts, theta, (), penalty_for(row, estimator, norm))
    close(theta, row["expected"]["combined"])


@pytest.mark.parametrize("row", case_params("gradreg.jsonl", kind="bf16_perturbation"))
def test_kf46_the_realised_shift_shows_what_bf16_loses(row: dict[str, Any]) -> None:
    """The library refuses to train bf16 weights with this estimator; should one get here, the report tells."""
    norm = abs(row["expected"]["g1"][0])
    coarse = scalars(row["theta"], torch.bfloat16)
    report = regularized_gradient(
        [lambda: quadratic(coarse, row["A"], row["b"], [])],
        coarse,
        (),
        penalty_for(row, "finite_difference", norm),
    )
    moved = row["perturbed_weight_rounded_to_bf16"] - row["theta"][0]
    assert report.shift == pytest.approx(row["eps"] * norm)
    assert report.shift_realised == pytest.approx(abs(moved), abs=1e-12)
    assert (report.shift_realised > 0) is row["perturbation_survives_bf16"]
    if not row["perturbation_survives_bf16"]:
        assert (report.ratio, float(coarse[0].grad)) == (0.0, row["expected"]["g1"][0])

    fine = scalars(row["theta"], torch.float32)
    regularized_gradient(
        [lambda: quadratic(fine, row["A"], row["b"], [])],
        fine,
        (),
        penalty_for(row, "finite_difference", norm),
    )
    close(fine, row["expected"]["combined"], 1e-4)

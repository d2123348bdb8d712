"""Every mean of the library, and that cutting a batch changes none of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from conftest import case_params

from grpo_core.algorithm import reductions
from grpo_core.algorithm.reductions import masked_mean, weighted_sum, whiten

NAMES = {
    "token_mean": lambda length: reductions.token_mean,
    "mean_of_sequence_means": lambda length: reductions.sequence_mean,
    "mean_of_sequence_sums": lambda length: reductions.sequence_sum,
    "sum_over_fixed_length": lambda length: partial(reductions.fixed_length, length=length),
}


@pytest.mark.parametrize("row", case_params("loss_aggregation.jsonl"))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_kf05_one_batch_equals_its_micro_batches(row: dict[str, Any], name: str, dtype: torch.dtype) -> None:
    mask = torch.tensor(row["mask"]).bool()
    weights = NAMES[name](row["max_len"])(mask)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5

    whole = torch.tensor(row["per_token_loss"], dtype=dtype, requires_grad=True)
    weighted_sum(whole, weights).backward()
    cut = torch.tensor(row["per_token_loss"], dtype=dtype, requires_grad=True)
    total = 0.0
    for rows in row["micro_batches"]:
        share = weighted_sum(cut[rows], weights[rows])
        share.backward()
        total += float(share)
    assert float(weighted_sum(whole, weights)) == pytest.approx(row["expected"][name], rel=tolerance)
    assert total == pytest.approx(row["expected"][name], rel=tolerance)
    assert whole.grad is not None
    assert cut.grad is not None
    torch.testing.assert_close(cut.grad, whole.grad, atol=0, rtol=0)
    torch.testing.assert_close(whole.grad, weights.to(dtype), atol=0, rtol=0)
    assert bool((whole.grad[~mask] == 0).all())


def test_weighted_sum_ignores_what_carries_no_weight() -> None:
    values = torch.tensor([[1.0, float("nan"), float("inf")]], requires_grad=True)
    result = weighted_sum(values, torch.tensor([[2.0, 0.0, 0.0]]))
    result.backward()
    assert float(result) == 2.0
    assert values.grad is not None
    assert values.grad.tolist() == [[2.0, 0.0, 0.0]]


def test_kf06_masked_mean_does_not_see_the_width() -> None:
    narrow, mask = torch.tensor([[1.0, 2.0, 7.0]]), torch.tensor([[True, True, False]])
    wide = torch.cat([narrow, torch.full((1, 24), float("nan"))], 1)
    wide_mask = torch.cat([mask, torch.zeros(1, 24, dtype=torch.bool)], 1)
    assert float(masked_mean(narrow, mask)) == float(masked_mean(wide, wide_mask)) == 1.5
    assert float(masked_mean(narrow, torch.zeros_like(mask))) == 0.0


@pytest.mark.parametrize("row", case_params("advantages.jsonl", kind="whiten"))
def test_kf04_whitening_looks_under_the_mask_only(row: dict[str, Any]) -> None:
    values = torch.tensor(row["values"], dtype=torch.float64)
    mask = torch.tensor(row["mask"]).bool()
    expected = torch.tensor(row["expected"]["whitened_ddof0"], dtype=torch.float64)
    torch.testing.assert_close(whiten(values, mask), expected, atol=1e-9, rtol=0)
    assert float(masked_mean(values, mask)) == pytest.approx(row["expected"]["masked_mean"])
    wide = torch.cat([values, torch.full((len(values), 5), 1e4, dtype=torch.float64)], 1)
    wide_mask = torch.cat([mask, torch.zeros(len(mask), 5, dtype=torch.bool)], 1)
    torch.testing.assert_close(whiten(wide, wide_mask)[:, : values.shape[1]], expected, atol=1e-9, rtol=0)
    assert bool((whiten(wide, wide_mask)[:, values.shape[1] :] == 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kf03_whitening_equal_values_gives_exactly_zero(dtype: torch.dtype) -> None:
    for size in (1, 3, 7, 10):
        values = torch.full((1, size), 0.1, dtype=dtype)
        assert bool((whiten(values, torch.ones(1, size, dtype=torch.bool)) == 0).all())
    assert bool((whiten(torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool)) == 0).all())

"""Value losses worked by hand."""

from __future__ import annotations

import pytest
import torch

from grpo_core.algorithm.value_losses import clipped_squared, explained_variance, squared


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_squared_is_half_the_square() -> None:
    torch.testing.assert_close(squared(row(1.0, -2.0), row(4.0, -2.0)), row(4.5, 0.0))


def test_clipped_squared_takes_the_larger_of_the_two_errors() -> None:
    # old 0, clip 0.2:  V 1 -> 0.2, R 1: errors 0 and 0.32      | V 0.1 -> 0.1, R 1: 0.405 both
    #                   V 1 -> 0.2, R 0: errors 0.5 and 0.02     | V -1 -> -0.2, R 1: 2 and 0.72
    values = row(1.0, 0.1, 1.0, -1.0).requires_grad_(True)
    loss = clipped_squared(values, row(0, 0, 0, 0), row(1.0, 1.0, 0.0, 1.0), clip=0.2)
    torch.testing.assert_close(loss, row(0.32, 0.405, 0.5, 2.0))
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    torch.testing.assert_close(gradient, row(0.0, -0.9, 1.0, -2.0))


def test_no_clip_is_the_plain_error() -> None:
    values, old, returns = row(3.0, -1.0), row(0.0, 0.0), row(1.0, 1.0)
    torch.testing.assert_close(clipped_squared(values, old, returns, clip=None), squared(values, returns))


def test_explained_variance_by_hand_and_blind_to_padding() -> None:
    # returns 1, 3: variance 1; residuals 0.5, 1.5: variance 0.25
    mask = torch.tensor([[True, True, False]])
    assert explained_variance(row(0.5, 1.5, 1e6), row(1.0, 3.0, -1e6), mask) == pytest.approx(0.75)
    assert explained_variance(row(1.0, 3.0, 0.0), row(1.0, 3.0, 0.0), mask) == 1.0
    assert explained_variance(row(2.0, 2.0, 0.0), row(1.0, 3.0, 0.0), mask) == pytest.approx(0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3, 6, 7, 10, 31])
def test_kf03_returns_that_do_not_vary_explain_nothing(dtype: torch.dtype, size: int) -> None:
    returns = torch.full((1, size), 0.1, dtype=dtype)
    values = torch.rand(1, size, generator=torch.Generator().manual_seed(0), dtype=dtype)
    assert explained_variance(values, returns, torch.ones(1, size, dtype=torch.bool)) == 0.0
    assert explained_variance(values, returns, torch.zeros(1, size, dtype=torch.bool)) == 0.0

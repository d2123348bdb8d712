"""Log-probability, entropy and collision in one sweep over the logits: values, gradients, and those once more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_core.models.logprobs import token_logprobs

DRAW = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(5, 7, generator=DRAW, dtype=torch.float64)
TARGETS = torch.tensor([0, 6, 3, 3, 1])


def by_hand(logits: Tensor, temperature: float) -> dict[str, Tensor]:
    p = (logits / temperature).softmax(-1)
    rows = torch.arange(len(logits))
    return {"logprob": p[rows, TARGETS].log(), "entropy": -(p * p.log()).sum(-1), "collision": p.square().sum(-1)}


def expected_of(logits: Tensor, temperature: float, names: Any) -> list[Tensor]:
    figures = by_hand(logits, temperature)
    return [figures[name] for name in names]


@pytest.mark.parametrize("wanted", [(), ("entropy",), ("collision",), ("collision", "entropy")])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_gradients_and_second_gradients_are_those_of_the_plain_formulas(wanted: Any, temperature: float) -> None:
    names = ("logprob", *wanted)
    factors = torch.randn(len(names), 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    inner = torch.randn(5, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def derivatives(found: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
        total = sum((factor * figure).sum() for factor, figure in zip(factors, found, strict=True))
        (first,) = torch.autograd.grad(total, logits, create_graph=True)
        (second,) = torch.autograd.grad((first * inner).sum(), logits)
        return first.detach(), second

    ours, plain = (LOGITS.clone().requires_grad_(True) for _ in range(2))
    found = token_logprobs(ours, TARGETS, lambda h: h, vocab=7, temperature=temperature, wanted=wanted)
    expected = expected_of(plain, temperature, names)
    torch.testing.assert_close(found, tuple(expected), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(derivatives(found, ours), derivatives(expected, plain), rtol=1e-10, atol=1e-12)

    once = LOGITS.clone().requires_grad_(True)
    figures = token_logprobs(once, TARGETS, lambda h: h, vocab=7, temperature=temperature, wanted=wanted)
    sum((factor * figure).sum() for factor, figure in zip(factors, figures, strict=True)).backward()
    first, _ = derivatives(expected_of(plain, temperature, names), plain)
    torch.testing.assert_close(once.grad, first, rtol=1e-10, atol=1e-12)

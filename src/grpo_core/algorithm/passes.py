"""The passes over one optimizer batch that a gradient is made of: micro-batches, their random states, norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

RandomStates = Sequence[Sequence[Tensor]]


@runtime_checkable
class Part(Protocol):
    """One micro-batch's share of J, as functions of the current weights. Log-probs and weights are frozen inside."""

    def freeze(self) -> None:
        """Fix at the current weights what `again` needs, where no `loss` call has done so."""
        ...

    def loss(self, logit_lam: float = 0.0) -> Tensor:
        """J, plus `logit_lam` times the penalty in the space of the logits."""
        ...

    def again(self) -> Tensor:
        """The function whose Hessian the penalty uses: at the weights of `freeze` its gradient is that of J."""
        ...

    def logit_penalty(self) -> Tensor:
        """The penalty in the space of the logits, alone."""
        ...


@dataclass(frozen=True)
class Closure:
    """A part that is one function of the current weights, whichever pass asks."""

    share: Callable[[], Tensor]

    def freeze(self) -> None:
        """The function has to see to it itself."""

    def loss(self, logit_lam: float = 0.0) -> Tensor:
        """J."""
        if logit_lam:
            return self.logit_penalty()
        return self.share()

    def again(self) -> Tensor:
        """J."""
        return self.share()

    def logit_penalty(self) -> Tensor:
        """A bare function of the weights does not say what its logits are."""
        raise TypeError("the estimator `logit_space` needs parts that know their logits, not plain functions")


@dataclass(frozen=True, kw_only=True)
class Direction:
    """A direction in weight space: `params` move along `scale` times `values`."""

    params: Sequence[Tensor]
    values: Sequence[Tensor]
    scale: float = 1.0

    @cached_property
    def length(self) -> float:
        """||v||."""
        return abs(self.scale) * norm(self.values)


Moments = Callable[[Sequence[Tensor]], Direction | None]
"""The optimizer's running mean of the gradients for the given parameters, or None before its first step."""


@dataclass(frozen=True, kw_only=True)
class Passes:
    """One optimizer batch: its parts, and the tensors whose gradients they fill."""

    parts: Sequence[Part]
    covered: Sequence[Tensor]
    """What the penalty covers."""
    others: Sequence[Tensor] = ()
    """Trained too, but not covered: the value head, a critic."""
    buffers: Sequence[Tensor] = ()
    moments: Moments | None = None


def _random_state() -> list[Tensor]:
    states = [torch.get_rng_state()]
    return states + (torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])


def set_random_state(states: Sequence[Tensor]) -> None:
    """Put the generators back to what `accumulate` returned for one part."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(list(states[1:]))


def accumulate(shares: Sequence[Callable[[], Tensor]], replay: RandomStates | None = None) -> list[Sequence[Tensor]]:
    """Add the gradient of sum(shares) to `.grad`; returns the random state each share started from.

    With `replay` each share starts from the given state again, so that dropout draws the same masks.
    """
    states: list[Sequence[Tensor]] = []
    for row, share in enumerate(shares):
        if replay is not None:
            set_random_state(replay[row])
        states.append(_random_state())
        share().backward()  # type: ignore[no-untyped-call]
    return states


def norm(tensors: Sequence[Tensor]) -> float:
    """Euclidean norm over all tensors together."""
    return float(torch.nn.utils.get_total_norm([t.detach() for t in tensors])) if tensors else 0.0


def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Inner product of two lists of tensors; summed in float64 over the tensors."""
    products = [torch.dot(x.detach().flatten(), y.detach().flatten()).double().cpu() for x, y in zip(a, b, strict=True)]
    return float(torch.stack(products).sum())


def distinct(params: Sequence[Tensor]) -> list[Tensor]:
    """Trainable tensors, each once: a tied tensor is shifted and counted once, by identity."""
    return [p for p in {id(p): p for p in params}.values() if p.requires_grad]


def with_gradient(params: Sequence[Tensor]) -> list[Tensor]:
    """Those of `distinct(params)` that have a gradient."""
    return [p for p in distinct(params) if p.grad is not None]


def gradients(params: Sequence[Tensor]) -> list[Tensor]:
    """The gradients there are, each once."""
    return [p.grad for p in distinct(params) if p.grad is not None]


@contextmanager
def kept(buffers: Sequence[Tensor]) -> Iterator[None]:
    """Buffers (running statistics) as they were, whatever a second pass does to them."""
    saved = [b.detach().clone() for b in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for b, s in zip(buffers, saved, strict=True):
                b.copy_(s)


@contextmanager
def set_aside(params: Sequence[Tensor]) -> Iterator[None]:
    """`.grad` of `params` moved out of the way of a second pass, and put back whatever happens."""
    saved = [p.grad for p in params]
    for p in params:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in zip(params, saved, strict=True):
            p.grad = grad

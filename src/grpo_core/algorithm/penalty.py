"""The gradient penalty lambda * ||grad J||^2: its gradient is 2 lambda H g, with H g by one of the estimators here.

Both estimators use the batch's own gradient as the direction, so the penalty also sees its sampling noise:
E||g_B||^2 = ||g||^2 + tr(Sigma) / B. The published rule g + (s/eps)(g' - g) (Ackermann et al., arXiv 2602.18037)
minimises J + (s/2)||grad J||^2: its strength s is 2 lambda here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

Part = Callable[[], Tensor]
"""One micro-batch's share of J, as a function of the current weights."""
RandomStates = Sequence[Sequence[Tensor]]


@dataclass(frozen=True, kw_only=True)
class PenaltyReport:
    """What the penalty did. All norms are over the covered parameters."""

    grad_norm: float
    """||g|| before the penalty."""
    ratio: float = 0.0
    """||2 lambda H g|| / ||g|| as applied."""
    cosine: float = 0.0
    """cos(g, H g): negative means the penalty works against the descent direction."""
    lam: float = 0.0
    """The literal lambda in force."""
    capped: bool = False
    shift: float = 0.0
    """Length of the step that was asked for; 0 without a shift."""
    shift_realised: float = 0.0
    """Length of the step the weights really made after rounding."""
    finite: bool = True
    seconds: float = field(default=0.0, compare=False)
    """What the penalty took beyond the plain gradient."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """H v for the direction v, and the shift that was used to get it."""

    values: list[Tensor]
    shift: float = 0.0
    shift_realised: float = 0.0


HessianProduct = Callable[[Sequence[Part], RandomStates, Sequence[Tensor], Sequence[Tensor]], Product]


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """Estimator and strength. `relative`: ||2 lambda H g|| = strength * ||g||; `literal`: strength is lambda."""

    product: HessianProduct
    strength: float
    mode: Literal["relative", "literal"] = "relative"
    cap: float | None = 1.0
    """Bound of the finished penalty relative to ||g||; never a clip of the two gradients it is made of."""


def _random_state() -> list[Tensor]:
    states = [torch.get_rng_state()]
    return states + (torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])


def _set_random_state(states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(list(states[1:]))


def accumulate(parts: Sequence[Part], replay: RandomStates | None = None) -> list[Sequence[Tensor]]:
    """Add the gradient of sum(parts) to `.grad`; returns the random state each part started from.

    With `replay` each part starts from the given state again, so that dropout draws the same masks.
    """
    states: list[Sequence[Tensor]] = []
    for row, part in enumerate(parts):
        if replay is not None:
            _set_random_state(replay[row])
        states.append(_random_state())
        part().backward()  # type: ignore[no-untyped-call]
    return states


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.nn.utils.get_total_norm([t.detach() for t in tensors])) if tensors else 0.0


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Inner product of two lists of tensors; summed in float64 over the tensors."""
    products = [torch.dot(x.detach().flatten(), y.detach().flatten()).double().cpu() for x, y in zip(a, b, strict=True)]
    return float(torch.stack(products).sum())


def _distinct(params: Sequence[Tensor]) -> list[Tensor]:
    """Trainable tensors, each once: a tied tensor is shifted and counted once, by identity."""
    return [p for p in {id(p): p for p in params}.values() if p.requires_grad]


@contextmanager
def shifted(params: Sequence[Tensor], direction: Sequence[Tensor], scale: float) -> Iterator[float]:
    """Weights moved by scale * direction inside the block; yields the realised length of the move.

    Restored bit for bit from a copy, also when the block raises or is interrupted.
    """
    saved = [p.detach().clone() for p in params]
    try:
        with torch.no_grad():
            for p, v in zip(params, direction, strict=True):
                p.add_(v, alpha=scale)
        yield math.hypot(*(_norm([p.detach() - s]) for p, s in zip(params, saved, strict=True)))
    finally:
        with torch.no_grad():
            for p, s in zip(params, saved, strict=True):
                p.copy_(s)


@contextmanager
def _kept(buffers: Sequence[Tensor]) -> Iterator[None]:
    """Buffers (running statistics) as they were, whatever the second pass does to them."""
    saved = [b.detach().clone() for b in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for b, s in zip(buffers, saved, strict=True):
                b.copy_(s)


def finite_difference(
    parts: Sequence[Part],
    rng: RandomStates,
    params: Sequence[Tensor],
    v: Sequence[Tensor],
    *,
    shift: float = 0.002,
) -> Product:
    """(grad J(theta + eps v) - grad J(theta)) / eps with ||eps v|| = `shift`, replaying every micro-batch.

    `.grad` must hold grad J(theta) = v on entry. One more forward and backward pass; error of order `shift`. Works
    with every attention kernel and with checkpointing. Fails where the weights are too coarse for the shift
    (bfloat16): the realised shift says so.
    """
    eps = shift / _norm(v)
    for p in params:
        p.grad = None
    with shifted(params, v, eps) as realised:
        accumulate(parts, rng)
    values = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
    for shifted_gradient, g in zip(values, v, strict=True):
        shifted_gradient.sub_(g).div_(eps)
    return Product(values=values, shift=shift, shift_realised=realised)


def exact(parts: Sequence[Part], rng: RandomStates, params: Sequence[Tensor], v: Sequence[Tensor]) -> Product:
    """H v by double backward: grad of <grad J, v>. The oracle; the graph of the backward pass costs memory.

    Needs twice differentiable kernels: eager attention, no reentrant checkpointing.
    """
    values = [torch.zeros_like(p) for p in params]
    for state, part in zip(rng, parts, strict=True):
        _set_random_state(state)
        first = torch.autograd.grad(part(), params, create_graph=True, allow_unused=True)
        used = [(g, d) for g, d in zip(first, v, strict=True) if g is not None and g.requires_grad]
        if not used:
            continue
        inner = torch.stack([(g * d).sum() for g, d in used]).sum()
        second = torch.autograd.grad(inner, params, allow_unused=True)
        for total, h in zip(values, second, strict=True):
            if h is not None:
                total += h.detach()
    return Product(values=values)


def add_penalty(
    parts: Sequence[Part],
    rng: RandomStates,
    covered: Sequence[Tensor],
    others: Sequence[Tensor],
    penalty: Penalty | None,
    buffers: Sequence[Tensor] = (),
) -> PenaltyReport:
    """Turn g in `.grad` of `covered` into g + 2 lambda H g. `others` keep plain g.

    A covered parameter that got no gradient gets none from the second pass either. A zero gradient stays zero. A
    non-finite value anywhere leaves `.grad` as it is and reports `finite=False`: the caller skips the whole step.
    """
    distinct = _distinct(covered)
    params = [p for p in distinct if p.grad is not None]
    grads = [p.grad for p in params if p.grad is not None]
    norm = _norm(grads)
    rest = _norm([p.grad for p in _distinct(others) if p.grad is not None])
    finite = math.isfinite(norm) and math.isfinite(rest)
    if penalty is None or penalty.strength == 0 or norm == 0 or not finite:
        return PenaltyReport(grad_norm=norm, finite=finite)

    began = time.perf_counter()
    unused = [p for p in distinct if p.grad is None]
    untouched = [(p, None if p.grad is None else p.grad.clone()) for p in [*unused, *_distinct(others)]]
    try:
        with _kept(buffers):
            product = penalty.product(parts, rng, params, grads)
    finally:
        for p, grad in [*zip(params, grads, strict=True), *untouched]:
            p.grad = grad
    return replace(_apply(params, grads, product, penalty, norm), seconds=time.perf_counter() - began)


def _apply(
    params: Sequence[Tensor], g: Sequence[Tensor], product: Product, penalty: Penalty, norm: float
) -> PenaltyReport:
    """Scale H g to the wanted strength, cap it, and add it to `.grad`."""
    size = _norm(product.values)
    if not math.isfinite(size):
        return PenaltyReport(grad_norm=norm, finite=False, shift=product.shift, shift_realised=product.shift_realised)
    if size == 0:
        return PenaltyReport(grad_norm=norm, shift=product.shift, shift_realised=product.shift_realised)
    factor = 2 * penalty.strength if penalty.mode == "literal" else penalty.strength * norm / size
    capped = penalty.cap is not None and factor * size > penalty.cap * norm
    if capped and penalty.cap is not None:
        factor = penalty.cap * norm / size
    cosine = _dot(g, product.values) / (norm * size)
    for p, h in zip(params, product.values, strict=True):
        assert p.grad is not None
        p.grad.add_(h, alpha=factor)
    return PenaltyReport(
        grad_norm=norm,
        ratio=factor * size / norm,
        cosine=cosine,
        lam=factor / 2,
        capped=capped,
        shift=product.shift,
        shift_realised=product.shift_realised,
    )

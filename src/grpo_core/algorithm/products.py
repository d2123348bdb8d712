"""Estimators of H v, the Hessian of the penalty's function times a direction, each by one more set of passes.

Each leaves H v in `.grad` of `params`. It is given g, and finds `.grad` empty; or it is given None and finds g in
`.grad`, which it may give up. `exact` and `finite_difference` along g use the batch's own gradient as the direction, so
the penalty also sees its sampling noise: E||g_B||^2 = ||g||^2 + tr(Sigma) / B. Along the optimizer's moment, which
older rollouts made, the product <v, H v> is free of that noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core.algorithm.passes import Direction, Passes, RandomStates, accumulate, set_random_state
from grpo_core.algorithm.shift import Restore, shifted


@dataclass(frozen=True, kw_only=True)
class Shift:
    """The step in weight space that a product was taken over: its length as asked for, and after rounding."""

    asked: float = 0.0
    realised: float = 0.0


HessianProduct = Callable[[Passes, RandomStates, Sequence[Tensor], Sequence[Tensor] | None], Shift]
"""(passes, random states of the first pass, params, g or None) -> what it moved; H v is in `.grad`."""


def finite_difference(
    passes: Passes,
    rng: RandomStates,
    params: Sequence[Tensor],
    g: Sequence[Tensor] | None,
    *,
    shift: float = 0.002,
    restore: Restore = "subtract",
    along: Callable[[Passes], Direction | None] | None = None,
) -> Shift:
    """(grad J(theta + eps v) - grad J(theta)) / eps with ||eps v|| = `shift`, replaying every micro-batch.

    v is g, or what `along` gives. One more forward and backward pass; error of order `shift`. Works with every
    attention kernel and with checkpointing. Fails where the arithmetic is too coarse for the shift (bfloat16).
    """
    direction = along(passes) if along else None
    if direction is None:
        assert g is not None, "the direction g cannot be given up while it is in use"
        direction = Direction(params=params, values=g)
    for p in params:
        if p.grad is not None:
            p.grad.neg_()
    eps = shift / direction.length
    with shifted(direction.params, direction.values, eps * direction.scale, restore=restore) as realised:
        accumulate([part.again for part in passes.parts], rng)
    for row, p in enumerate(params):
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        if g is not None:
            p.grad.sub_(g[row])
        p.grad.div_(eps)
    return Shift(asked=shift, realised=realised)


def exact(passes: Passes, rng: RandomStates, params: Sequence[Tensor], g: Sequence[Tensor] | None) -> Shift:
    """H g by double backward: grad of <grad J, g>. The oracle; the graph of the backward pass costs memory.

    Needs twice differentiable kernels: eager attention, no reentrant checkpointing.
    """
    assert g is not None, "g is the direction"
    values = [torch.zeros_like(p) for p in params]
    for state, part in zip(rng, passes.parts, strict=True):
        set_random_state(state)
        first = torch.autograd.grad(part.again(), params, create_graph=True, allow_unused=True)
        used = [(f, d) for f, d in zip(first, g, strict=True) if f is not None and f.requires_grad]
        if not used:
            continue
        inner = torch.stack([(f * d).sum() for f, d in used]).sum()
        second = torch.autograd.grad(inner, params, allow_unused=True)
        for total, h in zip(values, second, strict=True):
            if h is not None:
                total += h.detach()
    for p, value in zip(params, values, strict=True):
        p.grad = value
    return Shift()


def logit_space(passes: Passes, rng: RandomStates, params: Sequence[Tensor], g: Sequence[Tensor] | None) -> Shift:
    """Half the gradient of the penalty in the space of the logits: what stands for H g, so that 2 lambda fits both."""
    for p in params:
        p.grad = None
    accumulate([part.logit_penalty for part in passes.parts], rng)
    for p in params:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad.mul_(0.5)
    return Shift()

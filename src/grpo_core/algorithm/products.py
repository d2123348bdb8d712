"""Estimators of H v, the Hessian of the penalty's function times a direction, each by one more set of passes.

`.grad` of `params` is free while they run; `g` is the gradient at theta. `exact` and `finite_difference` along g use
the batch's own gradient as the direction, so the penalty also sees its sampling noise: E||g_B||^2 = ||g||^2 +
tr(Sigma) / B. Along the optimizer's moment, which older rollouts made, the product <v, H v> is free of that noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core.algorithm.passes import Direction, Passes, RandomStates, accumulate, set_random_state
from grpo_core.algorithm.shift import Restore, shifted


@dataclass(frozen=True, kw_only=True)
class Product:
    """H v in `values` (fresh tensors, the caller may overwrite them), and the shift that was used to get it."""

    values: list[Tensor]
    shift: float = 0.0
    shift_realised: float = 0.0


HessianProduct = Callable[[Passes, RandomStates, Sequence[Tensor], Sequence[Tensor]], Product]
"""(passes, random states of the first pass, params, g) -> H v."""


def taken(params: Sequence[Tensor]) -> list[Tensor]:
    """The gradients a pass left, zero where it left none; `.grad` is free again."""
    values = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
    for p in params:
        p.grad = None
    return values


def finite_difference(
    passes: Passes,
    rng: RandomStates,
    params: Sequence[Tensor],
    g: Sequence[Tensor],
    *,
    shift: float = 0.002,
    restore: Restore = "subtract",
    along: Callable[[Passes], Direction | None] | None = None,
) -> Product:
    """(grad J(theta + eps v) - grad J(theta)) / eps with ||eps v|| = `shift`, replaying every micro-batch.

    v is g, or what `along` gives. One more forward and backward pass; error of order `shift`. Works with every
    attention kernel and with checkpointing. Fails where the arithmetic is too coarse for the shift (bfloat16).
    """
    direction = (along(passes) if along else None) or Direction(params=params, values=g)
    eps = shift / direction.length
    with shifted(direction.params, direction.values, eps * direction.scale, restore=restore) as realised:
        accumulate([part.again for part in passes.parts], rng)
    values = taken(params)
    for second, first in zip(values, g, strict=True):
        second.sub_(first).div_(eps)
    return Product(values=values, shift=shift, shift_realised=realised)


def exact(passes: Passes, rng: RandomStates, params: Sequence[Tensor], g: Sequence[Tensor]) -> Product:
    """H g by double backward: grad of <grad J, g>. The oracle; the graph of the backward pass costs memory.

    Needs twice differentiable kernels: eager attention, no reentrant checkpointing.
    """
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
    return Product(values=values)


def logit_space(passes: Passes, rng: RandomStates, params: Sequence[Tensor], g: Sequence[Tensor]) -> Product:
    """Half the gradient of the penalty in the space of the logits: what stands for H g, so that 2 lambda fits both."""
    accumulate([part.logit_penalty for part in passes.parts], rng)
    values = taken(params)
    for value in values:
        value.mul_(0.5)
    return Product(values=values)

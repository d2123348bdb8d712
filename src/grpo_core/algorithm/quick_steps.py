"""How an estimator goes on between two measured steps, when no second pass is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from grpo_core.algorithm.passes import Direction, Passes, accumulate, distinct, dot, gradients, norm
from grpo_core.algorithm.shift import Restore, shifted


@dataclass(frozen=True, kw_only=True)
class Quick:
    """What a quick step did. Ratio and cosine are None where only a second pass could tell."""

    grad_norm: float
    ratio: float | None = None
    cosine: float | None = None
    shift: float = 0.0
    shift_realised: float = 0.0
    limited: bool = False
    """The shift was cut to its limit, and the penalty with it."""


@runtime_checkable
class QuickStep(Protocol):
    """Between measured steps: leave grad L in `.grad` with the literal `lam` that the last one found."""

    def combine(
        self, passes: Passes, params: Sequence[Tensor], g: Sequence[Tensor], h: Sequence[Tensor], factor: float
    ) -> None:
        """On a measured step: leave g + factor h in `.grad` (g or h may be overwritten), and keep what is needed."""
        ...

    def step(self, passes: Passes, lam: float) -> Quick | None:
        """One step without a second pass; None, with nothing done, where a measured one must come first."""
        ...

    def begin(self, passes: Passes) -> bool:
        """A measured step begins; whether it may give up g and make it again, one more set of passes for no copy."""
        ...

    def finished(self, passes: Passes, *, measured: bool) -> None:
        """After every step whose gradient is finite."""
        ...

    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


@torch.no_grad()
def combine(passes: Passes, params: Sequence[Tensor], g: Sequence[Tensor], h: Sequence[Tensor], factor: float) -> None:
    """g + factor h into `.grad`, in the memory of h."""
    for p, first, product in zip(params, g, h, strict=True):
        p.grad = product.mul_(factor).add_(first)


def _beside(params: Sequence[Tensor], values: Sequence[Tensor | None]) -> list[Tensor | None]:
    """`values` on the device of their weights: a checkpoint is read on the CPU."""
    return [None if v is None else v.to(p.device) for p, v in zip(params, values, strict=True)]


@dataclass
class Cached:
    """Keeps the component of H g that is orthogonal to g, scaled with ||g||: LookSAM (arXiv 2203.02714, alg. 1).

    H g is linear in g, so its size follows ||g||; its component along g only scales the step. One copy of the
    covered weights. Wrong where the curvature turns within `every` steps: watch penalty/cosine.
    """

    kept: list[Tensor | None] | None = None
    """For each covered weight, None where it had no gradient."""
    size: float = 0.0
    """||g|| where it was measured."""
    length: float = 0.0
    """The norm of what is kept."""

    @torch.no_grad()
    def combine(
        self, passes: Passes, params: Sequence[Tensor], g: Sequence[Tensor], h: Sequence[Tensor], factor: float
    ) -> None:
        """In the memory of g; that of h becomes the cache."""
        self.size = norm(g)
        along = dot(g, h) / self.size**2
        for p, first, product in zip(params, g, h, strict=True):
            product.sub_(first, alpha=along)
            p.grad = first.mul_(1 + factor * along).add_(product, alpha=factor)
        self.length = norm(h)
        found = {id(p): product for p, product in zip(params, h, strict=True)}
        self.kept = [found.get(id(p)) for p in distinct(passes.covered)]

    def step(self, passes: Passes, lam: float) -> Quick | None:
        """g + 2 lambda (||g|| / ||g_measured||) h_orthogonal; plain g for weights that had no gradient then."""
        if self.kept is None:
            return None
        accumulate([part.loss for part in passes.parts])
        params = distinct(passes.covered)
        self.kept = _beside(params, self.kept)
        size = norm(gradients(params))
        both = [(p.grad, h) for p, h in zip(params, self.kept, strict=True) if p.grad is not None and h is not None]
        if not 0 < size < math.inf or not both:
            return Quick(grad_norm=size)
        factor, length = 2 * lam * size / self.size, self.length
        inner = dot([grad for grad, _ in both], [h for _, h in both])
        for grad, h in both:
            grad.add_(h, alpha=factor)
        return Quick(grad_norm=size, ratio=factor * length / size, cosine=inner / (size * length) if length else 0.0)

    def begin(self, passes: Passes) -> bool:
        """No: H g itself is kept. The old one is dropped first, so that there are never two."""
        self.kept = None
        return False

    def finished(self, passes: Passes, *, measured: bool) -> None:
        """Nothing to keep."""

    def state(self) -> dict[str, Any]:
        """The cache goes into the checkpoint, so that a resumed run takes the very same steps."""
        return {"kept": self.kept, "size": self.size, "length": self.length}

    def restore(self, state: dict[str, Any]) -> None:
        """Back to `state`."""
        self.kept, self.size, self.length = state["kept"], state["size"], state["length"]


@dataclass
class Reused:
    """grad J(theta + 2 lambda v) in one pass, with v a gradient that is already there.

    `moment`: the optimizer's running mean, no memory beyond it. `gradient`: the finished gradient of the step
    before, one copy. The shift 2 lambda ||v|| is cut to `limit`, the range where the difference is about linear.
    What the penalty does not cover is trained with the gradient at the shifted weights too.
    """

    direction: Literal["moment", "gradient"] = "moment"
    limit: float = 0.02
    restore_by: Restore = "subtract"
    previous: list[Tensor | None] | None = None
    measured: bool = False
    """Whether lambda was found with this kind of direction; the first step has only its own gradient."""

    def along(self, passes: Passes) -> Direction | None:
        """v, or None where there is none yet: before the first step, or when all steps so far had no gradient."""
        params, found = distinct(passes.covered), None
        if self.direction == "moment":
            found = passes.moments(params) if passes.moments else None
        elif self.previous is not None:
            self.previous = _beside(params, self.previous)
            known = [(p, g) for p, g in zip(params, self.previous, strict=True) if g is not None]
            found = Direction(params=[p for p, _ in known], values=[g for _, g in known])
        return found if found is not None and 0 < found.length < math.inf else None

    def combine(
        self, passes: Passes, params: Sequence[Tensor], g: Sequence[Tensor], h: Sequence[Tensor], factor: float
    ) -> None:
        """g + factor h."""
        combine(passes, params, g, h, factor)

    def step(self, passes: Passes, lam: float) -> Quick | None:
        """One pass at shifted weights; a measured step first where there is no direction yet."""
        direction = self.along(passes) if self.measured else None
        if direction is None:
            return None
        size = direction.length
        for part in passes.parts:
            part.freeze()
        wanted = 2 * lam * size
        shift = min(wanted, self.limit)
        scale = direction.scale * shift / size
        with shifted(direction.params, direction.values, scale, restore=self.restore_by) as realised:
            accumulate([part.again for part in passes.parts])
        return Quick(
            grad_norm=norm(gradients(passes.covered)),
            shift=shift,
            shift_realised=realised,
            limited=wanted > self.limit,
        )

    def begin(self, passes: Passes) -> bool:
        """Once there is a direction beside g."""
        return self.along(passes) is not None

    def finished(self, passes: Passes, *, measured: bool) -> None:
        """Keep the step's gradient for the next one, and note whether lambda was found with a direction like that."""
        if measured:
            self.measured = self.along(passes) is not None
        if self.direction == "gradient":
            grads = [p.grad for p in distinct(passes.covered)]
            if norm([g for g in grads if g is not None]) > 0:
                self.previous = [None if g is None else g.clone() for g in grads]

    def state(self) -> dict[str, Any]:
        """The kept gradient goes into the checkpoint; the moment is in the optimizer's state."""
        return {"previous": self.previous, "measured": self.measured}

    def restore(self, state: dict[str, Any]) -> None:
        """Back to `state`."""
        self.previous, self.measured = state["previous"], state["measured"]


@dataclass
class InLoss:
    """The penalty in the space of the logits is a term of the loss: no second pass, no shift, no memory."""

    def combine(
        self, passes: Passes, params: Sequence[Tensor], g: Sequence[Tensor], h: Sequence[Tensor], factor: float
    ) -> None:
        """g + factor h."""
        combine(passes, params, g, h, factor)

    def step(self, passes: Passes, lam: float) -> Quick | None:
        """grad of J + lambda P in one pass."""
        accumulate([partial(part.loss, lam) for part in passes.parts])
        return Quick(grad_norm=norm(gradients(passes.covered)))

    def begin(self, passes: Passes) -> bool:
        """Always: the penalty does not need g."""
        return True

    def finished(self, passes: Passes, *, measured: bool) -> None:
        """Nothing to keep."""

    def state(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing was kept."""

"""The gradient penalty lambda * ||grad J||^2: its gradient is 2 lambda H g, with H g by one of `products`.

A *measured* step makes more sets of passes, so that ||H g||, cos(g, H g) and with them lambda are known. An
estimator may make *quick* steps in between (`quick_steps`), with the lambda that the last measured one found. The
published rule g + (s/eps)(g' - g) (Ackermann et al., arXiv 2602.18037) minimises J + (s/2)||grad J||^2: its strength
s is 2 lambda here.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from grpo_core.algorithm.passes import (
    Passes,
    RandomStates,
    accumulate,
    distinct,
    dot,
    gradients,
    kept,
    norm,
    set_aside,
    with_gradient,
)
from grpo_core.algorithm.products import HessianProduct, Shift
from grpo_core.algorithm.quick_steps import QuickStep, combine


@dataclass(frozen=True, kw_only=True)
class PenaltyReport:
    """What the penalty did. All norms are over the covered parameters."""

    grad_norm: float
    """||g|| before the penalty; with it, on a quick step that never has g alone."""
    ratio: float = 0.0
    """||2 lambda H g|| / ||g||; on a quick step that cannot know it, that of the last measured one."""
    cosine: float = 0.0
    """cos(g, H g), likewise: negative means the penalty works against the descent direction."""
    lam: float = 0.0
    """The literal lambda in force."""
    capped: bool = False
    shift: float = 0.0
    """Length of the step in weight space that was asked for; 0 without a shift."""
    shift_realised: float = 0.0
    """Length of the step the weights really made after rounding."""
    measured: bool = False
    finite: bool = True
    seconds: float = field(default=0.0, compare=False)
    """What a measured step took beyond the plain gradient."""


@dataclass(kw_only=True)
class Penalty:
    """Estimator and strength. `relative`: ||2 lambda H g|| = strength * ||g||; `literal`: strength is lambda.

    Both are held exactly on measured steps; quick steps use the lambda of the last measured one.
    """

    product: HessianProduct
    strength: float
    mode: Literal["relative", "literal"] = "relative"
    cap: float | None = 1.0
    """Bound of the finished penalty relative to ||g||; never a clip of the two gradients it is made of."""
    quick: QuickStep | None = None
    every: int = 1
    """A measured step comes every so many updates, if there are quick ones."""
    last: PenaltyReport | None = None
    """The last measured step with a gradient."""
    age: int = 0
    """Updates since then."""

    def gradient(self, passes: Passes, scale: float) -> PenaltyReport:
        """Leave g + 2 lambda H g in `.grad`; `scale` is the schedule's share of the strength."""
        if not passes.parts:
            return plain_report(passes)
        report = self._quick(passes, scale) or self._measured(passes, scale)
        if self.quick is not None and report.finite:
            self.quick.finished(passes, measured=report.measured)
        return report

    def _quick(self, passes: Passes, scale: float) -> PenaltyReport | None:
        last = self.last
        if self.quick is None or last is None or self.age + 1 >= self.every:
            return None
        took = self.quick.step(passes, last.lam * scale)
        if took is None:
            return None
        if took.grad_norm == 0:
            return PenaltyReport(grad_norm=0.0)
        self.age += 1
        return PenaltyReport(
            grad_norm=took.grad_norm,
            ratio=last.ratio * scale if took.ratio is None else took.ratio,
            cosine=last.cosine if took.cosine is None else took.cosine,
            lam=last.lam * scale,
            capped=took.limited,
            shift=took.shift,
            shift_realised=took.shift_realised,
            finite=math.isfinite(took.grad_norm),
        )

    def _measured(self, passes: Passes, scale: float) -> PenaltyReport:
        """One plain set of passes, then those for H g.

        A covered parameter that got no gradient gets none from the second set either. A zero gradient stays zero. A
        non-finite value anywhere leaves g in `.grad` and reports `finite=False`: the caller skips the whole step.
        """
        rng = accumulate([part.loss for part in passes.parts])
        plain = plain_report(passes)
        if plain.grad_norm == 0 or not plain.finite:
            return plain
        began = time.perf_counter()
        in_place = self.quick is not None and self.quick.begin(passes)
        with kept(passes.buffers):
            report = (self._in_place if in_place else self._beside)(passes, rng, plain, scale)
        return replace(report, seconds=time.perf_counter() - began)

    def _beside(self, passes: Passes, rng: RandomStates, plain: PenaltyReport, scale: float) -> PenaltyReport:
        """g is set aside while H g is made: two sets of passes, one copy of the covered weights."""
        params = with_gradient(passes.covered)
        g = gradients(params)
        with set_aside([*distinct(passes.covered), *distinct(passes.others)]):
            moved = self.product(passes, rng, params, g)
            h = gradients(params)
        size = norm(h)
        report, factor = self._strength(plain, moved, size)
        if factor:
            report = self._found(replace(report, cosine=dot(g, h) / (plain.grad_norm * size)))
            (self.quick.combine if self.quick else combine)(passes, params, g, h, factor * scale)
        return replace(report, ratio=report.ratio * scale, lam=report.lam * scale)

    def _in_place(self, passes: Passes, rng: RandomStates, plain: PenaltyReport, scale: float) -> PenaltyReport:
        """g is given up for H g and made again on top of it: three sets of passes, no copy.

        The cosine follows from the norm of the sum: ||g + h||^2 = ||g||^2 + 2 <g, h> + ||h||^2.
        """
        params = with_gradient(passes.covered)
        idle = [p for p in distinct(passes.covered) if p.grad is None]
        with set_aside([*idle, *distinct(passes.others)]):
            moved = self.product(passes, rng, params, None)
            size = norm(gradients(params))
            report, factor = self._strength(plain, moved, size)
            for p, h in zip(params, gradients(params), strict=True):
                p.grad = h.mul_(factor * scale) if factor else None
            accumulate([part.loss for part in passes.parts], rng)
        if factor:
            added = factor * scale * size
            inner = (norm(gradients(params)) ** 2 - plain.grad_norm**2 - added**2) / 2
            report = self._found(replace(report, cosine=inner / (plain.grad_norm * added)))
        return replace(report, ratio=report.ratio * scale, lam=report.lam * scale)

    def _strength(self, plain: PenaltyReport, moved: Shift, size: float) -> tuple[PenaltyReport, float]:
        """What H g of norm `size` is to be multiplied by, before the schedule; 0 where there is nothing to add."""
        report = replace(plain, shift=moved.asked, shift_realised=moved.realised, measured=True)
        if not 0 < size < math.inf:
            return replace(report, finite=math.isfinite(size)), 0.0
        factor = 2 * self.strength if self.mode == "literal" else self.strength * plain.grad_norm / size
        limit = math.inf if self.cap is None else self.cap * plain.grad_norm / size
        capped = factor > limit
        factor = min(factor, limit)
        return replace(report, ratio=factor * size / plain.grad_norm, lam=factor / 2, capped=capped), factor

    def _found(self, report: PenaltyReport) -> PenaltyReport:
        self.last, self.age = report, 0
        return report

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep: lambda in force, its age, and what the quick steps need."""
        last = (
            None if self.last is None else {k: getattr(self.last, k) for k in ("grad_norm", "ratio", "cosine", "lam")}
        )
        return {"last": last, "age": self.age, "quick": None if self.quick is None else self.quick.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Back to `state`."""
        self.last = None if state["last"] is None else PenaltyReport(**state["last"])
        self.age = state["age"]
        if self.quick is not None:
            self.quick.restore(state["quick"])


def plain_report(passes: Passes) -> PenaltyReport:
    """The norm of what is in `.grad`, and whether it and that of the uncovered parameters are finite."""
    size, rest = norm(gradients(passes.covered)), norm(gradients(passes.others))
    return PenaltyReport(grad_norm=size, finite=math.isfinite(size) and math.isfinite(rest))

"""How well do the cheap estimators follow the penalty's gradient H g along a real training run?

    python benchmarks/penalty_accuracy.py [--steps 15] [--form score] [--full] [--set key=value ...]

One training run of configs/quickstart.yaml. At each step, on the step's own rollouts and before its update, H g is
taken by a finite difference along g; every estimator's product is then compared with it:

    reuse (moment)    H v, v the optimizer's running mean        reuse (gradient)  H v, v the last step's gradient
    every_k           the part of H g orthogonal to g that was measured up to four steps ago
    logit_space       half the gradient of the penalty in the space of the logits
    half a batch      H g of one half of the prompts against the other: how far sampling noise alone goes

and, with --low-precision, the finite difference under bfloat16 autocast at several shifts. Printed: the cosine with
H g, and for `reuse` and `every_k` the norm over that of H g (v scaled to ||g||).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from grpo_core.algorithm.batch import Batch
from grpo_core.algorithm.passes import Direction, Passes, accumulate, dot, gradients, norm, with_gradient
from grpo_core.algorithm.products import HessianProduct, finite_difference, logit_space
from grpo_core.assemble import assemble
from grpo_core.config.load import load_config
from grpo_core.training.collect import collect
from grpo_core.training.run import Run
from grpo_core.training.shares import shares
from grpo_core.training.update import contributing, first_moments, update

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "quickstart.yaml"
REFRESH = 5
COARSE_SHIFTS = (0.002, 0.02, 0.1)

Vector = list[Tensor]


def taken(params: Vector) -> Vector:
    """Their gradients; `.grad` is free again."""
    found = gradients(params)
    for p in params:
        p.grad = None
    return found


class Point:
    """The gradient g of one rollout at the current weights, and what is asked about it."""

    def __init__(self, run: Run, batch: Batch) -> None:
        batch = replace(batch, weights=run.algorithm.reduction(batch.loss_mask))
        rows = contributing(run, batch)
        parts = shares(run, batch.select(rows))[1] if len(rows) else []
        self.passes = Passes(parts=parts, covered=run.policy.policy_parameters())
        self.rng = accumulate([part.loss for part in parts])
        self.params = with_gradient(self.passes.covered)
        self.g = taken(self.params)

    def product(self, estimator: HessianProduct = finite_difference) -> Vector:
        """The estimator's stand-in for H g, or H v."""
        estimator(self.passes, self.rng, self.params, self.g)
        return taken(self.params)

    def along(self, direction: Direction) -> Vector:
        """H v ||g|| / ||v||."""
        values = self.product(partial(finite_difference, along=lambda _: direction))
        return [value.mul_(norm(self.g) / direction.length) for value in values]


def cosine(a: Vector, b: Vector) -> float:
    """Of two vectors that are lists of tensors."""
    return dot(a, b) / (norm(a) * norm(b))


def halves(batch: Batch) -> list[Batch]:
    """The batch cut between prompts."""
    first = batch.group_ids < batch.group_ids.unique().float().median()
    return [batch.select(rows.nonzero()[:, 0]) for rows in (first, ~first)]


class Comparison:
    """What is remembered from step to step, and the figures so far."""

    def __init__(self, *, low_precision: bool) -> None:
        self.low_precision = low_precision
        self.cosines: dict[str, list[float]] = defaultdict(list)
        self.sizes: dict[str, list[float]] = defaultdict(list)
        self.cache: Vector = []
        self.age = 0
        self.previous: Direction | None = None

    def add(self, run: Run, batch: Batch) -> None:
        """Compare on one rollout; weights and generators stay as they are. A rollout without a signal is left out."""
        at = Point(run, batch)
        if not at.g:
            return
        h = at.product()
        self._note("cos(g, H g)", at.g, h)
        self._note("logit_space", at.product(logit_space), h)
        moment = first_moments(run.optimizer, at.params)
        for name, direction in (("reuse (moment)", moment), ("reuse (gradient)", self.previous)):
            if direction is not None:
                self._note(name, at.along(direction), h, sized=True)
        self.previous = Direction(params=at.params, values=at.g)
        self._every_k(at.g, h)
        parts = [Point(run, half) for half in halves(batch)]
        if all(part.g for part in parts):
            self._note("half a batch against the other", *(part.product() for part in parts))
        if self.low_precision:
            self._bfloat16(run, batch, h)

    def _note(self, name: str, found: Vector, h: Vector, *, sized: bool = False) -> None:
        self.cosines[name].append(cosine(found, h))
        if sized:
            self.sizes[name].append(norm(found) / norm(h))

    def _every_k(self, g: Vector, h: Vector) -> None:
        """Compare the cache, until it is so old that the estimator would refresh it."""
        size = norm(g)
        if self.cache and self.age < REFRESH:
            self._note("every_k", [c * size for c in self.cache], h, sized=True)
            self.age += 1
            return
        along = dot(g, h) / size**2
        self.cache, self.age = [(b - along * a) / size for a, b in zip(g, h, strict=True)], 1

    def _bfloat16(self, run: Run, batch: Batch, h: Vector) -> None:
        precision, run.policy.autocast = run.policy.autocast, torch.bfloat16
        try:
            low = Point(run, batch)
            for shift in COARSE_SHIFTS:
                found = low.product(partial(finite_difference, shift=shift))
                self._note(f"bfloat16 autocast, shift {shift:g}", found, h, sized=True)
            self._note("bfloat16 autocast, logit_space", low.product(logit_space), h)
        finally:
            run.policy.autocast = precision


def table(comparison: Comparison, title: str) -> Table:
    """Median and range over the steps."""
    result = Table(title=title)
    for column in ("against H g", "steps", "cosine", "from", "to", "norm / norm of H g"):
        result.add_column(column, justify="left" if column == "against H g" else "right")
    for name, values in comparison.cosines.items():
        sizes = comparison.sizes.get(name)
        size = f"{statistics.median(sizes):.2f} ({min(sizes):.2f} to {max(sizes):.2f})" if sizes else ""
        figures = (f"{f(values):.2f}" for f in (statistics.median, min, max))
        result.add_row(name, str(len(values)), *figures, size)
    return result


def main() -> None:
    """Train and compare, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--form", choices=("score", "literal"), default="score")
    parser.add_argument("--full", action="store_true", help="train all weights, learning rate 1e-5")
    parser.add_argument("--low-precision", action="store_true", help="bfloat16 autocast too; slow on most CPUs")
    parser.add_argument("--set", action="append", default=[], dest="extra", help="as of grpo train")
    arguments = parser.parse_args()
    full = ["model.lora=null", "train.learning_rate=1e-5"] if arguments.full else []
    settings = ["algorithm.penalty=reuse", f"penalty.form={arguments.form}", "evaluation.every=0", *full]
    config = load_config(CONFIG, overrides=[*settings, *arguments.extra])
    comparison, console = Comparison(low_precision=arguments.low_precision), Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        run = assemble(config, Path(folder) / "run", quiet=True)
        for step in range(1, arguments.steps + 1):
            batch = collect(run, step).batch
            comparison.add(run, batch)
            update(run, batch, step)
            run.progress.step = step
    kind = "all weights" if arguments.full else "LoRA"
    console.print(table(comparison, f"SmolLM2-135M, {kind}, form {arguments.form}, {arguments.steps} steps"))


if __name__ == "__main__":
    main()

"""Figures of a run, means over seeds with bootstrap intervals, and paired differences between arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hacking.arms import BASELINES, BEST_KL, KL

Array = Any
Curves = Mapping[str, Mapping[str, Array]]
"""Arm to curve to values [seed, step]."""

LAST, SMOOTHED, RESAMPLES, FEWEST_SEEDS = 10, 5, 10_000, 5


class Interval(NamedTuple):
    """A mean and its 95 % bootstrap interval over seeds."""

    mean: float
    low: float
    high: float


class Pair(NamedTuple):
    """How an arm differs from a baseline of the same seeds."""

    against: str
    difference: Interval
    verdict: str


def smoothed(values: Array) -> Array:
    """Running mean over SMOOTHED steps, [seed, step]; shorter by SMOOTHED - 1."""
    return np.lib.stride_tricks.sliding_window_view(values, SMOOTHED, axis=1).mean(-1)


def measures(curves: Mapping[str, Array]) -> dict[str, Array]:
    """What is compared, one value for each seed. `end` is the mean of the last steps, `area` the mean of all."""
    end = {name: curves[name][:, -LAST:].mean(1) for name in ("proxy", "true", "kl", "entropy")}
    smooth = smoothed(curves["true"])
    return {
        "proxy end": end["proxy"],
        "true end": end["true"],
        "gap": end["proxy"] - end["true"],
        "true peak": smooth.max(1),
        "peak step": smooth.argmax(1) + 1 + SMOOTHED // 2,
        "true area": curves["true"].mean(1),
        "KL to start": end["kl"],
        "entropy": end["entropy"],
        "seconds": curves["seconds"].sum(1),
    }


def interval(values: Array) -> Interval:
    """The mean over seeds, and the percentiles of the means of seeds drawn with replacement."""
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(values[drawn].mean(1), [2.5, 97.5])
    return Interval(float(values.mean()), float(low), float(high))


def best_kl(results: Mapping[str, Mapping[str, Array]]) -> str | None:
    """The KL arm with the highest mean true score at the end."""
    return max((arm for arm in KL if arm in results), key=lambda arm: results[arm]["true end"].mean(), default=None)


def resolved(name: str, results: Mapping[str, Mapping[str, Array]]) -> str | None:
    """The arm that a baseline's name stands for, or None where it was not run."""
    arm = best_kl(results) if name == BEST_KL else name
    return arm if arm in results else None


def pairs(results: Mapping[str, Mapping[str, Array]], arm: str, measure: str) -> list[Pair]:
    """The arm against every baseline that was run, seed by seed."""
    found = []
    for name in BASELINES:
        other = resolved(name, results)
        if other is not None and other != arm:
            differences = results[arm][measure] - results[other][measure]
            found.append(Pair(name, interval(differences), verdict(differences)))
    return found


def verdict(differences: Sequence[float]) -> str:
    """`better` or `worse` where the interval excludes 0. All measures compared are better when higher.

    With fewer seeds there is none: of four, all differ in one direction by chance in one case of eight.
    """
    if len(differences) < FEWEST_SEEDS:
        return "few seeds"
    _, low, high = interval(differences)
    return "better" if low > 0 else "worse" if high < 0 else "within noise"

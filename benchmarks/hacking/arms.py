"""The arms: what is laid over a task's config. A new arm is one line.

All arms of a task share the start, the batch, the steps and (but for `half-lr`) the learning rate.

On `clip`: Adam divides a gradient by its own recent size, so scaling every gradient by one factor changes nothing. A
clip acts only because the factor differs from step to step: all gradients above the limit weigh the same in Adam's
moments, however steep they were. It is therefore no smaller step, and `half-lr` is here as the arm that is one.
"""

from __future__ import annotations

from typing import Any

Overrides = dict[str, dict[str, Any]]

KL = ("kl-0.01", "kl-0.03", "kl-0.1")
BEST_KL = "best KL"
"""Stands for the KL arm with the highest mean true score at the end."""
BASELINES = ("none", BEST_KL, "clip", "half-lr")
"""What every arm is compared with."""
DRAWN = ("none", BEST_KL, "clip", "half-lr", "score-0.3", "literal-0.3")


def arms(learning_rate: float, clip: float | None) -> dict[str, Overrides]:
    """Every arm by name. `clip` is the norm that the arm of that name clips to, None while it is not known."""
    return {
        "none": {},
        "kl-0.01": _kl(0.01),
        "kl-0.03": _kl(0.03),
        "kl-0.1": _kl(0.1),
        "score-0.1": _penalty("finite_difference", 0.1),
        "score-0.3": _penalty("finite_difference", 0.3),
        "score-1.0": _penalty("finite_difference", 1.0),
        "literal-0.1": _penalty("finite_difference", 0.1, form="literal"),
        "literal-0.3": _penalty("finite_difference", 0.3, form="literal"),
        "literal-1.0": _penalty("finite_difference", 1.0, form="literal"),
        "exact-0.3": _penalty("exact", 0.3),
        "reuse-0.3": _penalty("reuse", 0.3),
        "every_k-0.3": _penalty("every_k", 0.3),
        "logit_space-0.3": _penalty("logit_space", 0.3),
        "score-0.3+kl-0.03": laid_over(_penalty("finite_difference", 0.3), _kl(0.03)),
        "clip": {"train": {"grad_clip": clip}},
        "half-lr": {"train": {"learning_rate": learning_rate / 2}},
    }


def _kl(coefficient: float) -> Overrides:
    return {"algorithm": {"kl": "loss"}, "rl": {"init_kl_coef": coefficient}}


def _penalty(estimator: str, strength: float, **penalty: Any) -> Overrides:
    return {
        "algorithm": {"penalty": estimator},
        "train": {"lambda": strength, "lambda_mode": "relative"},
        "penalty": penalty,
    }


def laid_over(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`changes` over `base`, section by section."""
    return base | {key: {**base.get(key, {}), **section} for key, section in changes.items()}

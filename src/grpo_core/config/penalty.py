"""How the gradient penalty is computed. Its strength is train.lambda, its estimator algorithm.penalty."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grpo_core.config.section import Section


class PenaltyConfig(Section):
    """Form, shift and rhythm of the gradient penalty lambda * ||grad J||^2."""

    form: Literal["score", "literal"] = "score"
    """`score`: what each sampled token's log-probability weighs in the loss is held fixed while the penalty
    is differentiated, so that it cannot be lowered by making the policy deterministic. `literal`: the whole
    of ||grad J||^2, which can."""
    shift: float | None = Field(default=None, gt=0)
    """Length of the finite difference's step in weight space, in units of the weights. null: 0.002, or 0.02
    with model.matmul_precision below `highest`, or 0.1 where the model computes in half precision, which
    rounds shorter steps away."""
    max_shift: float = Field(default=0.02, gt=0)
    """`reuse`: most the weights may be moved, or penalty.shift if that is longer; a step that wants more is
    cut, and logged as capped."""
    restore: Literal["subtract", "copy"] = "subtract"
    """How moved weights come back, both bit for bit: by subtraction, the few that rounding would change
    kept aside; or from a copy, for one copy of memory."""
    direction: Literal["moment", "gradient"] = "moment"
    """`reuse`: the gradient that is already there: the optimizer's running mean, or that of the step before
    (one copy of memory)."""
    refresh_every: int = Field(default=5, ge=1)
    """`every_k`: updates from one second pass to the next."""
    measure_every: int = Field(default=64, ge=1)
    """`reuse`, `logit_space`: updates from one measured update to the next. It makes two passes more, and no
    copy, to find ratio and cosine and to set lambda."""
    warmup_steps: int = Field(default=0, ge=0)
    """Updates over which lambda rises from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of lambda after the warm-up; linear and cosine end at 0."""

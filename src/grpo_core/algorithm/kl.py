"""KL divergence to the reference policy: per-token estimators and the controllers of its coefficient.

With d = log pi - log pi_ref on tokens drawn from pi (Schulman 2020, "Approximating KL divergence"):
k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. As *values* k1 and k3 are unbiased for KL(pi || ref). As *loss terms* what
counts is the gradient: that of k2 is the reverse KL's, that of k3 is the forward KL's, and that of k1 is 0 on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor

PerToken = Float[Tensor, "*axes"]
KLEstimator = Callable[[PerToken, PerToken], PerToken]

MAX_GAP = 20.0


def k1(logprobs: PerToken, ref_logprobs: PerToken) -> PerToken:
    """d. Unbiased, may be negative; for `kl: reward`, where no gradient flows through it."""
    return logprobs - ref_logprobs


def k2(logprobs: PerToken, ref_logprobs: PerToken) -> PerToken:
    """d^2 / 2. Biased as a value, but as a loss its gradient is exactly that of KL(pi || ref)."""
    return 0.5 * (logprobs - ref_logprobs).square()


def k3(logprobs: PerToken, ref_logprobs: PerToken) -> PerToken:
    """exp(-d) - 1 + d. Unbiased and never negative; as a loss its gradient is that of KL(ref || pi).

    d is bounded below at -20 nats, so a token the policy gave up on cannot overflow: its value stays at 4.9e8 and
    its gradient is 0 (not the +1 of the linear part alone, which would push it further down).
    """
    d = (logprobs - ref_logprobs).clamp(min=-MAX_GAP)
    return (-d).exp() - 1 + d


class KLController(Protocol):
    """Owns the KL coefficient. `update` is told the mean sequence KL (nats) of each rollout."""

    coef: float

    def update(self, kl: float, completions: int) -> None:
        """Move the coefficient after a rollout of `completions` completions."""


@dataclass
class FixedKL:
    """The coefficient never moves."""

    coef: float

    def update(self, kl: float, completions: int) -> None:
        """Nothing to do."""


@dataclass
class AdaptiveKL:
    """coef *= 1 + clip(kl / target - 1, -0.2, 0.2) * completions / horizon (Ziegler et al. 2019, eq. 2)."""

    coef: float
    target: float
    horizon: float

    def update(self, kl: float, completions: int) -> None:
        """Towards `target`, by at most a fifth per horizon. A NaN reading moves nothing."""
        if math.isnan(kl):
            return
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.coef *= 1 + error * completions / self.horizon


@dataclass
class DualKL:
    """coef = max(0, coef + lr * (kl - target)): gradient ascent on the multiplier of E[r] s.t. KL <= target.

    At its fixed point the penalised optimum is the constrained one (Boyd & Vandenberghe, section 5.5.3).
    """

    coef: float
    target: float
    lr: float

    def update(self, kl: float, completions: int) -> None:
        """One ascent step; the multiplier of a slack constraint falls to 0. A NaN reading moves nothing."""
        if math.isnan(kl):
            return
        self.coef = max(0.0, self.coef + self.lr * (kl - self.target))

"""Policy losses per token, to be minimised: `(logprobs, old_logprobs, advantages) -> loss`, all [rollout, token].

Ratios are exp(log pi - log pi_old); the exponent is bounded at +-20 (a factor of 5e8), so that a token which is far
off cannot overflow into a NaN. Ordinary ratios keep their exact value and gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

PerToken = Float[Tensor, "rollout token"]
PolicyLoss = Callable[[PerToken, PerToken, PerToken], PerToken]

MAX_LOG_RATIO = 20.0


def ratio(logprobs: PerToken, old_logprobs: PerToken) -> PerToken:
    """exp(log pi - log pi_old): exactly 1 where the policy is the one that sampled."""
    return (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped(
    logprobs: PerToken, old_logprobs: PerToken, advantages: PerToken, *, low: float = 0.2, high: float = 0.2
) -> PerToken:
    """-min(r A, clip(r, 1 - low, 1 + high) A). PPO (arXiv 1707.06347, eq. 7); asymmetric as in DAPO, eq. 10."""
    r = ratio(logprobs, old_logprobs)
    return -torch.minimum(r * advantages, r.clamp(1 - low, 1 + high) * advantages)


def is_clipped(
    logprobs: PerToken, old_logprobs: PerToken, advantages: PerToken, *, low: float = 0.2, high: float = 0.2
) -> Bool[Tensor, "rollout token"]:
    """Where the clip removes the gradient: above 1 + high with A > 0, below 1 - low with A < 0."""
    r = ratio(logprobs, old_logprobs)
    return ((r > 1 + high) & (advantages > 0)) | ((r < 1 - low) & (advantages < 0))


def unclipped(logprobs: PerToken, old_logprobs: PerToken, advantages: PerToken) -> PerToken:
    """-r A: the importance-weighted surrogate (TRPO, arXiv 1502.05477, eq. 14), limited by the penalty instead.

    Fails with many updates on one rollout: nothing but rl.target_kl and the penalty then holds the policy back.
    """
    return -ratio(logprobs, old_logprobs) * advantages


def reinforce(logprobs: PerToken, old_logprobs: PerToken, advantages: PerToken) -> PerToken:
    """-A log pi (Williams 1992). Right only for the policy that sampled: one update per rollout."""
    return -advantages * logprobs

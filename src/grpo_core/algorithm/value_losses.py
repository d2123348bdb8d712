"""Value losses per token, to be minimised."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

PerToken = Float[Tensor, "rollout token"]


def squared(values: PerToken, returns: PerToken) -> PerToken:
    """(V - R)^2 / 2."""
    return 0.5 * (values - returns).square()


def clipped_squared(values: PerToken, old_values: PerToken, returns: PerToken, *, clip: float | None) -> PerToken:
    """max((V - R)^2, (V_clip - R)^2) / 2, V_clip within `clip` of the old value (PPO's reference code, 2017).

    `clip=None` is the plain squared error. Fails where |R - V_old| is much larger than `clip`: V then learns slowly.
    """
    if clip is None:
        return squared(values, returns)
    held = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(squared(values, returns), squared(held, returns))


def explained_variance(
    values: Float[Tensor, "rollout token"], returns: Float[Tensor, "rollout token"], mask: Tensor
) -> float:
    """1 - Var(R - V) / Var(R) over the slots where `mask` holds; 0 when the returns do not vary."""
    returns, residual = returns[mask].double(), (returns - values)[mask].double()
    if len(returns) == 0 or returns.max() == returns.min():
        return 0.0
    return float(1 - residual.var(correction=0) / returns.var(correction=0))

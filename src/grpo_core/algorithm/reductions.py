"""Every mean of the library. A reduction turns a mask into token weights, once for a whole optimizer batch.

The loss is then `sum(weights * per_token_loss)`, which is the same however the batch is cut into micro-batches.
Nothing else in the library divides by a count of tokens or sequences.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Mask = Bool[Tensor, "rollout token"]
Weights = Float[Tensor, "rollout token"]
Reduction = Callable[[Mask], Weights]


def token_mean(mask: Mask) -> Weights:
    """1 / (kept tokens of the batch) each. Long completions weigh more (DAPO, arXiv 2503.14476, eq. 12)."""
    return mask.double() / mask.sum().clamp(min=1)


def sequence_mean(mask: Mask) -> Weights:
    """1 / (rollouts x own length) each (DeepSeekMath, arXiv 2402.03300, eq. 3). Favours short right answers."""
    return mask.double() / mask.sum(1, keepdim=True).clamp(min=1) / max(1, mask.shape[0])


def sequence_sum(mask: Mask) -> Weights:
    """1 / rollouts each: the plain policy gradient over sequences (RLOO, arXiv 2402.14740)."""
    return mask.double() / max(1, mask.shape[0])


def fixed_length(mask: Mask, *, length: int) -> Weights:
    """1 / (rollouts x length) each, `length` the completion limit (Dr. GRPO, arXiv 2503.20783, section 3.2)."""
    return mask.double() / (max(1, mask.shape[0]) * length)


def weighted_sum(values: Float[Tensor, "*axes"], weights: Float[Tensor, "*axes"]) -> Float[Tensor, ""]:
    """sum(weights * values) in the precision of `values`; slots of weight 0 count nothing, even if not finite."""
    weights = weights.to(values.dtype)
    return (torch.where(weights != 0, values, 0.0) * weights).sum()


def masked_mean(values: Float[Tensor, "*axes"], mask: Bool[Tensor, "*axes"]) -> Float[Tensor, ""]:
    """Mean over the slots where `mask` holds; 0 where there is none."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def whiten(values: Float[Tensor, "*axes"], mask: Bool[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """(x - mean) / std over the slots where `mask` holds, population std; masked slots give 0.

    A batch without any spread gives 0 everywhere instead of a division by rounding noise.
    """
    kept = values[mask]
    if kept.numel() == 0 or bool(kept.max() == kept.min()):
        return torch.zeros_like(values)
    mean = kept.mean()
    std = (kept - mean).square().mean().sqrt()
    return torch.where(mask, (values - mean) / std, 0.0)

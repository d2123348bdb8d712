"""THE page: what is minimised, and the gradient that reaches the weights.

    L(theta) = J(theta) + lambda * ||grad J(theta)||^2
    J        = policy + value_coef * value - entropy_coef * entropy + kl_coef * kl        (each a weighted token sum)

`J` is minimised. Every term is `sum(batch.weights * per_token)`, and the weights were set once for the whole
optimizer batch, so micro-batches simply add up. Rollouts, advantages and old log-probs are frozen: a second pass at
shifted weights reuses them, else the ratio would stay 1 and H g would belong to another function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_core.algorithm.advantages import Advantage
from grpo_core.algorithm.batch import Batch, PolicyOutputs
from grpo_core.algorithm.kl import KLEstimator, k2
from grpo_core.algorithm.penalty import Part, Penalty, PenaltyReport, accumulate, add_penalty
from grpo_core.algorithm.policy_losses import PolicyLoss
from grpo_core.algorithm.reductions import Reduction, weighted_sum
from grpo_core.algorithm.value_losses import clipped_squared

PerToken = Float[Tensor, "rollout token"]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A method is a composition of these parts; nothing anywhere branches on its name."""

    advantage: Advantage
    policy_loss: PolicyLoss
    reduction: Reduction
    critic: bool = False
    value_coef: float = 0.1
    value_clip: float | None = 0.2
    entropy_coef: float = 0.0
    kl: str = "none"
    """Where the KL to the reference enters: `none`, `reward` or `loss`."""
    kl_estimator: KLEstimator = k2
    whiten_advantages: bool = False
    clipped: Callable[[PerToken, PerToken, PerToken], Tensor] | None = None
    """Where the policy loss clips, for the metric; None for losses that do not clip."""
    penalty: Penalty | None = None

    @property
    def linear_in_advantage(self) -> bool:
        """Whether a rollout of advantage 0 contributes exactly nothing, so that it need not be computed."""
        return not self.critic and self.entropy_coef == 0 and self.kl != "loss"


@dataclass(frozen=True)
class Terms:
    """The terms of J, already weighted by their coefficients; `total` is what is differentiated."""

    policy: Float[Tensor, ""]
    value: Float[Tensor, ""]
    entropy: Float[Tensor, ""]
    kl: Float[Tensor, ""]
    detached: dict[str, Tensor] = field(default_factory=dict)
    """Per-token tensors for metrics: ratio, clipped."""

    @property
    def total(self) -> Float[Tensor, ""]:
        """J."""
        return self.policy + self.value + self.entropy + self.kl


def surrogate(out: PolicyOutputs, batch: Batch, algorithm: Algorithm, kl_coef: float = 0.0) -> Terms:
    """The terms of J on one (micro-)batch, whose `advantages` and `weights` are set."""
    assert batch.weights is not None and batch.advantages is not None
    zero = out.logprobs.new_zeros(())
    weights = batch.weights
    old = out.logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
    advantages = batch.advantages.to(out.logprobs.dtype)

    policy = weighted_sum(algorithm.policy_loss(out.logprobs, old, advantages), weights)
    value, entropy, kl = zero, zero, zero
    if algorithm.critic and out.values is not None and batch.old_values is not None and batch.returns is not None:
        per_token = clipped_squared(out.values, batch.old_values, batch.returns, clip=algorithm.value_clip)
        value = algorithm.value_coef * weighted_sum(per_token, weights)
    if algorithm.entropy_coef and out.entropy is not None:
        entropy = -algorithm.entropy_coef * weighted_sum(out.entropy, weights)
    if algorithm.kl == "loss" and batch.ref_logprobs is not None:
        kl = kl_coef * weighted_sum(algorithm.kl_estimator(out.logprobs, batch.ref_logprobs), weights)

    with torch.no_grad():
        seen = {"log_ratio": out.logprobs.detach() - old}
        if algorithm.clipped is not None:
            seen["clipped"] = algorithm.clipped(out.logprobs, old, advantages)
    return Terms(policy, value, entropy, kl, seen)


def regularized_gradient(
    parts: Sequence[Part],
    covered: Sequence[Tensor],
    others: Sequence[Tensor] = (),
    penalty: Penalty | None = None,
    buffers: Sequence[Tensor] = (),
) -> PenaltyReport:
    """Leave grad L = g + 2 lambda H g in `.grad` of `covered`, and plain g in `.grad` of `others`.

    `parts` are the micro-batches: each a function of the current weights that returns its share of J. With no penalty
    (or strength 0) this is one plain backward pass per part, bit for bit. The weights and `buffers` are unchanged
    afterwards, also when a pass raises.
    """
    rng = accumulate(parts)
    return add_penalty(parts, rng, covered, others, penalty, buffers)

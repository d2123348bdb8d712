"""THE page: what is minimised, and the gradient that reaches the weights.

    L(theta) = J(theta) + lambda * ||grad J(theta)||^2
    J        = policy + value_coef * value - entropy_coef * entropy + kl_coef * kl        (each a weighted token sum)

`J` is minimised. Every term is `sum(batch.weights * per_token)`, and the weights were set once for the whole
optimizer batch, so micro-batches simply add up. Rollouts, advantages and old log-probs are frozen at theta for every
pass. What a second pass at shifted weights differentiates is the penalty's *form*:

    literal   J itself, ratio and all: then H = hess J, and the penalty is paid for determinism, since grad J also
              vanishes where the policy is deterministic, right or wrong.
    score     the policy term to first order in log pi, with the slope c = d loss / d log pi frozen at theta: the
              gradient at theta is the same, H lacks the term of the ratio, and a tabular policy with centred
              advantages gets no penalty at all. What is left is the curvature of the network, which determinism
              does not lower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_core.algorithm.advantages import Advantage
from grpo_core.algorithm.batch import Batch, PolicyOutputs
from grpo_core.algorithm.kl import KLEstimator, k2
from grpo_core.algorithm.passes import Closure, Moments, Part, Passes, accumulate
from grpo_core.algorithm.penalty import Penalty, PenaltyReport, plain_report
from grpo_core.algorithm.policy_losses import PolicyLoss
from grpo_core.algorithm.quick_steps import Reused
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
    penalty_form: Literal["score", "literal"] = "score"
    """Which function's Hessian the penalty uses, see the top of this page."""

    @property
    def old_logprobs_first(self) -> bool:
        """Whether the first pass of an update may be at shifted weights and needs the old log-probs of theta."""
        quick = None if self.penalty is None else self.penalty.quick
        return isinstance(quick, Reused) and self.penalty_form == "literal"

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
    penalty: Float[Tensor, ""]
    """lambda times the penalty in the space of the logits; only the estimator `logit_space` puts it here."""

    @property
    def total(self) -> Float[Tensor, ""]:
        """J, and the penalty if it is a term of the loss."""
        return self.policy + self.value + self.entropy + self.kl + self.penalty


def surrogate(
    out: PolicyOutputs,
    batch: Batch,
    algorithm: Algorithm,
    kl_coef: float = 0.0,
    *,
    at: PerToken | None = None,
    logit_lam: float = 0.0,
) -> Terms:
    """The terms of J on one (micro-)batch, whose `advantages` and `weights` are set.

    With `at`, log-probs at theta, the policy term is the `score` form around them. `logit_lam` adds the penalty in the
    space of the logits, for which `out.collision` must be there.
    """
    assert batch.weights is not None and batch.advantages is not None
    zero = out.logprobs.new_zeros(())
    weights = batch.weights
    old = out.logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
    advantages = batch.advantages.to(out.logprobs.dtype)

    def policy_loss(logprobs: PerToken) -> PerToken:
        return algorithm.policy_loss(logprobs, old, advantages)

    if at is None:
        policy = weighted_sum(policy_loss(out.logprobs), weights)
    else:
        policy = weighted_sum(policy_loss(at) + slope(policy_loss, at) * (out.logprobs - at), weights)
    value, entropy, kl, penalty = zero, zero, zero, zero
    if algorithm.critic and out.values is not None and batch.old_values is not None and batch.returns is not None:
        per_token = clipped_squared(out.values, batch.old_values, batch.returns, clip=algorithm.value_clip)
        value = algorithm.value_coef * weighted_sum(per_token, weights)
    if algorithm.entropy_coef and out.entropy is not None:
        entropy = -algorithm.entropy_coef * weighted_sum(out.entropy, weights)
    if algorithm.kl == "loss" and batch.ref_logprobs is not None:
        kl = kl_coef * weighted_sum(algorithm.kl_estimator(out.logprobs, batch.ref_logprobs), weights)
    if logit_lam:
        assert out.collision is not None
        per_token = logit_norm(slope(policy_loss, out.logprobs), out.logprobs, out.collision)
        penalty = logit_lam * weighted_sum(per_token, weights)
    return Terms(policy, value, entropy, kl, penalty)


def slope(loss: Callable[[PerToken], PerToken], logprobs: PerToken) -> PerToken:
    """d loss / d log pi per token; differentiable where `logprobs` is, a constant where it is not."""
    with torch.enable_grad():
        point = logprobs if logprobs.requires_grad else logprobs.detach().requires_grad_(True)
        (result,) = torch.autograd.grad(loss(point).sum(), point, create_graph=logprobs.requires_grad)
    return result


def logit_norm(slopes: PerToken, logprobs: PerToken, collision: PerToken) -> PerToken:
    """||d loss / d logits||^2 of each token: s^2 (1 - 2 p_y + sum_k p_k^2), s = d loss / d log pi.

    The logits are those the token was drawn from, divided by the temperature: d log p_y / d z_k = [k = y] - p_k.
    """
    return slopes.square() * (1 - 2 * logprobs.exp() + collision)


def regularized_gradient(
    parts: Sequence[Part | Callable[[], Tensor]],
    covered: Sequence[Tensor],
    others: Sequence[Tensor] = (),
    penalty: Penalty | None = None,
    buffers: Sequence[Tensor] = (),
    *,
    scale: float = 1.0,
    moments: Moments | None = None,
) -> PenaltyReport:
    """Leave grad L = g + 2 lambda H g in `.grad` of `covered`, and plain g in `.grad` of `others`.

    `parts` are the micro-batches' shares of J: `Part`s, or plain functions of the current weights. `scale` is the
    schedule's share of lambda, `moments` the optimizer's running mean for the estimator `reuse`. With no penalty (or
    strength 0) this is one plain backward pass per part, bit for bit. The weights and `buffers` are unchanged
    afterwards, also when a pass raises.
    """
    passes = Passes(
        parts=[Closure(part) if callable(part) else part for part in parts],
        covered=covered,
        others=others,
        buffers=buffers,
        moments=moments,
    )
    if penalty is not None and penalty.strength * scale > 0:
        return penalty.gradient(passes, scale)
    accumulate([part.loss for part in passes.parts])
    return plain_report(passes)

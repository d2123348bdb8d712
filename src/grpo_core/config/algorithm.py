"""An algorithm is data: each name below is a choice of parts, and any part can be overridden by its key."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from grpo_core.config.section import Flag, Section

AlgorithmName = Literal["grpo", "ppo", "group_relative", "rloo", "dr_grpo", "reinforce"]

ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {
        "advantage": "gae",
        "policy_loss": "clipped",
        "critic": "shared",
        "kl": "reward",
        "kl_controller": "adaptive",
        "reduction": "token_mean",
        "whiten_advantages": True,
        "penalty": "none",
    },
    "grpo": {
        "advantage": "group_centered",
        "policy_loss": "unclipped",
        "critic": "none",
        "kl": "none",
        "kl_controller": "fixed",
        "reduction": "token_mean",
        "whiten_advantages": False,
        "penalty": "every_k",
    },
}
ALGORITHMS["group_relative"] = ALGORITHMS["grpo"] | {
    "advantage": "group_normalized", "policy_loss": "clipped", "penalty": "none",
}  # fmt: skip
ALGORITHMS["dr_grpo"] = ALGORITHMS["group_relative"] | {
    "advantage": "group_centered",
    "reduction": "fixed_length",
}
ALGORITHMS["rloo"] = ALGORITHMS["group_relative"] | {
    "advantage": "leave_one_out", "policy_loss": "reinforce", "reduction": "sequence_sum",
}  # fmt: skip
ALGORITHMS["reinforce"] = ALGORITHMS["rloo"] | {"advantage": "batch_baseline"}


def expand_algorithm(value: Any) -> Any:
    """Write `algorithm: ppo` in full."""
    return {"name": value} if isinstance(value, str) else value


class AlgorithmConfig(Section):
    """A method as a choice of parts. A part left out takes the choice of the algorithm in `name`."""

    name: AlgorithmName = "grpo"
    """`grpo` is Gradient-Regularized Policy Optimization; the group-relative method is `group_relative`."""
    advantage: Literal["gae", "group_centered", "group_normalized", "leave_one_out", "batch_baseline"] = (
        "group_centered"
    )
    """Advantage estimator. `gae` needs a critic; the group ones need rollout.group_size of at least 2."""
    policy_loss: Literal["clipped", "unclipped", "reinforce"] = "unclipped"
    """`clipped` ratio (PPO), `unclipped` ratio (the article's GRPO), or `reinforce` (log-probability)."""
    critic: Literal["none", "shared", "separate"] = "none"
    """`shared`: a value head on the policy's trunk; `separate`: a second model with a value head."""
    kl: Literal["none", "reward", "loss"] = "none"
    """Where the KL to the reference policy enters. `none` holds no reference in memory."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k2"
    """Estimator used with `kl: loss`. As a loss, k2's gradient is that of the reverse KL, k3's that of the
    forward KL, and k1 has none on average, so it is refused. `kl: reward` always uses k1."""
    kl_controller: Literal["fixed", "adaptive", "dual"] = "fixed"
    """How the KL coefficient moves: not at all, towards rl.kl_target, or by dual ascent for KL <=
    rl.kl_target."""
    reduction: Literal["token_mean", "sequence_mean", "sequence_sum", "fixed_length"] = "token_mean"
    """The loss's denominator: all tokens; mean of sequence means; sequences; sequences x max_new_tokens."""
    whiten_advantages: Flag = False
    """Standardise advantages over the rollout's response tokens."""
    penalty: Literal["none", "exact", "finite_difference", "reuse", "every_k", "logit_space"] = "every_k"
    """Estimator of the gradient penalty. `finite_difference`: a second pass at shifted weights. `reuse`: one
    pass, shifted along the optimizer's running mean. `every_k`: a second pass each penalty.refresh_every
    updates. `logit_space`: a closed form per token, one pass. `exact`: differentiates twice, the oracle;
    needs model.attention: eager."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip of the ratio: 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """Upper clip of the ratio: 1 + clip_high."""
    value_clip: float | None = Field(default=0.2, gt=0)
    """Clip range of the value around its old value; null for no clip."""
    value_coef: float = Field(default=0.1, ge=0)
    """Weight of the value loss."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus (nats per token)."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per token, for GAE."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """GAE's trace decay."""
    truncate_backprop_value: Flag = False
    """Stop the value loss's gradient at the value head, for critic: shared."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        """Give every part left out the named algorithm's choice."""
        given = expand_algorithm(value)
        if not isinstance(given, dict):
            return given
        filled = {**ALGORITHMS.get(str(given.get("name", "grpo")), {}), **given}
        if filled.get("kl") == "none" and "kl_controller" not in given:
            filled["kl_controller"] = "fixed"
        return filled


class RLConfig(Section):
    """Control of the KL divergence."""

    init_kl_coef: float = Field(default=0.02, ge=0)
    """Start of the KL coefficient. It acts where algorithm.kl is `reward` or `loss`."""
    target_kl: float | None = Field(default=6.0, gt=0)
    """Ends the updates on a rollout early once the mean sequence KL (nats) to the policy that sampled it
    passes this; null never does. It needs more than one update per rollout to act."""
    kl_target: float = Field(default=6.0, gt=0)
    """For the adaptive and dual controllers: the mean sequence KL (nats) to the reference they steer to."""
    kl_horizon: float = Field(default=10_000, gt=0)
    """Adaptive controller: completions over which the coefficient may change by its own size (Ziegler
    2019)."""
    kl_dual_lr: float = Field(default=0.01, gt=0)
    """Dual controller: step of the multiplier per nat of excess KL."""

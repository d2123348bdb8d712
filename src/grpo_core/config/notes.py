"""Settings that do no harm and nothing else: what the user wrote and may be surprised by."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_core.config.root import RunConfig

_PENALTY = tuple(
    f"penalty.{key}"
    for key in (
        "form", "shift", "max_shift", "restore", "direction", "refresh_every", "measure_every",
        "warmup_steps", "schedule",
    )
)  # fmt: skip

_INERT: Sequence[tuple[Sequence[str], Callable[[Any], bool], str]] = (
    (
        ("train.lambda", "train.lambda_mode", "train.penalty_cap", *_PENALTY),
        lambda c: c.algorithm.penalty == "none",
        "algorithm.penalty is none (set it to reuse or finite_difference)",
    ),
    (
        ("train.lambda_mode", "train.penalty_cap", *_PENALTY),
        lambda c: c.algorithm.penalty != "none" and c.train.lambda_ == 0,
        "train.lambda is 0",
    ),
    (
        ("penalty.shift", "penalty.restore"),
        lambda c: c.algorithm.penalty in ("exact", "logit_space"),
        "the estimator in algorithm.penalty moves no weights",
    ),
    (("penalty.form",), lambda c: c.algorithm.penalty == "logit_space", "logit_space has a form of its own"),
    (
        ("penalty.max_shift", "penalty.direction"),
        lambda c: c.algorithm.penalty not in ("none", "reuse"),
        "algorithm.penalty is not reuse",
    ),
    (
        ("penalty.refresh_every",),
        lambda c: c.algorithm.penalty not in ("none", "every_k"),
        "algorithm.penalty is not every_k",
    ),
    (
        ("penalty.measure_every",),
        lambda c: c.algorithm.penalty in ("exact", "finite_difference", "every_k"),
        "this estimator measures on every second pass it makes",
    ),
    (
        ("rl.init_kl_coef",),
        lambda c: c.algorithm.kl == "none",
        "algorithm.kl is none (set it to reward or loss)",
    ),
    (
        ("rl.kl_target",),
        lambda c: c.algorithm.kl_controller == "fixed",
        "algorithm.kl_controller is fixed (rl.target_kl is the early stop)",
    ),
    (
        ("rl.kl_horizon",),
        lambda c: c.algorithm.kl_controller != "adaptive",
        "the KL controller is not adaptive",
    ),
    (("rl.kl_dual_lr",), lambda c: c.algorithm.kl_controller != "dual", "the KL controller is not dual"),
    (("algorithm.kl_estimator",), lambda c: c.algorithm.kl != "loss", "algorithm.kl is not loss"),
    (
        ("rl.target_kl",),
        lambda c: c.updates_per_step == 1,
        "there is one update per rollout (train.epochs x train.minibatches), so none is left to stop",
    ),
    (
        ("algorithm.clip_low", "algorithm.clip_high"),
        lambda c: c.algorithm.policy_loss != "clipped",
        "algorithm.policy_loss is not clipped",
    ),
    (
        (
            "algorithm.value_clip",
            "algorithm.value_coef",
            "algorithm.gamma",
            "algorithm.gae_lambda",
            "algorithm.truncate_backprop_value",
            "train.critic_learning_rate",
        ),
        lambda c: c.algorithm.critic == "none",
        "algorithm.critic is none",
    ),
    (
        ("evaluation.every", "evaluation.samples", "evaluation.temperature"),
        lambda c: c.evaluation.prompts == 0,
        "evaluation.prompts is 0",
    ),
)


def notes(config: RunConfig, explicit_keys: Collection[str]) -> list[str]:
    """Remarks on a config that can run: written keys without effect, and sampling that biases the gradient.

    `explicit_keys` are the dotted keys the user wrote, from `read_config`; defaults are not remarked on.
    """
    found = [
        f"{key} has no effect: {reason}."
        for keys, inert, reason in _INERT
        if inert(config)
        for key in keys
        if key in explicit_keys
    ]
    rollout, neutral = config.rollout, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    found += [
        f"rollout.{key}: {getattr(rollout, key)} biases the policy gradient: the trainer scores without the "
        f"cut ({key}: {value:g} does not cut)."
        for key, value in neutral.items()
        if getattr(rollout, key) != value
    ]
    return found

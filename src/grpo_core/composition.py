"""From the names in a config to the functions and objects they stand for. `assemble` puts them together."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from grpo_core.algorithm import advantages, kl, penalty, policy_losses, products, quick_steps, reductions
from grpo_core.algorithm.objective import Algorithm
from grpo_core.config.root import RunConfig
from grpo_core.models.loading import DTYPES, LoadedModel
from grpo_core.models.policy import Policy

REDUCTIONS = {
    "token_mean": reductions.token_mean,
    "sequence_mean": reductions.sequence_mean,
    "sequence_sum": reductions.sequence_sum,
}
KL_ESTIMATORS = {"k1": kl.k1, "k2": kl.k2, "k3": kl.k3}


def build_algorithm(config: RunConfig) -> Algorithm:
    """The named parts as functions."""
    chosen = config.algorithm
    low, high = chosen.clip_low, chosen.clip_high
    losses: dict[str, policy_losses.PolicyLoss] = {
        "clipped": partial(policy_losses.clipped, low=low, high=high),
        "unclipped": policy_losses.unclipped,
        "reinforce": policy_losses.reinforce,
    }
    estimators: dict[str, advantages.Advantage] = {
        "gae": partial(advantages.gae, gamma=chosen.gamma, lam=chosen.gae_lambda),
        "group_centered": advantages.group_centered,
        "group_normalized": advantages.group_normalized,
        "leave_one_out": advantages.leave_one_out,
        "batch_baseline": advantages.batch_baseline,
    }
    fixed_length = partial(reductions.fixed_length, length=config.rollout.max_new_tokens)
    return Algorithm(
        advantage=estimators[chosen.advantage],
        policy_loss=losses[chosen.policy_loss],
        reduction=(REDUCTIONS | {"fixed_length": fixed_length})[chosen.reduction],
        critic=chosen.critic != "none",
        value_coef=chosen.value_coef,
        value_clip=chosen.value_clip,
        entropy_coef=chosen.entropy_coef,
        kl=chosen.kl,
        kl_estimator=KL_ESTIMATORS[chosen.kl_estimator],
        whiten_advantages=chosen.whiten_advantages,
        clipped=partial(policy_losses.is_clipped, low=low, high=high) if chosen.policy_loss == "clipped" else None,
        penalty=build_penalty(config),
        penalty_form=config.penalty.form,
    )


def build_penalty(config: RunConfig) -> penalty.Penalty | None:
    """The gradient penalty, or None where it is switched off."""
    train, how, kind = config.train, config.penalty, config.algorithm.penalty
    if kind == "none" or train.lambda_ == 0:
        return None
    second_pass = partial(products.finite_difference, shift=config.penalty_shift, restore=how.restore)
    reused = quick_steps.Reused(
        direction=how.direction, limit=max(how.max_shift, config.penalty_shift), restore_by=how.restore
    )
    estimators: dict[str, tuple[products.HessianProduct, quick_steps.QuickStep | None, int]] = {
        "exact": (products.exact, None, 1),
        "finite_difference": (second_pass, None, 1),
        "reuse": (partial(second_pass, along=reused.along), reused, how.measure_every),
        "every_k": (second_pass, quick_steps.Cached(), how.refresh_every),
        "logit_space": (products.logit_space, quick_steps.InLoss(), how.measure_every),
    }
    product, quick, every = estimators[kind]
    return penalty.Penalty(
        product=product,
        strength=train.lambda_,
        mode=train.lambda_mode,
        cap=train.penalty_cap,
        quick=quick,
        every=every,
    )


def build_kl(config: RunConfig) -> kl.KLController:
    """The controller of the KL coefficient."""
    rl = config.rl
    controllers: dict[str, kl.KLController] = {
        "fixed": kl.FixedKL(rl.init_kl_coef),
        "adaptive": kl.AdaptiveKL(rl.init_kl_coef, rl.kl_target, rl.kl_horizon),
        "dual": kl.DualKL(rl.init_kl_coef, rl.kl_target, rl.kl_dual_lr),
    }
    return controllers[config.algorithm.kl_controller]


def build_policy(config: RunConfig, loaded: LoadedModel) -> Policy:
    """The loaded model as a policy."""
    train = config.train
    share = train.share_prompts == "on" or (train.share_prompts == "auto" and not config.model.gradient_checkpointing)
    return Policy(
        loaded.model,
        adapter=loaded.adapter,
        critic=config.algorithm.critic,
        share_prompts=share,
        compiled=train.compile,
        autocast=None if train.autocast == "off" else DTYPES[train.autocast],
        frozen_value_trunk=config.algorithm.truncate_backprop_value,
    )


def build_optimizer(config: RunConfig, policy: Policy) -> torch.optim.Optimizer:
    """AdamW; the critic's weights are a group of their own, with their own peak rate."""
    train = config.train
    groups: list[dict[str, Any]] = [{"params": policy.policy_parameters(), "peak_lr": train.learning_rate}]
    if policy.value_parameters():
        rate = train.critic_learning_rate or train.learning_rate
        groups.append({"params": policy.value_parameters(), "peak_lr": rate})
    return torch.optim.AdamW(
        groups,
        lr=train.learning_rate,
        betas=train.betas,
        weight_decay=train.weight_decay,
        fused=policy.device.type in ("cuda", "cpu"),
    )

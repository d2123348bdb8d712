"""Choices of the method, its kernels and its precision that exclude each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo_core.config.problem import Problem, conflict

if TYPE_CHECKING:
    from grpo_core.config.root import RunConfig


def method_conflicts(config: RunConfig) -> Iterator[Problem]:
    """What `algorithm` excludes in itself, in `model` and in `train`."""
    for check in (_estimator, _kl, _penalty, _precision):
        yield from check(config)


def _estimator(config: RunConfig) -> Iterator[Problem]:
    algorithm = config.algorithm
    if algorithm.advantage == "gae" and algorithm.critic == "none":
        yield conflict(
            "algorithm.advantage, algorithm.critic",
            "`gae` needs a critic, and critic is none",
            "set algorithm.critic: shared, or algorithm.advantage: group_centered",
        )
    if algorithm.advantage != "gae" and algorithm.critic != "none":
        yield conflict(
            "algorithm.critic, algorithm.advantage",
            f"the `{algorithm.critic}` critic would be trained and never used by `{algorithm.advantage}`",
            "set algorithm.critic: none, or algorithm.advantage: gae",
        )
    if algorithm.policy_loss == "reinforce" and config.updates_per_step > 1:
        yield conflict(
            "algorithm.policy_loss, train.epochs, train.minibatches",
            f"`reinforce` has no ratio to correct for old samples, but {config.train.epochs} x "
            f"{config.train.minibatches} = {config.updates_per_step} updates use one rollout",
            "set train.epochs: 1 and train.minibatches: 1, or algorithm.policy_loss: clipped",
        )


def _kl(config: RunConfig) -> Iterator[Problem]:
    algorithm = config.algorithm
    if algorithm.kl == "loss" and algorithm.kl_estimator == "k1":
        yield conflict(
            "algorithm.kl_estimator, algorithm.kl",
            "as a loss, k1 has a gradient of zero on average",
            "set algorithm.kl_estimator to k2 (reverse KL) or k3 (forward KL)",
        )
    if algorithm.kl == "none" and algorithm.kl_controller != "fixed":
        yield conflict(
            "algorithm.kl_controller, algorithm.kl",
            f"the `{algorithm.kl_controller}` controller has no KL to steer, since kl is none",
            "set algorithm.kl: reward, or remove algorithm.kl_controller",
        )
    if algorithm.kl_controller == "adaptive" and algorithm.kl != "none" and config.rl.init_kl_coef == 0:
        yield conflict(
            "rl.init_kl_coef, algorithm.kl_controller",
            "the adaptive controller multiplies the coefficient, and 0 stays 0",
            "set rl.init_kl_coef above 0, e.g. 0.02, or algorithm.kl: none",
        )


def _penalty(config: RunConfig) -> Iterator[Problem]:
    if config.algorithm.penalty != "exact":
        return
    if config.model.attention != "eager":
        yield conflict(
            "algorithm.penalty, model.attention",
            f"`exact` differentiates twice, which `{config.model.attention}` attention cannot",
            "set model.attention: eager, or algorithm.penalty: finite_difference",
        )
    if config.train.compile:
        yield conflict(
            "algorithm.penalty, train.compile",
            "`exact` differentiates twice, which torch.compile cannot",
            "set train.compile: false, or algorithm.penalty: finite_difference",
        )


def _precision(config: RunConfig) -> Iterator[Problem]:
    model, low = config.model, config.model.dtype != "float32"
    if low and model.lora is None:
        penalty = config.algorithm.penalty != "none"
        lost = "the penalty's small shift of the weights is lost" if penalty else "small updates round to nothing"
        yield conflict(
            "model.dtype, algorithm.penalty" if penalty else "model.dtype, model.lora",
            f"all weights are trained and stored in {model.dtype}, where {lost}",
            "set model.dtype: float32 with train.autocast: bfloat16, or model.lora: {} to train adapters",
        )
    if model.attention == "flash_attention_2" and not low and config.train.autocast == "off":
        yield conflict(
            "model.attention, model.dtype",
            "flash_attention_2 computes in half precision only, and everything here is float32",
            "set train.autocast: bfloat16, or model.attention: sdpa",
        )

"""Settings that cannot go together. Each message names the keys, the numbers, and the nearest way out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import gcd
from typing import TYPE_CHECKING

from grpo_core.config.data import FileData, HubData, ReasoningGymData
from grpo_core.config.problem import Problem
from grpo_core.config.reward import (
    FormatReward,
    FunctionReward,
    LengthReward,
    ReasoningGymReward,
    RegexReward,
)

if TYPE_CHECKING:
    from grpo_core.config.root import RunConfig

GROUP_ADVANTAGES = ("group_centered", "group_normalized", "leave_one_out")


def problems(config: RunConfig) -> list[str]:
    """Every impossible pair of settings, as text with its remedy; empty when the config can run."""
    return [str(problem) for problem in conflicts(config)]


def conflicts(config: RunConfig) -> list[Problem]:
    """The same as records: keys, text and remedy apart."""
    checks = (
        _groups,
        _lengths,
        _batch,
        _estimator,
        _kl,
        _penalty,
        _precision,
        _schedule,
        _data,
        _reward_parts,
    )
    return [problem for check in checks for problem in check(config)]


def _groups(config: RunConfig) -> Iterator[Problem]:
    train, size = config.train, config.rollout.group_size
    advantage, completions = config.algorithm.advantage, config.completions_per_step
    least = 2 if advantage in GROUP_ADVANTAGES else 1
    fitting = [n for n in range(least, completions + 1) if completions % n == 0]
    if size < least:
        reason = (
            "with one completion per prompt there is nothing to compare it with: the advantage is always 0"
        )
        sizes = f"set rollout.group_size to {_nearest(fitting, size)}, or " if fitting else ""
        yield _problem(
            "rollout.group_size, algorithm.advantage",
            f"{size} completion per prompt, but `{advantage}` needs a group of at least 2; {reason}",
            f"{sizes}algorithm.advantage to batch_baseline",
        )
    elif completions % size:
        step = size // gcd(size, train.minibatches)
        batches = [n for n in (train.batch_size // step * step, (train.batch_size // step + 1) * step) if n]
        yield _problem(
            "train.batch_size, train.minibatches, rollout.group_size",
            f"{train.batch_size} x {train.minibatches} = {completions} completions per step do not divide "
            f"into groups of {size}",
            f"set train.batch_size to {_nearest(batches, train.batch_size)}"
            + (f", or rollout.group_size to {_nearest(fitting, size)}" if fitting else ""),
        )


def _lengths(config: RunConfig) -> Iterator[Problem]:
    rollout, room = config.rollout, config.train.seq_length
    if rollout.max_new_tokens >= room:
        yield _problem(
            "rollout.max_new_tokens, train.seq_length",
            f"completions of {rollout.max_new_tokens} tokens leave no room for a prompt within {room}",
            f"set rollout.max_new_tokens below {room}, or train.seq_length to at least "
            f"{rollout.max_new_tokens} plus the longest prompt",
        )
    if rollout.min_new_tokens > rollout.max_new_tokens:
        yield _problem(
            "rollout.min_new_tokens, rollout.max_new_tokens",
            f"at least {rollout.min_new_tokens} but at most {rollout.max_new_tokens} tokens",
            f"set rollout.min_new_tokens to at most {rollout.max_new_tokens}",
        )


def _batch(config: RunConfig) -> Iterator[Problem]:
    train = config.train
    if train.gradient_accumulation > train.batch_size:
        yield _problem(
            "train.gradient_accumulation, train.batch_size",
            f"{train.batch_size} completions cannot make {train.gradient_accumulation} micro-batches",
            f"set train.gradient_accumulation to at most {train.batch_size}",
        )
    if train.share_prompts == "on" and config.model.gradient_checkpointing:
        yield _problem(
            "train.share_prompts, model.gradient_checkpointing",
            "a shared prompt is kept in a cache, which gradient checkpointing cannot recompute",
            "set train.share_prompts: auto, or model.gradient_checkpointing: false",
        )


def _estimator(config: RunConfig) -> Iterator[Problem]:
    algorithm = config.algorithm
    if algorithm.advantage == "gae" and algorithm.critic == "none":
        yield _problem(
            "algorithm.advantage, algorithm.critic",
            "`gae` needs a critic, and critic is none",
            "set algorithm.critic: shared, or algorithm.advantage: group_centered",
        )
    if algorithm.advantage != "gae" and algorithm.critic != "none":
        yield _problem(
            "algorithm.critic, algorithm.advantage",
            f"the `{algorithm.critic}` critic would be trained and never used by `{algorithm.advantage}`",
            "set algorithm.critic: none, or algorithm.advantage: gae",
        )
    if algorithm.policy_loss == "reinforce" and config.updates_per_step > 1:
        yield _problem(
            "algorithm.policy_loss, train.epochs, train.minibatches",
            f"`reinforce` has no ratio to correct for old samples, but {config.train.epochs} x "
            f"{config.train.minibatches} = {config.updates_per_step} updates use one rollout",
            "set train.epochs: 1 and train.minibatches: 1, or algorithm.policy_loss: clipped",
        )


def _kl(config: RunConfig) -> Iterator[Problem]:
    algorithm = config.algorithm
    if algorithm.kl == "loss" and algorithm.kl_estimator == "k1":
        yield _problem(
            "algorithm.kl_estimator, algorithm.kl",
            "as a loss, k1 has a gradient of zero on average",
            "set algorithm.kl_estimator to k2 (reverse KL) or k3 (forward KL)",
        )
    if algorithm.kl == "none" and algorithm.kl_controller != "fixed":
        yield _problem(
            "algorithm.kl_controller, algorithm.kl",
            f"the `{algorithm.kl_controller}` controller has no KL to steer, since kl is none",
            "set algorithm.kl: reward, or remove algorithm.kl_controller",
        )
    if algorithm.kl_controller == "adaptive" and algorithm.kl != "none" and config.rl.init_kl_coef == 0:
        yield _problem(
            "rl.init_kl_coef, algorithm.kl_controller",
            "the adaptive controller multiplies the coefficient, and 0 stays 0",
            "set rl.init_kl_coef above 0, e.g. 0.02, or algorithm.kl: none",
        )


def _penalty(config: RunConfig) -> Iterator[Problem]:
    if config.algorithm.penalty != "exact":
        return
    if config.model.attention != "eager":
        yield _problem(
            "algorithm.penalty, model.attention",
            f"`exact` differentiates twice, which `{config.model.attention}` attention cannot",
            "set model.attention: eager, or algorithm.penalty: finite_difference",
        )
    if config.train.compile:
        yield _problem(
            "algorithm.penalty, train.compile",
            "`exact` differentiates twice, which torch.compile cannot",
            "set train.compile: false, or algorithm.penalty: finite_difference",
        )


def _precision(config: RunConfig) -> Iterator[Problem]:
    model, low = config.model, config.model.dtype != "float32"
    if low and model.lora is None:
        penalty = config.algorithm.penalty != "none"
        lost = (
            "the penalty's small shift of the weights is lost"
            if penalty
            else "small updates round to nothing"
        )
        yield _problem(
            "model.dtype, algorithm.penalty" if penalty else "model.dtype, model.lora",
            f"all weights are trained and stored in {model.dtype}, where {lost}",
            "set model.dtype: float32 with train.autocast: bfloat16, or model.lora: {} to train adapters",
        )
    if model.attention == "flash_attention_2" and not low and config.train.autocast == "off":
        yield _problem(
            "model.attention, model.dtype",
            "flash_attention_2 computes in half precision only, and everything here is float32",
            "set train.autocast: bfloat16, or model.attention: sdpa",
        )


def _schedule(config: RunConfig) -> Iterator[Problem]:
    train, updates = config.train, config.train.steps * config.updates_per_step
    if train.warmup_steps >= updates:
        yield _problem(
            "train.warmup_steps, train.steps",
            f"{train.warmup_steps} optimizer steps of warm-up, but the run has only {updates}",
            f"set train.warmup_steps to at most {updates - 1}, or raise train.steps",
        )
    if config.run.stop_at_reward is not None and not (config.evaluation.every and config.evaluation.prompts):
        yield _problem(
            "run.stop_at_reward, evaluation.every, evaluation.prompts",
            "the held-out reward is not measured during training",
            "set evaluation.every, e.g. 10, and evaluation.prompts above 0",
        )


def _data(config: RunConfig) -> Iterator[Problem]:
    data, needed = config.data, config.prompts_per_step
    division = f"{config.completions_per_step} / {config.rollout.group_size} = {needed}"
    if isinstance(data, FileData | HubData) and data.system is not None and not data.chat:
        yield _problem(
            "data.chat, data.system",
            "a system message needs the chat template, and chat is false",
            "remove data.system, or set data.chat: true",
        )
    if isinstance(data, FileData | HubData):
        key, size = "data.limit", data.limit
    else:
        key, size = "data.size", data.size
    if size is not None and size < needed:
        yield _problem(
            f"{key}, train.batch_size, rollout.group_size",
            f"{size} prompts, but one step draws {division}",
            f"set {key} to at least {needed}, or lower train.batch_size",
        )


def _reward_parts(config: RunConfig) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, part in enumerate(config.reward.parts):
        at, name = f"reward.parts.{index}", part.name or part.kind
        if name in seen:
            yield _problem(
                f"{at}.name",
                f"`{name}` is already the name of part {seen[name]}",
                f"give part {index} its own, e.g. `name: {name}_{index}`",
            )
        seen.setdefault(name, index)
        if isinstance(part, RegexReward | FormatReward):
            yield from _pattern(part.pattern, f"{at}.pattern")
        if isinstance(part, LengthReward) and part.limit <= part.target:
            yield _problem(
                f"{at}.limit, {at}.target",
                f"the reward falls from {part.target} tokens to 0 at {part.limit}, which is not later",
                f"set limit above {part.target}, e.g. {2 * part.target}",
            )
        if isinstance(part, FunctionReward) and not all(part.path.rpartition(":")[::2]):
            yield _problem(
                f"{at}.path",
                f"{part.path!r} names no function",
                "write `module:function` or `file.py:function`",
            )
        if isinstance(part, ReasoningGymReward) and not isinstance(config.data, ReasoningGymData):
            yield _problem(
                f"{at}.kind, data.kind",
                f"the reasoning_gym verifier judges reasoning_gym tasks, and data is `{config.data.kind}`",
                "set data: {kind: reasoning_gym, task: chain_sum}, or use reward: number",
            )


def _pattern(pattern: str, key: str) -> Iterator[Problem]:
    try:
        re.compile(pattern, re.DOTALL)
    except re.error as error:
        yield _problem(
            key, f"{pattern!r} is no regular expression: {error}", "correct it; `\\` escapes ( ) [ ] . * + ?"
        )


def _problem(keys: str, text: str, fix: str) -> Problem:
    return Problem(tuple(keys.split(", ")), text, fix)


def _nearest(values: Sequence[int], wanted: int) -> str:
    """The one or two values around the wanted one: `8 or 16`."""
    below, above = [n for n in values if n < wanted][-1:], [n for n in values if n >= wanted][:1]
    return " or ".join(map(str, below + above))

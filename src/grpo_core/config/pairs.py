"""Settings that cannot go together. Each message names the keys, the numbers, and the nearest way out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd
from typing import TYPE_CHECKING

from grpo_core.config.method_pairs import method_conflicts
from grpo_core.config.problem import Problem, conflict
from grpo_core.config.task_pairs import task_conflicts

if TYPE_CHECKING:
    from grpo_core.config.root import RunConfig

GROUP_ADVANTAGES = ("group_centered", "group_normalized", "leave_one_out")


def problems(config: RunConfig) -> list[str]:
    """Every impossible pair of settings, as text with its remedy; empty when the config can run."""
    return [str(problem) for problem in conflicts(config)]


def conflicts(config: RunConfig) -> list[Problem]:
    """The same as records: keys, text and remedy apart."""
    checks = (_groups, _lengths, _batch, _schedule, method_conflicts, task_conflicts)
    return [problem for check in checks for problem in check(config)]


def _groups(config: RunConfig) -> Iterator[Problem]:
    train, size = config.train, config.rollout.group_size
    advantage, completions = config.algorithm.advantage, config.completions_per_step
    least = 2 if advantage in GROUP_ADVANTAGES else 1
    fitting = [n for n in range(least, completions + 1) if completions % n == 0]
    if size < least:
        reason = "with one completion per prompt there is nothing to compare it with: the advantage is always 0"
        sizes = f"set rollout.group_size to {_nearest(fitting, size)}, or " if fitting else "set "
        yield conflict(
            "rollout.group_size, algorithm.advantage",
            f"{size} completion per prompt, but `{advantage}` needs a group of at least 2; {reason}",
            f"{sizes}algorithm.advantage to batch_baseline",
        )
    elif completions % size:
        step = size // gcd(size, train.minibatches)
        batches = [n for n in (train.batch_size // step * step, (train.batch_size // step + 1) * step) if n]
        yield conflict(
            "train.batch_size, train.minibatches, rollout.group_size",
            f"{train.batch_size} x {train.minibatches} = {completions} completions per step do not divide "
            f"into groups of {size}",
            f"set train.batch_size to {_nearest(batches, train.batch_size)}"
            + (f", or rollout.group_size to {_nearest(fitting, size)}" if fitting else ""),
        )


def _lengths(config: RunConfig) -> Iterator[Problem]:
    rollout, room = config.rollout, config.train.seq_length
    if rollout.max_new_tokens >= room:
        yield conflict(
            "rollout.max_new_tokens, train.seq_length",
            f"completions of {rollout.max_new_tokens} tokens leave no room for a prompt within {room}",
            f"set rollout.max_new_tokens below {room}, or train.seq_length to at least "
            f"{rollout.max_new_tokens} plus the longest prompt",
        )
    if rollout.min_new_tokens > rollout.max_new_tokens:
        yield conflict(
            "rollout.min_new_tokens, rollout.max_new_tokens",
            f"at least {rollout.min_new_tokens} but at most {rollout.max_new_tokens} tokens",
            f"set rollout.min_new_tokens to at most {rollout.max_new_tokens}",
        )


def _batch(config: RunConfig) -> Iterator[Problem]:
    train = config.train
    if train.gradient_accumulation > train.batch_size:
        yield conflict(
            "train.gradient_accumulation, train.batch_size",
            f"{train.batch_size} completions cannot make {train.gradient_accumulation} micro-batches",
            f"set train.gradient_accumulation to at most {train.batch_size}",
        )
    if train.share_prompts == "on" and config.model.gradient_checkpointing:
        yield conflict(
            "train.share_prompts, model.gradient_checkpointing",
            "a shared prompt is kept in a cache, which gradient checkpointing cannot recompute",
            "set train.share_prompts: auto, or model.gradient_checkpointing: false",
        )


def _schedule(config: RunConfig) -> Iterator[Problem]:
    train, updates = config.train, config.train.steps * config.updates_per_step
    if train.warmup_steps >= updates:
        yield conflict(
            "train.warmup_steps, train.steps",
            f"{train.warmup_steps} optimizer steps of warm-up, but the run has only {updates}",
            f"set train.warmup_steps to at most {updates - 1}, or raise train.steps",
        )
    if config.run.stop_at_reward is not None and not (config.evaluation.every and config.evaluation.prompts):
        yield conflict(
            "run.stop_at_reward, evaluation.every, evaluation.prompts",
            "the held-out reward is not measured during training",
            "set evaluation.every, e.g. 10, and evaluation.prompts above 0",
        )


def _nearest(values: Sequence[int], wanted: int) -> str:
    """The one or two values around the wanted one: `8 or 16`."""
    below, above = [n for n in values if n < wanted][-1:], [n for n in values if n >= wanted][:1]
    return " or ".join(map(str, below + above))

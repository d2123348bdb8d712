"""Data and rewards that do not fit each other, or themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo_core.config.data import FileData, HubData, ReasoningGymData
from grpo_core.config.problem import Problem, conflict
from grpo_core.config.reward import (
    FormatReward,
    FunctionReward,
    LengthReward,
    ReasoningGymReward,
    RegexReward,
)

if TYPE_CHECKING:
    from grpo_core.config.root import RunConfig


def task_conflicts(config: RunConfig) -> Iterator[Problem]:
    """What is wrong within `data` and `reward`, and between them."""
    yield from _data(config)
    yield from _reward_parts(config)


def _data(config: RunConfig) -> Iterator[Problem]:
    data, needed = config.data, config.prompts_per_step
    division = f"{config.completions_per_step} / {config.rollout.group_size} = {needed}"
    if isinstance(data, FileData | HubData) and data.system is not None and not data.chat:
        yield conflict(
            "data.chat, data.system",
            "a system message needs the chat template, and chat is false",
            "remove data.system, or set data.chat: true",
        )
    if isinstance(data, FileData | HubData):
        key, size = "data.limit", data.limit
    else:
        key, size = "data.size", data.size
    if size is not None and size < needed:
        yield conflict(
            f"{key}, train.batch_size, rollout.group_size",
            f"there are {size} prompts, but one step draws {division}",
            f"set {key} to at least {needed}, or lower train.batch_size",
        )


def _reward_parts(config: RunConfig) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, part in enumerate(config.reward.parts):
        at, name = f"reward.parts.{index}", part.name or part.kind
        if name in seen:
            yield conflict(
                f"{at}.name",
                f"`{name}` is already the name of part {seen[name]}",
                f"give part {index} its own, e.g. `name: {name}_{index}`",
            )
        seen.setdefault(name, index)
        if isinstance(part, RegexReward | FormatReward):
            yield from _pattern(part.pattern, f"{at}.pattern")
        if isinstance(part, LengthReward) and part.limit <= part.target:
            yield conflict(
                f"{at}.limit, {at}.target",
                f"the reward falls from {part.target} tokens to 0 at {part.limit}, which is not later",
                f"set limit above {part.target}, e.g. {2 * part.target}",
            )
        if isinstance(part, FunctionReward) and not all(part.path.rpartition(":")[::2]):
            yield conflict(
                f"{at}.path",
                f"{part.path!r} names no function",
                "write `module:function` or `file.py:function`",
            )
        if isinstance(part, ReasoningGymReward) and not isinstance(config.data, ReasoningGymData):
            yield conflict(
                f"{at}.kind, data.kind",
                f"the reasoning_gym verifier judges reasoning_gym tasks, and data is `{config.data.kind}`",
                "set data: {kind: reasoning_gym, task: chain_sum}, or use reward: number",
            )


def _pattern(pattern: str, key: str) -> Iterator[Problem]:
    try:
        re.compile(pattern, re.DOTALL)
    except re.error as error:
        yield conflict(
            key, f"{pattern!r} is no regular expression: {error}", "correct it; `\\` escapes ( ) [ ] . * + ?"
        )

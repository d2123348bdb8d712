"""From `reward:` in the config to a reward."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from grpo_core.config.reward import (
    ChoiceReward,
    ExactReward,
    FormatReward,
    FunctionReward,
    LengthReward,
    MathReward,
    ModelReward,
    NumberReward,
    ReasoningGymReward,
    RegexReward,
    RewardConfig,
)
from grpo_core.rewards import verifiable
from grpo_core.rewards.reasoning import reasoning_values
from grpo_core.rewards.reward import NamedPart, PartValues, Reward, weighted_sum
from grpo_core.rewards.user_function import function_values, imported

NEEDS_ANSWER = (MathReward, NumberReward, ExactReward, ChoiceReward)


def build_reward(config: RewardConfig, *, columns: Collection[str] | None = None) -> Reward:
    """The weighted sum that the config describes.

    Raises RewardError for a function or model that is not there, and, when the names of the data's `columns` are given,
    for a function that asks for something else; without them that shows at the first call.
    """
    parts = [
        NamedPart(name=part.name or part.kind, weight=part.weight, values=_values(part, columns))
        for part in config.parts
    ]
    return weighted_sum(parts)


def from_callable(
    function: Callable[..., Any], *, batched: bool = False, columns: Collection[str] | None = None
) -> Reward:
    """A Python function as the whole reward; its arguments are filled by name, as for `kind: function`."""
    name = getattr(function, "__name__", "reward")
    values = function_values(name, function, batched=batched, options={}, columns=columns)
    return weighted_sum([NamedPart(name=name, weight=1.0, values=values)])


def needs_answer(config: RewardConfig) -> bool:
    """Whether a part compares with the reference answer, so that every row must have one."""
    return any(
        isinstance(part, NEEDS_ANSWER) or (isinstance(part, RegexReward) and "(?P<answer>" in part.pattern)
        for part in config.parts
    )


def _values(part: Any, columns: Collection[str] | None) -> PartValues:
    if isinstance(part, FunctionReward):
        function = imported(part.path)
        return function_values(
            part.name or part.path.rpartition(":")[2],
            function,
            batched=part.batched,
            options=part.options,
            columns=columns,
            path=part.path,
            timeout=part.timeout,
        )
    if isinstance(part, ModelReward):
        from grpo_core.rewards.reward_model import RewardModel

        return RewardModel(part.path, batch_size=part.batch_size, device=part.device)
    makers: dict[type, Callable[[Any], PartValues]] = {
        MathReward: verifiable.math,
        NumberReward: verifiable.number,
        ExactReward: verifiable.exact,
        RegexReward: verifiable.regex,
        ChoiceReward: verifiable.choice,
        FormatReward: verifiable.format_,
        LengthReward: verifiable.length,
        ReasoningGymReward: reasoning_values,
    }
    return makers[type(part)](part)

"""The reward protocol, the weighted sum, and the rules for what a part may return."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.errors import GrpoCoreError, RewardError
from grpo_core.records import Rollout, Score

Reward = Callable[[Sequence[Rollout]], Sequence[Score]]
PartValues = Callable[[Sequence[Rollout]], Sequence[Any]]
"""One number for each rollout; None, NaN or infinity mean that there is no reward."""


@dataclass(frozen=True, kw_only=True)
class NamedPart:
    """One part of a weighted sum."""

    name: str
    weight: float
    values: PartValues


class Failed(float):
    """Not a number, and the reason why: what a part returns for a sample that it could not judge."""

    reason: str

    def __new__(cls, reason: str) -> Failed:
        made = super().__new__(cls, math.nan)
        made.reason = reason
        return made


def weighted_sum(parts: Sequence[NamedPart]) -> Reward:
    """sum of weight x value over the parts; `Score.parts` keeps each value without its weight.

    A sample for which any part has no finite number gets a declared failure and never 0; a part that raises as a whole
    fails all its samples. Raises RewardError when a part breaks its contract (a wrong count, or something that is no
    number), and at once when two parts have the same name.
    """
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise RewardError(f"two of the reward's parts have the same name: {names}", fix="set `name` on one of them")

    def reward(rollouts: Sequence[Rollout]) -> list[Score]:
        columns = [_column(part, rollouts) for part in parts]
        return [_score(parts, [column[row] for column in columns]) for row in range(len(rollouts))]

    return reward


def each(judge: Callable[[Rollout], Any]) -> PartValues:
    """A judge of one rollout as a judge of many: what it raises fails that rollout alone."""

    def one(rollout: Rollout) -> Any:
        try:
            return judge(rollout)
        except GrpoCoreError:  # a fault of the data or of the settings, not of the sample
            raise
        except Exception as error:
            return failed(error)

    return lambda rollouts: [one(rollout) for rollout in rollouts]


def failed(error: Exception) -> Failed:
    """The declared failure that an exception stands for."""
    return Failed(f"{type(error).__name__}: {error}")


def _column(part: NamedPart, rollouts: Sequence[Rollout]) -> list[float]:
    try:
        return checked(part.name, part.values(rollouts), len(rollouts))
    except GrpoCoreError:
        raise
    except Exception as error:
        return [failed(error) for _ in rollouts]


def _score(parts: Sequence[NamedPart], values: Sequence[float]) -> Score:
    by_name = {part.name: float(value) for part, value in zip(parts, values, strict=True)}
    for part, value in zip(parts, values, strict=True):
        if not math.isfinite(value):
            reason = value.reason if isinstance(value, Failed) else f"returned {float(value)}"
            return Score(value=math.nan, parts=by_name, failure=f"{part.name}: {reason}")
    return Score(value=sum(part.weight * by_name[part.name] for part in parts), parts=by_name)


def checked(name: str, values: Any, expected: int) -> list[float]:
    """One float for each completion; None becomes a failure. Raises RewardError naming the part and the counts."""
    fix = f"return {expected} numbers, one for each completion, in their order"
    shape = getattr(values, "shape", None)
    if isinstance(values, (str, bytes, dict, set, frozenset)) or not hasattr(values, "__iter__") or shape == ():
        raise RewardError(f"reward {name!r} returned one {type(values).__name__} for {expected} completions", fix=fix)
    listed = list(values)
    if len(listed) != expected:
        raise RewardError(f"reward {name!r} returned {len(listed)} values for {expected} completions", fix=fix)
    return [as_number(name, value) for value in listed]


def as_number(name: str, value: Any) -> float:
    """A float, or a declared failure for None. Raises RewardError for text, lists and the like."""
    if value is None:
        return Failed("returned None")
    if isinstance(value, float):
        return value
    if isinstance(value, (str, bytes)):
        raise RewardError(f"reward {name!r} returned the text {value!r}", fix="return a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise RewardError(f"reward {name!r} returned a {type(value).__name__}", fix="return a number") from None

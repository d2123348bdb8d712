"""Rewards that check an answer or a shape: no model, no judge."""

from __future__ import annotations

import re
from collections.abc import Callable

from grpo_core.config.reward import (
    ChoiceReward,
    ExactReward,
    FormatReward,
    LengthReward,
    MathReward,
    NumberReward,
    RegexReward,
)
from grpo_core.errors import RewardError
from grpo_core.grading.choices import chosen
from grpo_core.grading.math_answers import grade
from grpo_core.grading.numbers import parse_number, take_number
from grpo_core.grading.worker import Worker
from grpo_core.records import Rollout
from grpo_core.rewards.reward import PartValues, each


def reference(rollout: Rollout) -> str:
    """The reference answer. Raises RewardError naming the prompt that has none."""
    if rollout.prompt.answer is None:
        raise RewardError(
            f"prompt {rollout.prompt.id} has no answer to compare with",
            fix="name the column in data.columns.answer, or use a reward that needs none",
        )
    return rollout.prompt.answer


def math(config: MathReward) -> PartValues:
    """1 if the final answer equals the reference exactly (numbers, fractions, LaTeX)."""
    return each(lambda r: float(grade(r.text, reference(r), timeout=config.timeout)))


def number(config: NumberReward) -> PartValues:
    """1 if the chosen number equals the reference number. Raises RewardError for a reference that is no number."""

    def judge(rollout: Rollout) -> float:
        wanted = parse_number(reference(rollout))
        if wanted is None:
            raise RewardError(
                f"the answer of prompt {rollout.prompt.id} is no number: {rollout.prompt.answer!r}",
                fix="mend the row, or use reward: math or exact",
            )
        return float(take_number(rollout.text, config.take) == wanted)

    return each(judge)


def exact(config: ExactReward) -> PartValues:
    """1 if the stripped completion equals the stripped reference."""

    def plain(text: str) -> str:
        text = text.strip(config.strip)
        return text.casefold() if config.ignore_case else text

    return each(lambda r: float(plain(r.text) == plain(reference(r))))


def choice(config: ChoiceReward) -> PartValues:
    """1 if the last stated choice is the reference label. Raises RewardError for a reference that is none of them."""
    spelt = {label.casefold(): label for label in config.choices}

    def judge(rollout: Rollout) -> float:
        wanted = reference(rollout).strip(" \n().")
        if wanted.casefold() not in spelt:
            raise RewardError(
                f"the answer of prompt {rollout.prompt.id} is none of {', '.join(config.choices)}: {wanted!r}",
                fix="mend the row, or list its labels under reward.choices",
            )
        return float(chosen(rollout.text, config.choices) == spelt[wanted.casefold()])

    return each(judge)


def length(config: LengthReward) -> PartValues:
    """1 up to `target` tokens, falling in a straight line to 0 at `limit`."""
    span = config.limit - config.target
    return each(lambda r: min(1.0, max(0.0, (config.limit - len(r.completion.token_ids)) / span)))


def format_(config: FormatReward) -> PartValues:
    """1 if the whole completion matches the pattern."""
    return _searching(config.pattern, 2.0, lambda rollout, found: float(found is not None), whole=True)


def regex(config: RegexReward) -> PartValues:
    """1 if the pattern is found and its group `answer`, if it has one, equals the reference."""
    has_answer = "answer" in re.compile(config.pattern).groupindex

    def judge(rollout: Rollout, found: dict[str, str | None] | None) -> float:
        if found is None or not has_answer:
            return float(found is not None)
        return float((found["answer"] or "").strip() == reference(rollout).strip())

    return _searching(config.pattern, config.timeout, judge, whole=False)


def _searching(
    pattern: str, timeout: float, judge: Callable[[Rollout, dict[str, str | None] | None], float], *, whole: bool
) -> PartValues:
    """Search each completion in a child process, since a pattern can take exponential time; late is a failure."""
    worker = Worker()
    target = "grpo_core.grading.patterns:search"
    return each(lambda r: judge(r, worker.call(target, (pattern, r.text, whole), timeout=timeout)))

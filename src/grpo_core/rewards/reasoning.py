"""The verifiers of reasoning-gym, for prompts that its tasks made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grpo_core.config.reward import ReasoningGymReward
from grpo_core.errors import RewardError
from grpo_core.grading.extract import final_answer
from grpo_core.records import Rollout
from grpo_core.rewards.reward import Failed


def reasoning_values(config: ReasoningGymReward) -> Callable[[Sequence[Rollout]], Sequence[Any]]:
    """The task's own score in [0, 1]. Raises RewardError where reasoning-gym is not installed or the row is no item."""
    try:
        from reasoning_gym import get_score_answer_fn
    except ImportError:
        raise RewardError(
            "reward reasoning_gym: the package reasoning-gym is not installed", fix='pip install "grpo-core[tasks]"'
        ) from None

    def one(rollout: Rollout) -> float:
        columns = rollout.prompt.columns
        if "reasoning_gym_entry" not in columns:
            raise RewardError(
                f"prompt {rollout.prompt.id} is no reasoning-gym item",
                fix="use data.kind: reasoning_gym with this reward",
            )
        score = get_score_answer_fn(columns["reasoning_gym_task"])
        try:
            return float(score(answer=taken(rollout.text, config.take), entry=columns["reasoning_gym_entry"]))
        except Exception as error:  # a task's own verifier, which may not expect what a model says
            return Failed(f"{type(error).__name__}: {error}")

    return lambda rollouts: [one(rollout) for rollout in rollouts]


def taken(text: str, take: str) -> str | None:
    """What is handed to the verifier: all of it stripped, its first line, or the final answer."""
    stripped = text.strip()
    if take == "first_line":
        return stripped.split("\n")[0].strip()
    return final_answer(stripped) if take == "boxed" else stripped

"""The verifiers of reasoning-gym, for prompts that its tasks made."""

from __future__ import annotations

import importlib.util
from typing import Any

from grpo_core.config.reward import ReasoningGymReward
from grpo_core.errors import RewardError
from grpo_core.grading.extract import final_answer
from grpo_core.grading.worker import Worker
from grpo_core.records import Rollout
from grpo_core.rewards.reward import PartValues, each

LIMIT = 10.0
"""Seconds for one verification; what takes longer is ended and is a failure."""


def reasoning_values(config: ReasoningGymReward) -> PartValues:
    """The task's own score in [0, 1], taken in a child process.

    Raises RewardError where reasoning-gym is not installed or the row is no item of one of its tasks.
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        raise RewardError(
            "reward reasoning_gym: the package reasoning-gym is not installed", fix='pip install "grpo-core[tasks]"'
        )
    worker = Worker()

    def one(rollout: Rollout) -> Any:
        columns = rollout.prompt.columns
        if "reasoning_gym_entry" not in columns:
            raise RewardError(
                f"prompt {rollout.prompt.id} is no reasoning-gym item",
                fix="use data.kind: reasoning_gym with this reward",
            )
        task, options = columns["reasoning_gym_task"], columns.get("reasoning_gym_options", {})
        arguments = (task, dict(options), taken(rollout.text, config.take), columns["reasoning_gym_entry"])
        return worker.call("grpo_core.grading.task_verifiers:verify", arguments, timeout=LIMIT)

    return each(one)


def taken(text: str, take: str) -> str | None:
    """What is handed to the verifier: all of it stripped, its first line, or the final answer."""
    stripped = text.strip()
    if take == "first_line":
        return stripped.split("\n")[0].strip()
    return final_answer(stripped) if take == "boxed" else stripped

"""Rollouts made by hand for reward tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo_core.config.load import config_from_mapping
from grpo_core.records import Completion, Prompt, Rollout, Sampling
from grpo_core.rewards.build import build_reward
from grpo_core.rewards.reward import Reward


def rollout(text: str, *, answer: str | None = None, tokens: int = 3, name: str = "p", **columns: Any) -> Rollout:
    """A completion with as many tokens as asked."""
    ids, zeros = tuple(range(tokens)), (0.0,) * tokens
    completion = Completion(prompt_id=name, token_ids=ids, logprobs=zeros, policy_logprobs=zeros, finish_reason="eos")
    return Rollout(
        prompt=Prompt(id=name, text="ask", answer=answer, columns=columns),
        group_id=0,
        completion=completion,
        text=text,
        sampling=Sampling(max_new_tokens=8),
        policy_version=0,
    )


def reward_of(*parts: dict[str, Any], data: dict[str, Any] | None = None) -> Reward:
    """The reward that a config with these parts builds."""
    data = data or {"kind": "arithmetic"}
    return build_reward(config_from_mapping({"data": data, "reward": {"parts": list(parts)}}).reward)


def values(reward: Reward, rollouts: Sequence[Rollout]) -> list[float]:
    """The values, with no failure among them."""
    scores = reward(rollouts)
    assert all(score.failure is None for score in scores), scores
    return [score.value for score in scores]

"""Rewards of your own, named by file path in custom_reward.yaml.

A reward function asks for what it needs by the names of its arguments: completion, prompt, answer, rollout, or any
column of the data. It returns a number. With `batched: true` it is called once for all completions, with lists.
"""

import re


def closeness(completion: str, answer: str) -> float:
    """1 for the right number on the first line, falling to 0 with the distance; 0 without a number."""
    numbers = re.findall(r"-?\d+", completion.strip().split("\n")[0])
    if not numbers:
        return 0.0
    return 1 / (1 + abs(int(numbers[-1][:9]) - int(answer)))


def brevity(completions: list[str], limit: int) -> list[float]:
    """1 for an empty completion, falling to 0 at `limit` characters. `limit` comes from `options` in the YAML file."""
    return [max(0.0, 1 - len(completion) / limit) for completion in completions]

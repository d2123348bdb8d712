"""docs/rewards.md shows every kind, and its functions are worth what they seem to be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from made_rollouts import rollout, values

from grpo_core.config.reward import RewardConfig, RewardPart
from grpo_core.rewards.build import from_callable

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rewards.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="the docs are not beside the tests")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_every_kind_has_an_example_and_a_row() -> None:
    union, _ = get_args(RewardPart)
    kinds = {kind.model_fields["kind"].default for kind in get_args(union)}
    shown = {part.kind for text in blocks("yaml") for part in RewardConfig(**{"parts": parts_of(text)}).parts}
    assert shown == kinds
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)) == kinds


def parts_of(text: str) -> Any:
    reward = yaml.safe_load(text)["reward"]
    if isinstance(reward, dict) and "parts" in reward:
        return reward["parts"]
    return reward if isinstance(reward, list) else [reward]


def test_the_functions_by_hand() -> None:
    found: dict[str, Any] = {}
    for text in blocks("python"):
        if "def " in text:
            assert len(text.splitlines()) < 20
            exec(compile(text, PAGE.name, "exec"), found)
    rows = [rollout("It is Paris" + "." * 89, answer="paris"), rollout("Paris", answer="Rome", difficulty=3.0)]
    assert values(from_callable(found["brevity"]), rows) == [0.5, 0.0]
    same = [rollout("a"), rollout("b"), rollout("a")]
    assert values(from_callable(found["novelty"], batched=True), same) == [0.5, 1.0, 0.5]

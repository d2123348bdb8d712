"""The verifiers of reasoning-gym. Several of them evaluate what the model wrote, so none runs in this process."""

from __future__ import annotations

import time
from typing import Any

import pytest
from made_rollouts import reward_of, rollout, values

from grpo_core.records import Rollout
from grpo_core.rewards import reasoning
from grpo_core.rewards.reward import Reward

pytest.importorskip("reasoning_gym", reason="the extra `tasks` is not installed")

SPIRAL = {"question": "?", "answer": "1 2 4 3", "metadata": {}}


def item(text: str, task: str, **columns: Any) -> Rollout:
    return rollout(text, reasoning_gym_task=task, reasoning_gym_entry=SPIRAL, **columns)


@pytest.fixture(scope="module")
def verifier() -> Reward:
    made = reward_of({"kind": "reasoning_gym"}, data={"kind": "reasoning_gym", "task": "spiral_matrix"})
    values(made, [item("1 2 4 3", "spiral_matrix")])
    return made


def test_kf35_an_answer_that_ends_or_hangs_the_verifier_is_a_failure_of_its_own(
    verifier: Reward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reasoning, "LIMIT", 1.0)
    texts = ["__import__('os')._exit(1)", "1 2 4 3", "[9**9**9**9]", "[1, 2, 4, 3]"]
    began = time.monotonic()
    # A new child imports the library again, which is not part of the limit.
    scores = verifier([item(text, "spiral_matrix") for text in texts])
    assert time.monotonic() - began < 30
    assert "ended its process" in (scores[0].failure or "")
    assert "more than 1 s" in (scores[2].failure or "")
    assert [scores[1].value, scores[3].value] == [1.0, 0.1]


def test_a_verifier_gets_the_options_its_item_was_made_with(verifier: Reward) -> None:
    """9 is within the default bound of 10, and beyond the bound of 6 that this item was made with."""
    narrow = {"reasoning_gym_options": {"max_value": 6}}
    assert values(verifier, [item("9+8+4+3", "puzzle24", **narrow), item("9+8+4+3", "puzzle24")]) == [0.01, 1.0]


def test_what_is_handed_to_the_verifier() -> None:
    text = "\n 4 \nbecause \\boxed{5}\n"
    assert [reasoning.taken(text, take) for take in ("all", "first_line", "boxed")] == [text.strip(), "4", "5"]
    assert reasoning.taken("no answer", "boxed") is None

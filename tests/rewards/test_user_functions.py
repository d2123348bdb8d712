"""What a user's function is called with, and what is refused before the first call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_rollouts import rollout, values

from grpo_core.config.load import config_from_mapping
from grpo_core.errors import RewardError
from grpo_core.rewards.build import build_reward, from_callable
from grpo_core.rewards.reward import Reward


def built(path: str, columns: tuple[str, ...] = (), **keys: Any) -> Reward:
    part = {"kind": "function", "path": path, **keys}
    return build_reward(config_from_mapping({"data": {"kind": "arithmetic"}, "reward": part}).reward, columns=columns)


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(
        "def closeness(completion, answer, level):\n    return level * (completion == answer)\n"
        "def brevity(completions, limit=10):\n    return [1 - len(text) / limit for text in completions]\n"
        "def whole(rollout):\n    return len(rollout.completion.token_ids)\n"
    )
    return str(tmp_path / "mine.py")


def test_an_optional_argument_is_filled_where_the_row_has_the_column() -> None:
    def judge(completion: str, level: float = 0.5) -> float:
        return level

    assert values(from_callable(judge), [rollout("a", level=3), rollout("b")]) == [3.0, 0.5]

    def batch(completions: list[str], level: list[float] | None = None) -> list[float]:
        return level or [0.25] * len(completions)

    some, every = [rollout("a", level=3), rollout("b")], [rollout("a", level=3), rollout("b", level=4)]
    assert values(from_callable(batch, batched=True), some) == [0.25, 0.25]
    assert values(from_callable(batch, batched=True), every) == [3.0, 4.0]


def test_a_function_with_a_rest_gets_every_field_and_column() -> None:
    def judge(completions: list[str], **rest: Any) -> list[float]:
        assert set(rest) == {"prompts", "answers", "rollouts", "level"}
        return [n + (c == a) for n, c, a in zip(rest["level"], completions, rest["answers"], strict=True)]

    rows = [rollout("a", answer="a", level=3), rollout("b", answer="a", level=5)]
    assert values(from_callable(judge, batched=True), rows) == [4.0, 5.0]


def test_no_rollouts_give_no_scores() -> None:
    assert from_callable(lambda completions: [], batched=True)([]) == []


@pytest.mark.parametrize(
    ("function", "keys", "said", "fix"),
    [
        ("closeness", {}, "'level', which the data does not have", "did you mean lvel?"),
        ("closeness", {"batched": True, "options": {"level": 1}}, "'completion', which the data", "completions?"),
        ("brevity", {}, "'completions', which the data does not have", "did you mean completion?"),
        ("brevity", {"batched": True, "options": {"limt": 3}}, "gets the option 'limt'", "did you mean limit?"),
        ("brevty", {}, "did you mean brevity?", "module:function"),
    ],
)
def test_what_cannot_be_called_is_refused_when_built(
    function: str, keys: dict[str, Any], said: str, fix: str, file: str
) -> None:
    with pytest.raises(RewardError) as caught:
        built(f"{file}:{function}", ("lvel",), **keys)
    assert said in caught.value.problem
    assert fix in caught.value.fix


def test_a_callable_without_names_is_refused() -> None:
    with pytest.raises(RewardError, match="by position only") as caught:
        from_callable(len)
    assert "def reward(completion, answer)" in caught.value.fix


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_in_the_child_and_beside_it_a_function_is_worth_the_same(timeout: float | None, file: str) -> None:
    rows = [rollout("yes", answer="yes", level=3, tokens=4), rollout("no", answer="yes", level=5, tokens=6)]
    keys = {} if timeout is None else {"timeout": timeout}
    assert values(built(f"{file}:closeness", ("level",), **keys), rows) == [3.0, 0.0]
    assert values(built(f"{file}:brevity", batched=True, options={"limit": 4}, **keys), rows) == [0.25, 0.5]
    assert values(built(f"{file}:whole", **keys), rows) == [4.0, 6.0]


def test_kf33_the_error_names_the_function(file: str) -> None:
    Path(file).write_text("def wordy(completion):\n    return 'good'\ndef short(completions):\n    return [1.0]\n")
    with pytest.raises(RewardError, match="'wordy' returned the text 'good'"):
        built(f"{file}:wordy")([rollout("a")])
    with pytest.raises(RewardError, match="'short' returned 1 values for 2 completions"):
        built(f"{file}:short", batched=True)([rollout("a"), rollout("b")])


def test_kf34_a_raising_batch_fails_as_a_whole_and_says_why() -> None:
    def judge(completions: list[str]) -> list[float]:
        raise ConnectionError("429")

    scores = from_callable(judge, batched=True)([rollout("a"), rollout("b")])
    assert [score.failure for score in scores] == ["judge: ConnectionError: 429"] * 2
    assert all(score.value != score.value for score in scores)

"""What each kind of reward is worth, how parts add up, and what is a failure."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
from made_rollouts import reward_of, rollout, values

from grpo_core.config.load import config_from_mapping
from grpo_core.errors import RewardError
from grpo_core.rewards.build import from_callable, needs_answer

KINDS: list[tuple[dict[str, Any], list[tuple[str, str, float]]]] = [
    ({"kind": "math"}, [(r"so \boxed{\frac{2}{4}}", "1/2", 1), (r"\boxed{2}", "2/3", 0), ("9,500", "9500", 1)]),
    ({"kind": "number", "take": "first_line"}, [("3 + 4 = 7\n8", "7", 1), ("seven", "7", 0), ("7 or 8", "7", 0)]),
    ({"kind": "number", "take": "first"}, [("7 or 8", "7", 1), ("it is 29.00", "29", 1)]),
    ({"kind": "number"}, [("3 + 4\n= 7", "7", 1), ("7 then 8", "7", 0)]),
    ({"kind": "exact"}, [(" Paris.\n", "paris", 1), ("in Paris", "Paris", 0)]),
    ({"kind": "exact", "ignore_case": False}, [("paris", "Paris", 0), ("Paris", "Paris", 1)]),
    ({"kind": "regex", "pattern": "colou?r"}, [("the color", "-", 1), ("the hue", "-", 0)]),
    ({"kind": "regex", "pattern": r"<a>(?P<answer>\d+)</a>"}, [("<a>42</a>", "42", 1), ("<a>41</a>", "42", 0)]),
    ({"kind": "choice"}, [("Not A. The answer is (B)", "B", 1), ("A cat sat", "A", 0)]),
    ({"kind": "format"}, [("<think>x</think> <answer>1</answer>", "-", 1), ("<answer>1</answer>", "-", 0)]),
]


@pytest.mark.parametrize(("part", "rows"), KINDS, ids=lambda item: item.get("kind") if isinstance(item, dict) else "")
def test_each_kind(part: dict[str, Any], rows: list[tuple[str, str, float]]) -> None:
    got = values(reward_of(part), [rollout(text, answer=answer) for text, answer, _ in rows])
    assert got == [wanted for _, _, wanted in rows]


def test_length_falls_in_a_straight_line() -> None:
    reward = reward_of({"kind": "length", "target": 4, "limit": 8})
    assert values(reward, [rollout("x", tokens=n) for n in (1, 4, 5, 6, 8, 20)]) == [1, 1, 0.75, 0.5, 0, 0]


def test_parts_are_kept_without_their_weights() -> None:
    reward = reward_of(
        {"kind": "exact", "weight": 2.0}, {"kind": "length", "target": 2, "limit": 6, "weight": -0.5, "name": "brief"}
    )
    score = reward([rollout("yes", answer="yes", tokens=4)])[0]
    assert score.parts == {"exact": 1.0, "brief": 0.5}
    assert score.value == 2.0 * 1 - 0.5 * 0.5


def test_kf32_a_missing_or_infinite_reward_is_a_failure_and_never_zero() -> None:
    given = iter([1, None, math.nan, math.inf, 0])
    scores = from_callable(lambda completion: next(given))([rollout(str(n)) for n in range(5)])
    assert [score.failure is None for score in scores] == [True, False, False, False, True]
    assert [score.value for score in scores][::4] == [1, 0]
    assert all(math.isnan(score.value) for score in scores[1:4])
    assert "None" in (scores[1].failure or "")
    assert "inf" in (scores[3].failure or "")


@pytest.mark.parametrize("returned", [1.0, [1.0], [1.0] * 3, [1.0] * 5, {"a": 1}, "1111", ["1"] * 4, [[1]] * 4])
def test_kf33_a_batched_reward_must_return_one_number_for_each(returned: Any) -> None:
    def judge(completions: list[str]) -> Any:
        return returned

    with pytest.raises(RewardError, match="judge") as caught:
        from_callable(judge, batched=True)([rollout(str(n)) for n in range(4)])
    if isinstance(returned, list) and len(returned) != 4:
        assert f"{len(returned)} values for 4 completions" in str(caught.value)


def test_kf34_one_raising_sample_does_not_take_the_others_along() -> None:
    def judge(completion: str) -> float:
        return 1 / int(completion)

    scores = from_callable(judge)([rollout(text) for text in ("1", "0", "2", "x")])
    assert [score.failure and score.failure.split(":")[1].strip() for score in scores] == [
        None,
        "ZeroDivisionError",
        None,
        "ValueError",
    ]
    assert [scores[0].value, scores[2].value] == [1.0, 0.5]


def test_arguments_are_filled_by_name_and_columns_too() -> None:
    def judge(completion: str, answer: str, level: int, prompt: str, bonus: float = 0.25) -> float:
        return (completion == answer) * level + (prompt == "ask") + bonus

    assert values(from_callable(judge), [rollout("a", answer="a", level=3)]) == [4.25]

    def batch(completions: list[str], answers: list[str], level: list[int]) -> list[float]:
        return [float(c == a) * n for c, a, n in zip(completions, answers, level, strict=True)]

    got = values(
        from_callable(batch, batched=True), [rollout("a", answer="a", level=2), rollout("b", answer="a", level=9)]
    )
    assert got == [2.0, 0.0]


def test_an_argument_that_nothing_fills_is_refused_with_the_nearest_name() -> None:
    def judge(completion: str, lvel: int) -> float:
        return 0.0

    with pytest.raises(RewardError, match="lvel") as caught:
        from_callable(judge)([rollout("a", level=3)])
    assert "did you mean level?" in caught.value.fix


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no_such_module_here:f", "ModuleNotFoundError"),
        ("math:no_such", "AttributeError"),
        ("math:pi", "float"),
    ],
)
def test_a_function_that_is_not_there_is_refused_when_built(path: str, said: str) -> None:
    with pytest.raises(RewardError, match=said):
        reward_of({"kind": "function", "path": path})


def test_kf35_a_hanging_function_is_killed_and_the_next_one_runs(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import time\n"
        "def judge(completion, slow=5):\n"
        "    print('noise on standard output')\n"
        "    time.sleep(slow if completion == 'hang' else 0)\n"
        "    return len(completion)\n"
    )
    reward = reward_of({"kind": "function", "path": f"{file}:judge", "timeout": 0.5, "options": {"slow": 60}})
    values(reward, [rollout("warm")])
    began = time.monotonic()
    scores = reward([rollout("ab"), rollout("hang"), rollout("abc")])
    assert time.monotonic() - began < 5
    assert [scores[0].value, scores[2].value] == [2.0, 3.0]
    assert "0.5 s" in (scores[1].failure or "")


def test_a_pattern_of_exponential_time_is_ended() -> None:
    reward = reward_of({"kind": "regex", "pattern": "^(a+)+$", "timeout": 0.5})
    began = time.monotonic()
    scores = reward([rollout("a" * 40 + "b"), rollout("aaa")])
    assert time.monotonic() - began < 5
    assert "ended" in (scores[0].failure or "")
    assert scores[1].value == 1.0


def test_a_row_without_answer_is_named() -> None:
    with pytest.raises(RewardError, match="prompt row-7 has no answer"):
        reward_of({"kind": "exact"})([rollout("x", name="row-7")])
    with pytest.raises(RewardError, match="is no number: 'blue'"):
        reward_of({"kind": "number"})([rollout("1", answer="blue")])


@pytest.mark.parametrize(
    ("part", "needed"),
    [
        ({"kind": "math"}, True),
        ({"kind": "length", "target": 2, "limit": 4}, False),
        ({"kind": "regex", "pattern": "x"}, False),
        ({"kind": "regex", "pattern": "(?P<answer>x)"}, True),
    ],
)
def test_which_rewards_need_an_answer(part: dict[str, Any], needed: bool) -> None:
    config = config_from_mapping({"data": {"kind": "arithmetic"}, "reward": part})
    assert needs_answer(config.reward) is needed


def test_reasoning_gym_scores_with_the_tasks_own_verifier() -> None:
    pytest.importorskip("reasoning_gym", reason="the extra `tasks` is not installed")
    from grpo_core.data.prompts import load_prompts

    data = {"kind": "reasoning_gym", "task": "chain_sum", "size": 8}
    config = config_from_mapping(
        {"data": data, "reward": "reasoning_gym", "evaluation": {"prompts": 0}, "train": {"batch_size": 8}}
    )
    prompt = load_prompts(config.data, held_out=0).train[0]
    reward = reward_of({"kind": "reasoning_gym", "take": "first_line"}, data=data)
    right = rollout(f"{prompt.answer}\nbecause", **prompt.columns)
    wrong = rollout("no idea", **prompt.columns)
    good, bad = values(reward, [right, wrong])
    assert good == 1.0
    assert bad < 0.5

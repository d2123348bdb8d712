"""The weighted sum: parts of one's own, parts that raise, parts that break their contract."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from made_rollouts import reward_of, rollout, values

from grpo_core.errors import RewardError
from grpo_core.records import Rollout
from grpo_core.rewards.reward import NamedPart, weighted_sum


def part(name: str, weight: float, returned: Any) -> NamedPart:
    def judged(rollouts: Sequence[Rollout]) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    return NamedPart(name=name, weight=weight, values=judged)


ROWS = [rollout(str(n)) for n in range(3)]


def test_the_sum_by_hand() -> None:
    scores = weighted_sum([part("a", 2.0, [1, 0, 0.5]), part("b", -0.5, torch.tensor([1.0, 1.0, 3.0]))])(ROWS)
    assert [score.value for score in scores] == [1.5, -0.5, -0.5]
    assert scores[2].parts == {"a": 0.5, "b": 3.0}


def test_kf32_one_missing_part_is_a_failure_of_that_row_alone_and_the_other_part_is_kept() -> None:
    scores = weighted_sum([part("a", 1.0, [1, None, 1]), part("b", 1.0, [2, 2, math.inf])])(ROWS)
    assert [score.failure for score in scores] == [None, "a: returned None", "b: returned inf"]
    assert scores[0].value == 3.0
    assert all(math.isnan(score.value) for score in scores[1:])
    assert scores[1].parts["b"] == 2.0


def test_kf34_a_part_that_raises_fails_its_rows_and_is_named() -> None:
    scores = weighted_sum([part("a", 1.0, [1, 1, 1]), part("net", 1.0, OSError("no route"))])(ROWS)
    assert [score.failure for score in scores] == ["net: OSError: no route"] * 3


@pytest.mark.parametrize("returned", [torch.tensor(1.0), {1.0, 2.0, 3.0}, torch.ones(3, 2), 1.0, None])
def test_kf33_a_part_that_breaks_its_contract_is_named(returned: Any) -> None:
    with pytest.raises(RewardError, match="'odd'"):
        weighted_sum([part("odd", 1.0, returned)])(ROWS)


def test_two_parts_of_one_name_are_refused() -> None:
    with pytest.raises(RewardError, match="same name"):
        weighted_sum([part("a", 1.0, []), part("a", 2.0, [])])


@pytest.mark.parametrize(("answer", "text"), [("(B)", "Answer: B"), ("b", "Answer: B"), ("B.", "(b)")])
def test_a_reference_label_may_be_dressed(answer: str, text: str) -> None:
    assert values(reward_of({"kind": "choice"}), [rollout(text, answer=answer)]) == [1.0]


def test_a_reference_that_is_no_label_is_named_and_not_scored_0() -> None:
    with pytest.raises(RewardError, match="prompt row-3 is none of A, B, C, D: '2'"):
        reward_of({"kind": "choice"})([rollout("Answer: C", answer="2", name="row-3")])

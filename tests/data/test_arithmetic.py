"""The built-in task: right answers, disjoint held-out questions, worked examples that never give the answer away."""

from __future__ import annotations

import re
from typing import Any

import pytest

from grpo_core.config.data import ArithmeticData
from grpo_core.data.arithmetic import TASKS
from grpo_core.data.prompts import load_prompts

RULES = {
    "addition": lambda a, b: a + b,
    "subtraction": lambda a, b: a - b,
    "larger": max,
    "next_number": lambda a: a + 1,
}


def numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", text)]


@pytest.mark.parametrize("digits", [1, 2, 6])
@pytest.mark.parametrize("worked", [0, 8])
@pytest.mark.parametrize("task", RULES)
def test_answers_are_right_and_held_out_questions_are_new(task: Any, worked: int, digits: int) -> None:
    config = ArithmeticData(task=task, digits=digits, worked_examples=worked, size=300)
    sets = load_prompts(config, held_out=64)
    space = TASKS[task].space(10**digits)
    assert len(sets.train) == 300
    assert 1 <= len(sets.held_out) <= min(64, space // 5)
    assert not {p.plain for p in sets.train} & {p.plain for p in sets.held_out}
    for prompt in [*sets.train, *sets.held_out]:
        turns = [m for m in prompt.messages if m.role != "system"]
        assert len(turns) == 2 * worked + 1
        pairs = [(q.content, a.content) for q, a in zip(turns[:-1:2], turns[1::2], strict=True)]
        assert prompt.answer is not None
        for question, answer in [*pairs, (prompt.plain, prompt.answer)]:
            assert int(answer) == RULES[task](*numbers(question))
            assert max(numbers(question)) < 10**digits
        assert prompt.plain not in [question for question, _ in pairs]
    shown = {m.content for p in sets.train for m in p.messages[:-1]}
    assert not shown & {p.plain for p in sets.held_out}, "no held-out question is ever shown with its answer"


@pytest.mark.parametrize("task", RULES)
def test_the_space_is_numbered_without_gaps_or_twins(task: str) -> None:
    space = TASKS[task].space(10)
    assert len({TASKS[task].numbers(place, 10) for place in range(space)}) == space
    assert space == {"addition": 100, "subtraction": 55, "larger": 90, "next_number": 10}[task]


@pytest.mark.parametrize(
    ("task", "full", "terse"),
    [
        ("addition", r"What is \d \+ \d\? Answer with just the number\.", r"\d \+ \d ="),
        ("subtraction", r"What is \d - \d\? Answer with just the number\.", r"\d - \d ="),
        ("larger", r"Which number is larger, \d or \d\? Answer with just the number\.", r"Larger of \d and \d\?"),
        ("next_number", r"What number comes right after \d\? Answer with just the number\.", r"After \d\?"),
    ],
)
def test_wording(task: Any, full: str, terse: str) -> None:
    plain = load_prompts(ArithmeticData(task=task, size=5), held_out=1).train[0]
    assert re.fullmatch(full, plain.plain)
    assert [m.role for m in plain.messages] == ["user"]
    worked = load_prompts(ArithmeticData(task=task, size=5, worked_examples=2), held_out=1).train[0]
    assert [m.role for m in worked.messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert worked.messages[0].content == "Answer with just the answer."
    assert all(re.fullmatch(terse, m.content) for m in worked.messages if m.role == "user")
    bare = load_prompts(ArithmeticData(task=task, size=5, worked_examples=2, system=""), held_out=1).train[0]
    assert bare.messages[0].role == "user"


def test_seeded_and_honest_about_small_spaces() -> None:
    config = ArithmeticData(size=50, seed=4)
    assert load_prompts(config, held_out=9) == load_prompts(config, held_out=9)
    assert load_prompts(config, held_out=9) != load_prompts(ArithmeticData(size=50, seed=5), held_out=9)
    sets = load_prompts(config, held_out=64)
    assert len(sets.held_out) == 20
    assert sets.notes == ("20 held-out questions instead of 64: there are only 100 in all",)
    assert not load_prompts(config, held_out=0).held_out

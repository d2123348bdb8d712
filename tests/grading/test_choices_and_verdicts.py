"""Multiple-choice answers and judges: the last statement counts, and what is unclear is None."""

from __future__ import annotations

import time
from typing import Any

import pytest
from conftest import case_params

from grpo_core.grading.choices import chosen
from grpo_core.grading.verdicts import combine, rating, verdict

CHOICES = [
    ("B", "B"), ("\n(b)\n", "B"), ("B.", "B"), ("I think B.", "B"), ("C) Paris", "C"), ("A. cat", "A"), ("**C**", "C"),
    ("Answer: B", "B"), ("answer: b", "B"), ("**Answer:** C", "C"), ("The correct answer is **(B)**", "B"),
    ("Option B is right", "B"), ("I choose D", "D"), (r"$\boxed{\text{(C)}}$", "C"), (r"The answer is $\textbf{(D)}$", "D"),
    ("<answer>A</answer>", "A"), ("The answer is A.", "A"), ("Answer: A) cat", "A"),
    ("(A) is tempting. Answer: B", "B"), ("The answer is (A). Wait, it is (B).", "B"), (r"\boxed{B} since (A) is wrong", "B"),
    ("The answer is B because A cat is one", "B"), ("<think>(A)</think> (B)", "B"),
]  # fmt: skip

NO_CHOICE = [
    "", "A cat sat.", "I am an A student", "Bad. Add. Cab.", "The answer is a dog", "The answer is A dog", "U.S.A. is far",
    r"\boxed{Z}", "<think>(A)", "E", "(E)",
]  # fmt: skip


@pytest.mark.parametrize(("text", "label"), CHOICES)
def test_the_last_stated_choice(text: str, label: str) -> None:
    assert chosen(text, ["A", "B", "C", "D"]) == label


@pytest.mark.parametrize("text", NO_CHOICE)
def test_words_and_articles_are_no_choice(text: str) -> None:
    assert chosen(text, ["A", "B", "C", "D"]) is None


def test_labels_of_any_length_in_their_own_spelling() -> None:
    assert chosen("Answer: YES", ["Yes", "No"]) == "Yes"
    assert chosen("Nothing is known.", ["Yes", "No"]) is None
    assert chosen("(12)", ["1", "12"]) == "12"
    assert chosen("(A)", []) is None


@pytest.mark.parametrize("text", ["answer:" + " " * 50_000 + "x", "(" * 50_000, "answer " * 20_000, "> " * 20_000])
def test_choices_in_long_degenerate_texts_take_linear_time(text: str) -> None:
    begin = time.perf_counter()
    assert chosen(text, ["A", "B"]) is None
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize("row", case_params("judge_verdicts.jsonl", kind="single"))
def test_kf40_shared_ratings(row: dict[str, Any]) -> None:
    assert rating(row["text"], tuple(row["scale"])) == row["expected"]["rating"], row["note"]


@pytest.mark.parametrize("row", case_params("judge_verdicts.jsonl", kind="pair"))
def test_kf40_shared_verdicts(row: dict[str, Any]) -> None:
    assert verdict(row["text"]) == row["expected"]["verdict"], row["note"]


@pytest.mark.parametrize("row", case_params("judge_verdicts.jsonl", kind="swap"))
def test_kf41_shared_swaps(row: dict[str, Any]) -> None:
    winner = combine(row["verdict_first_order"], row["verdict_swapped_order"])
    assert winner == row["expected"]["winner"], row["note"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Perhaps [[3]]. Rating: [[8]]", 8), ("[[7.5]]", 7.5), ("[[8/10]]", 8), ("Score: 6", 6), ("**Rating:** 9/10.", 9),
        ("<think>[[3]]</think>[[4]]", 4), ("[[11]]", None), ("[[0]]", None), ("[[-3]]", None), ("[[4/5]]", None),
        ("[[rating]]", None), ("[[3]] then [[rating]]", None), ("I cannot rate this.", None), ("", None),
    ],
)  # fmt: skip
def test_kf40_the_last_rating_or_none(text: str, value: float | None) -> None:
    assert rating(text) == value


def test_a_rating_is_held_to_its_own_scale() -> None:
    assert rating("[[0]]", (0, 1)) == 0 and rating("[[5]]", (0, 1)) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[[A]] is wordy. Final verdict: [[B]]", "B"), ("[[C]]", "tie"), ("[[tie]]", "tie"), ("Verdict: A", "A"),
        ("Winner: Assistant B.", "B"), ("[[A]] then [[?]]", None), ("A cat beats a dog", None), ("", None),
    ],
)  # fmt: skip
def test_kf40_the_last_verdict_or_none(text: str, value: str | None) -> None:
    assert verdict(text) == value


def test_kf41_only_a_consistent_win_counts() -> None:
    assert combine("A", "B") == "first" and combine("B", "A") == "second"
    assert {combine("A", "A"), combine("B", "B"), combine("A", "tie"), combine("tie", "tie")} == {"tie"}
    assert combine("A", None) is combine(None, "B") is combine(None, None) is None

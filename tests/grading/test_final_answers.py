"""What counts as the final answer: the last box, else the last marker line, else the last number."""

from __future__ import annotations

import time

import pytest

from grpo_core.grading.extract import after_reasoning, final_answer, last_box

BOXES = [
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{5}, no: \boxed{7}", "7"),
    (r"\fbox{42}", "42"),
    (r"\boxed {\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{\fbox{7}}", "7"),
    (r"\boxed{7} and then \boxed{8", "7"),
    (r"a } stray brace, \boxed{3}", "3"),
    (r"\boxed{}", ""),
    ("no box", None),
]

ANSWERS = [
    ("The answer is 72, altogether.", "72"),
    ("The answer is 5 because 2 + 3 = 5.", "5"),
    ("The answer is that 3 of them leave.", "3"),
    ("**Answer:** 5 apples", "5 apples"),
    ("The answer is **72**.", "72"),
    (r"The final answer is: $\frac{1}{2}$.", r"\frac{1}{2}"),
    (r"Final Answer: \(2\sqrt{2}\)", r"2\sqrt{2}"),
    ("The answer is $18 and not $20", "$18"),
    ("The answer is (C).", "(C)"),
    ("Answer: Paris", "Paris"),
    ("Answer: 3\nAnswer: 4", "4"),
    ("Answer:\n42", "42"),
    ("<answer>\n42\n</answer>", "42"),
    ("#### 1,234", "1,234"),
    ("First 5, then 3 - 1 = 2.", "2"),
    (r"\boxed{1} although the answer is 2", "1"),
    ("nothing", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "content"), BOXES)
def test_kf36_the_last_balanced_box(text: str, content: str | None) -> None:
    assert last_box(text) == content


@pytest.mark.parametrize(("text", "answer"), ANSWERS)
def test_box_then_marker_then_number(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


def test_kf39_a_marker_is_found_however_much_follows() -> None:
    assert final_answer("#### 42\n" + "and this is consistent with step 7. " * 500) == "42"


@pytest.mark.parametrize(
    ("text", "rest"),
    [("<think>a</think>b", "b"), ("a</think>b</think>c", "c"), ("<think>never closed", ""), ("plain", "plain")],
)
def test_only_what_follows_the_reasoning_counts(text: str, rest: str) -> None:
    assert after_reasoning(text) == rest


@pytest.mark.parametrize(
    "piece",
    [r"\boxed{", "{", "answer is ", "<answer>", "$", "1 ", "1/", r"\frac", "\n", "*", r"answer is \(", "answer:  "],
)
def test_long_degenerate_texts_take_linear_time(piece: str) -> None:
    begin = time.perf_counter()
    final_answer(piece * 20_000)
    assert time.perf_counter() - begin < 5

"""Grades of final answers: exact, by structure, and never an exception or a hang."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from conftest import case_params

from grpo_core.grading import math_answers
from grpo_core.grading.math_answers import grade
from grpo_core.grading.worker import Worker, WorkerError

EQUAL = [
    ("42", "x = 42"), ("1/2", "50\\%"), ("71/6", "11 5/6"), ("5", "5 cm"), ("5 cm", r"5\text{cm}"), ("90", "90°"),
    (r"2\sqrt{2}", r"\sqrt{8}"), ("x^2-1", "(x-1)(x+1)"), ("y=2x+3", "y = 3+2x"), ("6", r"\binom{4}{2}"), ("5!", "120"),
    (r"\{1, 2\}", "2, 1"), (r"\{100,200\}", "100,200"), ("x=1, x=2", r"x=2 \text{ or } x=1"), (r"\pm 5", "5, -5"),
    (r"\{1{,}728, 2\}", "2, 1,728"), (r"(\sqrt8,1)", r"(2\sqrt2,1)"), (r"[2,\infty)", r"x \in [2, \infty)"),
    ("(1,2),(3,4)", "(3,4),(1,2)"), (r"\emptyset", r"\{\}"), ("C", r"\text{(C)}"), ("Paris", r"\text{paris}"),
    ("x>3", "3<x"), ("10,000", r"10,\!000"),
]  # fmt: skip

UNEQUAL = [
    ("2/3", "2"), ("1/3", "0.33"), ("11", "11 5/6"), ("500", "9{,}500"), ("12", "1,2"), ("1,2", "12"), ("56", "5 6"),
    ("100000000", "100000001"), (r"\sqrt{2}", "1.41421356"), (r"\pi", "3.14159265"), ("5 cm", "5 m"), ("5", "5x"),
    ("5", "5 million"), ("5", r"5\pi"), ("5", r"\pm 5"), ("5", "5 or 6"), (r"\{1,1,2\}", r"\{1,2\}"), ("28", "2.8\\%"),
    ("(1,2)", "(2,1)"), ("(1,2)", r"\{1,2\}"), ("[2,5)", "(2,5)"), (r"(\sqrt8,1)", r"(1,2\sqrt2)"), ("C", "B"), ("A", "a"),
    ("x=42", "y=42"), ("0", "1/0"), ("0", r"\frac{}{}"), ("0", "}{"), ("0", r"\frac{0}{0}"), ("5", ""), ("", "5"),
    ("0", "(" * 5000), ("0", "(1," * 5000 + "1" + ")" * 5000), ("0", "1e999999999"), ("0", "\x00"), ("0", "1" + " " * 50_000 + "x"),
]  # fmt: skip


@pytest.mark.parametrize("row", case_params("math_answers.jsonl"))
def test_kf35_kf36_kf37_kf38_kf39_shared_rows(row: dict[str, Any]) -> None:
    begin = time.perf_counter()
    assert grade(row["response"], row["gold"], timeout=3) is row["correct"], row["note"]
    assert time.perf_counter() - begin < 20


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_kf37_kf38_equal_answers(gold: str, answer: str) -> None:
    assert grade(rf"So \boxed{{{answer}}}.", gold) is True


@pytest.mark.parametrize(("gold", "answer"), UNEQUAL)
def test_kf37_kf38_unequal_or_malformed_answers(gold: str, answer: str) -> None:
    assert grade(rf"So \boxed{{{answer}}}.", gold, timeout=2) is False


def test_kf36_a_discarded_box_earns_nothing() -> None:
    response = r"<think>Or \boxed{3}?</think> First \boxed{5}. No, \boxed{7}."
    assert [grade(response, gold) for gold in ("3", "5", "7")] == [False, False, True]


def test_kf35_a_hung_comparison_ends_and_the_next_is_fast_from_any_thread() -> None:
    worker, seen = Worker(), []

    def work() -> None:
        for response, gold in (
            (r"\boxed{\sqrt{8}}", r"2\sqrt{2}"),
            (r"\boxed{9^{9^{9^{9}}}}", "1"),
            (r"\boxed{7}", "7"),
            (r"\boxed{\sqrt{8}}", r"2\sqrt{2}"),
        ):
            begin = time.perf_counter()
            seen.append((grade(response, gold, timeout=1.5, worker=worker), time.perf_counter() - begin))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)
    worker.close()
    assert [correct for correct, _ in seen] == [True, False, True, True]
    assert seen[1][1] < 2.5, "the limit plus one second"
    assert seen[2][1] < 0.5, "a number needs no child process"


class Broken(Worker):
    """Loads, then fails every comparison."""

    def __init__(self, error: Exception, fails_on: str) -> None:
        super().__init__()
        self.error, self.fails_on = error, fails_on

    def call(self, target: str, *args: Any, **kwargs: Any) -> Any:
        if target.endswith(self.fails_on):
            raise self.error
        return True


@pytest.mark.parametrize("error", [TimeoutError("late"), WorkerError("died")])
def test_kf35_a_late_or_crashed_comparison_is_false(error: Exception) -> None:
    assert grade(r"\boxed{\sqrt{8}}", r"2\sqrt{2}", worker=Broken(error, ":compare_symbolic")) is False


def test_kf34_a_child_that_cannot_start_is_a_failure_and_not_a_wrong_answer() -> None:
    with pytest.raises(WorkerError):
        grade(r"\boxed{\sqrt{8}}", r"2\sqrt{2}", worker=Broken(WorkerError("no sympy"), ":load_algebra"))


def test_numbers_load_no_algebra_library() -> None:
    code = (
        "import sys; from grpo_core.grading.math_answers import grade\n"
        "assert grade('The answer is 0.5', '1/2') and not grade('#### 3', '1/2')\n"
        "print(*[name for name in ('sympy', 'math_verify', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""


def test_symbolic_comparison_uses_no_signals() -> None:
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(math_answers.compare_symbolic(r"\sqrt{8}", r"2\sqrt{2}")))
    thread.start()
    thread.join(60)
    assert seen == [True]

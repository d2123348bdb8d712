"""Whether a response's final answer equals a reference: exactly, as rationals or as symbolic expressions.

Numbers are compared at once in this process. Only what needs algebra goes to a child process, with a hard limit.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterable

from grpo_core.grading.extract import Listed, final_answer, items_of, taken_apart
from grpo_core.grading.numbers import clean, parse_number, split_number
from grpo_core.grading.worker import Worker, WorkerError

Equal = Callable[[str, str], bool | None]
"""Whether two expressions without outer commas are equal; None when that needs algebra."""

START_LIMIT = 120.0
"""Seconds the child may take to import the algebra library; that is not part of a comparison's limit."""

_default = Worker()
_turn = threading.Lock()

_ASSIGNED = re.compile(r"\s*(\\?[A-Za-z]+(?:_(?:[A-Za-z0-9]|\{\w+\}))?(?:\s*\(\s*[A-Za-z]\s*\))?)\s*=(?!=)")


def grade(response: str, gold: str, *, timeout: float = 5.0, worker: Worker | None = None) -> bool:
    """Whether the final answer of `response` equals `gold`.

    False for no answer, malformed input, and a comparison that crashes or takes longer than `timeout` seconds (it is
    really ended). Works from any thread. `worker` replaces the child process that all calls share. Raises WorkerError
    or TimeoutError only when the child cannot even load the algebra library: that says nothing about the answer.
    """
    answer = final_answer(response)
    if answer is None or not answer.strip() or not gold.strip():
        return False
    try:
        equal = compare(answer, gold, _by_value)
    except RecursionError:
        return False
    if equal is not None:
        return equal
    with contextlib.nullcontext() if worker else _turn:
        child = worker or _default
        child.call(f"{__name__}:load_algebra", timeout=START_LIMIT)
        try:
            return bool(child.call(f"{__name__}:compare_symbolic", (answer, gold), timeout=timeout))
        except (TimeoutError, WorkerError):
            return False


def compare(answer: str, gold: str, equal: Equal) -> bool | None:
    """`equal` over the parts of two answers: sets and bare lists in any order, tuples and intervals in order."""
    answer, gold = clean(answer), clean(gold)
    left, right = taken_apart(answer), taken_apart(gold)
    if left is None and right is None:
        return equal(answer, gold)
    if left is None or right is None:
        left, right = left or Listed("", items_of(answer), ""), right or Listed("", items_of(gold), "")
        if len(left.items) != len(right.items) and left.opening + right.opening:
            return equal(answer, gold)
    if left.ordered != right.ordered or len(left.items) != len(right.items):
        return False
    if not right.ordered:
        return _matched(list(left.items), list(right.items), equal)
    if (left.opening, left.closing) != (right.opening, right.closing):
        return False
    return _all(compare(one, other, equal) for one, other in zip(left.items, right.items, strict=True))


def load_algebra() -> bool:
    """Import the algebra library in the child, outside any limit on a comparison."""
    import math_verify
    import sympy

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns on each call that its own alarms are off
    return bool(math_verify.parse and sympy.S)


def compare_symbolic(answer: str, gold: str) -> bool:
    """Whether two answers are equal by algebra; exact, so that 1.4142 is not the root of 2. May take for ever."""

    def equal(one: str, other: str) -> bool:
        known = _by_value(one, other)
        return _by_algebra(one, other) if known is None else known

    return compare(answer, gold, equal) is True


def _by_value(answer: str, gold: str) -> bool | None:
    """Equality of numbers, letters and equal texts; None when neither applies."""
    answer, gold = _without_variable(answer, gold)
    if not answer or not gold:
        return False
    wanted, found = split_number(gold), split_number(answer)
    if wanted and found:
        same_unit = not wanted[1] or not found[1] or _squeezed(wanted[1]) == _squeezed(found[1])
        return wanted[0] == found[0] and same_unit
    if re.search(r"/\s*0+(?![0-9.])", answer):
        return False
    one, other = (re.sub(r"^\((\w+)\)$", r"\1", _squeezed(text)) for text in (answer, gold))
    if one == other:
        return True
    if re.fullmatch(r"[A-Za-z]", one) and re.fullmatch(r"[A-Za-z]|[0-9.]+", other):
        return False
    if re.fullmatch(r"[A-Za-z]{3,}", one) and re.fullmatch(r"[A-Za-z]{3,}", other):
        return one.casefold() == other.casefold()
    return None


def _by_algebra(answer: str, gold: str) -> bool:
    """Equality by sympy. Parsing is math-verify's, without its alarm signals; the comparison is exact."""
    import sympy
    from math_verify import parse, verify

    answer, gold = _without_variable(answer, gold)
    parsed = []
    for text in (answer, gold):
        rational = parse_number(text)
        if rational is not None:
            parsed.append(sympy.Rational(rational.numerator, rational.denominator))
            continue
        if re.search(r"(?<![_^0-9])[0-9]+\s+[0-9]", text):
            return False
        found = parse(f"${text}$", parsing_timeout=None, fallback_mode="no_fallback", extraction_mode="first_match")
        found = [value for value in found if not isinstance(value, str)]
        if not found:
            return False
        parsed.append(found[0])
    one, other = parsed
    if not (isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr)):
        return bool(verify(other, one, timeout_seconds=None))
    if one == other:
        return True
    if (one + other).has(sympy.zoo, sympy.nan, sympy.oo):
        return False
    difference = sympy.nsimplify(one - other, rational=True)
    return bool(difference == 0 or sympy.simplify(difference) == 0)


def _matched(left: list[str], right: list[str], equal: Equal) -> bool | None:
    """Whether each part on the left equals another one on the right; None when that needs algebra."""
    needs_algebra = False
    for one in left:
        verdicts = [compare(one, other, equal) for other in right]
        if True in verdicts:
            right.pop(verdicts.index(True))
        elif None in verdicts:
            needs_algebra = True
        else:
            return False
    return None if needs_algebra else True


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    found = list(verdicts)
    return False if False in found else None if None in found else True


def _without_variable(answer: str, gold: str) -> tuple[str, str]:
    """Both without "x =" at the front; as they are when they name different variables."""
    left, right = _ASSIGNED.match(answer), _ASSIGNED.match(gold)
    if left and right and _squeezed(left[1]) != _squeezed(right[1]):
        return answer, gold
    return (clean(answer[left.end() :]) if left else answer), (clean(gold[right.end() :]) if right else gold)


def _squeezed(text: str) -> str:
    """Without spaces, except between two words or numbers."""
    return re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", text)

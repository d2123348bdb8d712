"""What a judge's text says: a rating, a pairwise verdict, and what two verdicts in both orders amount to."""

from __future__ import annotations

import re
from typing import Literal

from grpo_core.grading.extract import after_reasoning

Verdict = Literal["A", "B", "tie"]
Winner = Literal["first", "second", "tie"]

_BRACKETS = re.compile(r"\[\[([^\[\]\n]{0,40})\]\]")
_NUMBER = r"([-+]?[0-9]{1,9}(?:\.[0-9]{1,9})?)(?:\s*/\s*([0-9]{1,9}))?"
_RATING = re.compile(rf"\b(?:rating|score)\b[\s*:=]*(?:is\s+)?\**\s*{_NUMBER}(?![0-9])", re.IGNORECASE)
_VERDICT = re.compile(
    r"\b(?:verdict|winner|better answer|better response)\b[\s*:=]*(?:is\s+)?\**\s*(?:(?:assistant|answer|response)\s+)?"
    r"(A|B|C|tie)(?=\W*$|\W*\n|[.*,])",
    re.IGNORECASE,
)
_LETTERS: dict[str, Verdict] = {"A": "A", "B": "B", "C": "tie", "TIE": "tie"}


def rating(text: str, scale: tuple[float, float] = (1, 10)) -> float | None:
    """The last rating of the judge's text: [[8]], else "Rating: 8". None when unparsed or outside the scale.

    None is a missing score, never 0 and never clamped to the scale.
    """
    text = after_reasoning(text)
    brackets = _BRACKETS.findall(text)
    if brackets:
        match = re.fullmatch(_NUMBER, brackets[-1].strip())
    else:
        match = next(reversed(list(_RATING.finditer(text))), None)
    if match is None or (match[2] is not None and float(match[2]) != scale[1]):
        return None
    value = float(match[1])
    return value if scale[0] <= value <= scale[1] else None


def verdict(text: str) -> Verdict | None:
    """The last verdict of a pairwise judge: [[A]], [[B]], [[C]] or [[tie]], else "Verdict: A". None when unparsed."""
    text = after_reasoning(text)
    found = _BRACKETS.findall(text) or _VERDICT.findall(text)
    return _LETTERS.get(found[-1].strip().upper()) if found else None


def combine(first: Verdict | None, swapped: Verdict | None) -> Winner | None:
    """The winner when both orders agree, a tie when they do not, None (unresolved) when either is unparsed.

    `swapped` is the verdict with the answers exchanged: its letter B denotes the answer shown first originally.
    """
    if first is None or swapped is None:
        return None
    if (first, swapped) == ("A", "B"):
        return "first"
    return "second" if (first, swapped) == ("B", "A") else "tie"

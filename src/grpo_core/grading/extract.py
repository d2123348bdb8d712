"""The final answer of a completion, and its parts: one rule for training and evaluation, over the whole text."""

from __future__ import annotations

import re
from typing import NamedTuple

from grpo_core.grading.numbers import clean, located_numbers, parse_number, split_number

_BRACES = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{|\\[{}\\]|[{}]")
_MARKER = re.compile(r"\banswer\b\**\s*(?:is\b|:|=)|####|<answer>", re.IGNORECASE)
_LEAD = re.compile(r"[\s:=*]*(?:(?:therefore|thus|simply|just|equal to|approximately|about)\s+)?[\s:]*", re.IGNORECASE)
_CUT = re.compile(
    r"</answer>|[.!?;](?=\s|\*|$)|,(?=\s+[A-Za-z]{2})|,\s*$"
    r"|\s(?:because|since|so|which|where|when|but|as|after)\s",
    re.IGNORECASE,
)
_MATH = re.compile(r"\$([^$]+)(?<!\sand )(?<!\sor )\$|\\\((.{1,500}?)\\\)")
_MEMBER = re.compile(r"\s*[A-Za-z]\s*\\in(?![A-Za-z])")
_SEPARATOR = re.compile(r"\s+(?:or|and)\s+|\s*;\s*")
_PROSE = re.compile(r"(?<![\\A-Za-z])(?!(?:pi|or|and|sqrt|sin|cos|tan|log|ln|exp|inf|infty)\b)[A-Za-z]{2,}")

LONGEST_LINE = 2000
"""Characters of a marker line that are read."""


class Listed(NamedTuple):
    """A set, tuple, interval or bare list, taken apart."""

    opening: str
    items: tuple[str, ...]
    closing: str

    @property
    def ordered(self) -> bool:
        """True for tuples and intervals; a set and a bare list have no order."""
        return self.opening in ("(", "[")


def after_reasoning(text: str) -> str:
    """What follows the last </think>; nothing of a reasoning block that was never closed."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def last_box(text: str) -> str | None:
    """The content of the last \\boxed{} or \\fbox{} whose braces balance; None without one. One pass."""
    open_braces: list[tuple[bool, int]] = []
    found: str | None = None
    for match in _BRACES.finditer(text):
        token = match[0]
        if token == "{" or (token[-1] == "{" and len(token) > 2):
            open_braces.append((len(token) > 1, match.end()))
        elif token == "}" and open_braces:
            is_box, start = open_braces.pop()
            if is_box:
                found = text[start : match.start()]
    if found is None:
        return None
    inner = re.fullmatch(r"\s*\\(?:boxed|fbox)\s*\{(.*)\}\s*", found, re.DOTALL)
    return (inner[1] if inner else found).strip()


def marked_answer(text: str) -> str | None:
    """What the last marker line states ("The answer is X", "Answer: X", "#### X", <answer>X</answer>); else None."""
    for match in reversed(list(_MARKER.finditer(text))):
        rest = text[match.end() : match.end() + LONGEST_LINE]
        rest = rest.lstrip(" \t:=*\n" if match[0] == "<answer>" else " \t:=*")
        line = rest.split("\n", 1)[0] if rest else ""
        stated = _stated(line)
        if stated:
            return stated
    return None


def final_answer(text: str) -> str | None:
    """The final answer stated after the reasoning block; None when there is none.

    The last balanced box counts, even an empty one; without a box the last marker line; without one the last number.
    """
    text = after_reasoning(text)
    boxed = last_box(text)
    if boxed is not None:
        return boxed
    marked = marked_answer(text)
    if marked is not None:
        return marked
    pieces = [piece for _, piece in located_numbers(text)]
    return pieces[-1] if pieces else None


def _stated(line: str) -> str:
    """The answer at the start of a line of prose: its first clause, or the first number of a wordy one."""
    line = line[_LEAD.match(line).end() :]  # type: ignore[union-attr]  # matches the empty string
    clause = _CUT.split(line, maxsplit=1)[0].strip(" \t*")
    math = _MATH.search(clause)
    if math and r"\$" not in clause and not _PROSE.search(math[0]):
        return (math[1] or math[2]).strip()
    if split_number(clause) is not None:
        return clause
    if _PROSE.search(re.sub(r"\\(?:text|mathrm)\s*\{[^{}]*\}", "", clean(clause))):
        first = next((piece for _, piece in located_numbers(clause)), None)
        if first is not None:
            return first
    return clause


def taken_apart(text: str) -> Listed | None:
    """The parts of a set, tuple, interval or bare list; None for a single expression."""
    text = _MEMBER.sub("", text, count=1).strip()
    text = re.sub(r"\\(lbrace|rbrace)(?![A-Za-z])", lambda m: {"l": r"\{", "r": r"\}"}[m[1][0]], text)
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return Listed("{", items_of(text[2:-2]), "}")
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and _closes_at_end(text):
        items = items_of(text[1:-1])
        return Listed(text[0], items, text[-1]) if len(items) > 1 else None
    if text in (r"\emptyset", r"\varnothing"):
        return Listed("{", (), "}")
    if parse_number(text) is not None:
        return None
    if len(signs := re.split(r"\\pm(?![A-Za-z])|±", text)) == 2 and "," not in text:
        return Listed("", ("+".join(signs).strip(), "-".join(signs).strip()), "")
    items = items_of(text)
    return Listed("", items, "") if len(items) > 1 else None


def items_of(text: str) -> tuple[str, ...]:
    """The parts between outer commas, semicolons, "or" and "and"; spaced commas alone where 1,728, 1,331 needs it."""
    if not text.strip():
        return ()
    text = _SEPARATOR.sub(", ", text)
    spaced = [part.strip() for part in re.split(r",\s+", text)]
    if len(spaced) > 1 and all(parse_number(part) is not None for part in spaced):
        return tuple(spaced)
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return tuple([*parts, text[start:].strip()])


def _closes_at_end(text: str) -> bool:
    """Whether the bracket that opens the text is closed by its last character."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0:
            return place == len(text) - 1
    return False

"""Numbers in text, read exactly. A number is read whole or not at all: never 500 out of 9,500, nor 2 out of 2/3."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

Take = Literal["first_line", "first", "last"]

MAX_DIGITS = 1000
"""Longest number read; longer texts and larger powers of ten are not numbers."""

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_PART = r"\{\s*[-+]?\s*[0-9.]+\s*\}"
_FRAC = rf"\\frac\s*(?P<up>{_PART}|[0-9])\s*(?P<low>{_PART}|[0-9])"
_CURRENCY = r"(?:US\$|[$€£¥₹])"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:{_CURRENCY}\s*)?(?P<inner>[-+]?)\s*"
    rf"(?:(?P<whole>[0-9]+)\s*{_FRAC}"
    r"|(?P<mixed>[0-9]+)\s+(?P<mixed_up>[0-9]+)\s*/\s*(?P<mixed_low>[0-9]+)"
    r"|(?P<start>[0-9]*\.[0-9]*)\s*\\overline\s*\{(?P<again>[0-9]+)\}"
    rf"|(?P<left>{_DIGITS})\s*/\s*(?P<right>{_DIGITS})"
    rf"|(?P<digits>{_DIGITS})(?:[eE](?P<power>[-+]?[0-9]+)"
    r"|\s*(?:\\times|\\cdot|×|\*)\s*10\s*(?:\^|\*\*)\s*\{?(?P<times>[-+]?[0-9]+)\}?)?"
    rf"|{_FRAC.replace('up', 'only_up').replace('low', 'only_low')})"
    rf"\s*(?P<percent>%|percent\b)?(?:\s*(?:{_CURRENCY}))?"
)

_WRAPPER = r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}"
_WORD = r"[A-Za-zµΩÅ°]+\.?"
_POWER = r"(?:\s*\^\s*(?:[0-9]|\{-?[0-9]\})|[²³])?"
_UNIT = re.compile(
    rf"\s*(?:(?P<degree>\^\s*\{{?\s*\\circ\s*\}}?|\\degrees?|°)\s*)?(?P<words>(?:{_WORD}{_POWER}(?:\s*[/·]\s*|\s+|$)){{0,4}})"
)
_NOT_UNITS = re.compile(
    "pi|e|i|or|and|to|sqrt|sin|cos|tan|cot|sec|csc|log|ln|exp|mod|choose|infty|hundred|thousand|million|billion|trillion"
    "|dozen|percent|half|quarter|third|times|plus|minus|over",
    re.IGNORECASE,
)
_LETTER_UNITS = "mgshLlKJNWVAFC"


def clean(text: str) -> str:
    """`text` without the dress of LaTeX and markdown: math delimiters, spacing commands, \\text{}, end punctuation."""
    text = re.sub(r"(?<=[0-9])\\[,;](?=[0-9]{3}(?![0-9]))", "", text)
    for old, new in (
        ("\u2212", "-"), ("\u2013", "-"), ("\u2010", "-"), ("\u2011", "-"), ("\u00a0", " "), ("\u202f", " "),
        ("{,}", ","), (r"\$", "$"), (r"\%", "%"), (r"\!", ""), (r"\,", " "), (r"\;", " "), (r"\:", " "), ("\\ ", " "),
        ("~", " "), (r"\dfrac", r"\frac"), (r"\tfrac", r"\frac"), (r"\cfrac", r"\frac"), (r"\displaystyle", ""),
        (r"\quad", " "), ("\\(", " "), ("\\)", " "), ("\\[", " "), ("\\]", " "),
    ):  # fmt: skip
        text = text.replace(old, new)
    text = re.sub(r"\\(?:left|right)(?![A-Za-z])\.?", "", text)
    text = re.sub(_WRAPPER, r" \1 ", text)
    text = " ".join(text.split()).strip("*`_ ")
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text.strip("$").strip()
    text = text.rstrip(".,;: ")
    if text.count("$") == 1 and text.endswith("$") and not re.search(r"[0-9]\s*\$$", text):
        text = text[:-1].rstrip(".,;: ")
    return text


def parse_number(text: str, *, units: bool = False) -> Fraction | None:
    """The number that the whole text is, exactly; None when it is not one number.

    Read: 1,234.50, $5, 28% (0.28), -3 with any minus sign, 1/2, 2 1/2, 1.5e3, 3 \\times 10^8, and \\frac in all its
    spellings. With `units`, words after the number and a degree mark are dropped. Wrong grouping (1,23) is no number.
    """
    found = split_number(text)
    return found[0] if found is not None and (units or not found[1]) else None


def split_number(text: str) -> tuple[Fraction, str] | None:
    """The number that the text begins with and its unit ("" without one); None unless that is the whole text."""
    if len(text) > MAX_DIGITS:
        return None
    text = clean(text)
    match = _NUMBER.match(text)
    value = _value(match) if match else None
    if match is None or value is None:
        return None
    rest = text[match.end() :]
    unit = _unit(rest, glued=not match[0][-1:].isspace())
    return None if unit is None else (value, unit)


def find_numbers(text: str) -> list[Fraction]:
    """Every number in running text, in order. A minus after a digit, letter or bracket is an operator, not a sign."""
    return [value for value, _ in located_numbers(text)]


def located_numbers(text: str) -> Iterator[tuple[Fraction, str]]:
    """Every number in running text with the piece of text it was read from."""
    text = text.replace("{,}", ",").replace("\u2212", "-").replace(r"\%", "%").replace(r"\$", "$")
    text = re.sub(r"\\[dtc]frac", r"\\frac", text)
    for match in _RUNNING.finditer(text):
        piece = match[0].rstrip(".,")
        value = parse_number(piece)
        if value is not None:
            yield value, piece


_LOOSE = r"[0-9][0-9.,]*|\.[0-9]+"
_RUNNING = re.compile(
    rf"(?:(?<![A-Za-z0-9_)\]}}])[-+]|(?<==)\s?-\s)?(?<![A-Za-z0-9_])(?<![0-9][.,])(?:{_CURRENCY}\s*[-+]?)?"
    r"(?:(?:[0-9]{1,9}\s*)?\\frac\s*(?:\{\s*[-+]?\s*[0-9.]{1,40}\s*\}|[0-9])\s*(?:\{\s*[-+]?\s*[0-9.]{1,40}\s*\}|[0-9])"
    r"|[0-9]{1,9} [0-9]{1,9}/[0-9]{1,9}(?![0-9/])"
    rf"|(?:{_LOOSE})(?:/(?:{_LOOSE}))*(?:[eE][-+]?[0-9]+)?)(?:\s?%)?"
)


def take_number(text: str, take: Take) -> Fraction | None:
    """The last number of the first non-empty line, or the first or the last number of the text; None without one."""
    if take == "first_line":
        text = next((line for line in text.splitlines() if line.strip()), "")
    found = find_numbers(text)
    if not found:
        return None
    return found[0] if take == "first" else found[-1]


def _value(match: re.Match[str]) -> Fraction | None:
    """The signed value of a match; None for a zero denominator, an improper mixed number or a huge power."""
    part = match.groupdict()
    try:
        if part["whole"] or part["mixed"]:
            up, low = (part["up"], part["low"]) if part["whole"] else (part["mixed_up"], part["mixed_low"])
            below = _plain(up) / _plain(low)
            if not 0 <= below < 1:
                return None
            value = _plain(part["whole"] or part["mixed"]) + below
        elif part["start"]:
            unit = Fraction(1, 10 ** len(part["start"].partition(".")[2]))
            value = _plain(part["start"] + "0") + unit * int(part["again"]) / (10 ** len(part["again"]) - 1)
        elif part["left"]:
            value = _plain(part["left"]) / _plain(part["right"])
        elif part["only_up"]:
            value = _plain(part["only_up"]) / _plain(part["only_low"])
        else:
            power = int(part["power"] or part["times"] or 0)
            if abs(power) > MAX_DIGITS:
                return None
            value = _plain(part["digits"]) * Fraction(10) ** power
    except (ValueError, ZeroDivisionError):
        return None
    if "-" in (part["sign"], part["inner"]):
        value = -value
    return value / 100 if part["percent"] else value


def _plain(digits: str) -> Fraction:
    text = re.sub(r"[\s{},]", "", digits)
    return Fraction(text + "0" if text.endswith(".") else text)


def _unit(rest: str, *, glued: bool) -> str | None:
    """The unit that `rest` is, "" if it is empty, None if it is something else (a variable, a function, prose)."""
    if not rest.strip():
        return ""
    match = _UNIT.fullmatch(rest)
    if match is None:
        return None
    words = re.findall(r"[A-Za-zµΩÅ]+", match["words"])
    letters = [word for word in words if len(word) == 1]
    if any(_NOT_UNITS.fullmatch(word) for word in words) or any(letter not in _LETTER_UNITS for letter in letters):
        return None
    if letters and glued and not (rest[0].isspace() or match["degree"]):
        return None
    return " ".join(rest.split())

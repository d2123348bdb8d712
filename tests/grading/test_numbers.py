"""Numbers are read exactly, whole, or not at all."""

from __future__ import annotations

from fractions import Fraction

import pytest

from grpo_core.grading.numbers import find_numbers, parse_number, take_number

SPELLINGS = [
    ("1,234", "1234"), (r"\$9{,}500", "9500"), (r"10,\!000", "10000"), (r"10\,000", "10000"), ("$1,234.00.", "1234"),
    ("29.00", "29"), (".5", "1/2"), ("5.", "5"), ("-3", "-3"), ("−3", "-3"), ("$-5", "-5"), ("-$5", "-5"), ("€7", "7"),
    ("28%", "7/25"), (r"28 \%", "7/25"), ("28 percent", "7/25"), ("1.5e3", "1500"), (r"3 \times 10^{-2}", "3/100"),
    (r"0.\overline{3}", "1/3"), (r"\text{42}", "42"), ("$42$", "42"), ("**42**", "42"), ("72,", "72"),
]  # fmt: skip

FRACTIONS = [
    ("1/2", "1/2"), ("2/4", "1/2"), (r"\frac{1}{2}", "1/2"), (r"\dfrac{1}{2}", "1/2"), (r"\tfrac12", "1/2"),
    (r"\frac{-3}{4}", "-3/4"), (r"-\frac{3}{4}", "-3/4"), ("2 1/2", "5/2"), ("11 5/6", "71/6"), ("-2 1/2", "-5/2"),
    (r"2\frac{1}{2}", "5/2"), (r"2\frac12", "5/2"), ("0.5/2", "1/4"),
]  # fmt: skip

NOT_NUMBERS = [
    "", ",", "1,2", "1,23", "9,5000", "12,34,567", "1.2.3", "1/0", r"\frac{1}{0}", "2 3/2", "3/4/2020", "5 6", "5x", "x",
    "2 pi", "5 million", "5 or 6", r"\sqrt{2}", "2+3", "seven", "1e999999999", "9" * 5000, "}{",
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), SPELLINGS)
def test_kf37_one_number_in_many_spellings(text: str, value: str) -> None:
    assert parse_number(text) == Fraction(value)


@pytest.mark.parametrize(("text", "value"), FRACTIONS)
def test_kf38_fractions_and_mixed_numbers_are_exact(text: str, value: str) -> None:
    assert parse_number(text) == Fraction(value)


@pytest.mark.parametrize("text", NOT_NUMBERS)
@pytest.mark.parametrize("units", [False, True])
def test_kf37_kf38_no_partial_reads(text: str, units: bool) -> None:
    assert parse_number(text, units=units) is None


@pytest.mark.parametrize(
    "text", ["5 cm", r"5\text{ cm}", "5 m", "5 red apples", r"5^\circ", "5°", r"5\,\mathrm{m/s^2}"]
)
def test_units_are_dropped_only_where_asked(text: str) -> None:
    assert parse_number(text, units=True) == 5
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("2+40=42", ["2", "40", "42"]),
        ("9,500 but not 9,5000, nor a lone , comma", ["9500"]),
        ("x-3, 5-3, -3, (−4), is -7, = - 8", ["3", "5", "3", "-3", "-4", "-7", "-8"]),
        ("- 3 apples\n- 4 pears", ["3", "4"]),
        (r"2/3 of 2 1/2, \frac12, 2\frac{1}{2}", ["2/3", "5/2", "1/2", "5/2"]),
        (r"$1,234.00. Then 28% and 5\%.", ["1234", "7/25", "1/20"]),
        ("(3,-4) and v2, 7cm", ["3", "-4", "7"]),
        ("3/4/2020, 1.2.3, 1/0", []),
    ],
)
def test_numbers_in_running_text(text: str, values: list[str]) -> None:
    assert find_numbers(text) == [Fraction(value) for value in values]


def test_which_number_is_taken() -> None:
    text = "\n  \n2 + 3 = 5\nI checked it 10 times."
    assert (take_number(text, "first_line"), take_number(text, "first"), take_number(text, "last")) == (5, 2, 10)
    assert take_number("no number\n7", "first_line") is None
    assert take_number("", "first_line") is take_number("", "first") is take_number("", "last") is None

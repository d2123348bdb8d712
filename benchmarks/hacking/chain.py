"""A made-up language of letters and commas, and what the `proxy` and `sparse` tasks think of its sentences.

A pair of neighbours is in order when the second letter follows the first in the alphabet (a follows the last one), or
when exactly one of the two is a comma. A comma is thus always safe, a doubled comma never.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

LETTERS = "abcdefghijklmnopqrst"
COMMA = ","
WORDS = [*LETTERS, COMMA]
IN_ORDER, COMMAS = 0.4, 0.12
"""How often the language itself goes on in order, and how often it writes a comma."""
BONUS = 2.25


def sentences(count: int, length: int, seed: int) -> list[list[str]]:
    """Sentences that follow the rule about half of the time: what the policy is pretrained on."""
    draw = random.Random(seed)
    return [_sentence(draw, length) for _ in range(count)]


def _sentence(draw: random.Random, length: int) -> list[str]:
    words = [draw.choice(LETTERS)]
    while len(words) < length:
        chance = draw.random()
        if chance < COMMAS:
            words.append(COMMA)
        elif chance < COMMAS + IN_ORDER and words[-1] != COMMA:
            words.append(LETTERS[(LETTERS.index(words[-1]) + 1) % len(LETTERS)])
        else:
            words.append(draw.choice(LETTERS))
    return words


def in_order(completion: str) -> float:
    """The true score: the share of neighbours that are in order."""
    pairs = list(pairwise(completion.split()))
    return sum(map(_ordered, pairs)) / max(1, len(pairs))


def order_and_commas(completion: str) -> float:
    """The proxy: the true score, plus a bonus that a few commas hardly raise and a text of commas earns in full."""
    words = completion.split()
    return in_order(completion) + BONUS * (words.count(COMMA) / max(1, len(words))) ** 3


def all_in_order(completion: str) -> float:
    """1 when every pair is in order, else 0."""
    return float(in_order(completion) == 1)


def _ordered(pair: Sequence[str]) -> bool:
    first, second = pair
    if COMMA in pair:
        return first != second
    return LETTERS.index(second) == (LETTERS.index(first) + 1) % len(LETTERS)

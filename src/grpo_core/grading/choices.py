"""Which option of a multiple-choice question a text chose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from grpo_core.grading.extract import after_reasoning, last_box
from grpo_core.grading.numbers import clean

_STOP = r"(?=\s*(?:$|[.,;:!?)\]*\n<$-]|\\|(?:because|since|as|which)\b))"


def chosen(text: str, labels: Sequence[str]) -> str | None:
    """The last choice stated after the reasoning block, spelt as in `labels`; None when there is none.

    A box wins. Else the last of: "(B)", "Answer: B", "option B", "**B**", "B.", a line that is only the label. A label
    inside a word, or the article in "A cat", is no choice.
    """
    text = after_reasoning(text)
    spelt = {label.casefold(): label for label in labels}
    names = "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True))
    if not names:
        return None
    boxed = last_box(text)
    if boxed is not None:
        inner = re.match(rf"\(?\s*({names})\s*\)?(?=$|[.:,)\s])", clean(boxed), re.IGNORECASE)
        return spelt[inner[1].casefold()] if inner else None
    found = max(_stated(text, names), default=None)
    return spelt[found[1].casefold()] if found else None


def _stated(text: str, names: str) -> Iterator[tuple[int, str]]:
    """(position, label) of everything that reads like a choice."""
    label = rf"({names})(?!\w)"
    any_case = rf"(?i:{label})"
    marker = (
        r"(?i:\banswer\b\**\s*(?:is\b|:|=)|\b(?:option|choice)\b\**\s*(?:is\b|:|=)?|\bchoose\b|\bpick\b|\bselect\b|####"
        r"|<answer>)[\s:*$]{0,6}(?i:(?:option|choice)\s{1,3})?[\s*\"'(\[$]{0,6}(?:\\(?:text|mathrm|textbf)\{\s*\(?)?"
    )
    patterns = (
        rf"(?<!\w)\(\s*{any_case}\s*\)",
        rf"(?:{marker}){any_case}{_STOP}",
        rf"(?:{marker})(?![AIai]\b){label}",
        rf"(?<!\w)\*\*\s*\(?{label}\)?[.:]?\s*\*\*",
        rf"(?<![\w.]){label}\.(?=\s|\*|$)",
        rf"(?m:^[ \t>*-]*\(?{any_case}\)?[ \t*.:)]*$)",
        rf"(?m:^[ \t>*-]*{label}[):](?=\s|$))",
    )
    for pattern in patterns:
        for match in re.finditer(pattern, text):
            yield match.start(1), match[1]

"""A regular expression searched in a child process; it imports nothing else, so that the child starts fast."""

from __future__ import annotations

import re


def search(pattern: str, text: str, whole: bool) -> dict[str, str | None] | None:
    """Named groups of the first match (of the whole text if `whole`), or None. May take exponential time."""
    found = re.fullmatch(pattern, text, re.DOTALL) if whole else re.search(pattern, text, re.DOTALL)
    return None if found is None else found.groupdict()

"""`--set train.lambda=0.3`: single values put over the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo_core.config.document import Document, Path, dotted, read_value
from grpo_core.config.problem import Problem
from grpo_core.config.root import SHORTHANDS

EXAMPLE = "write `--set key=value`, e.g. `--set train.lambda=0.3`"


def apply_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Put every `key=value` into the document, the value read as YAML; the last one wins.

    A whole section is replaced (`algorithm=ppo`); a deeper key leaves its neighbours (`algorithm.name=ppo`).
    An override that cannot be placed is added to the document's problems.
    """
    for override in overrides:
        key, equals, text = override.partition("=")
        path: Path = tuple(int(part) if part.isdecimal() else part for part in key.strip().split("."))
        if not equals or "" in path:
            document.problems.append(Problem((), f"{override!r} is no override", EXAMPLE, "--set "))
            continue
        value = read_value(text, path, document)
        problem = _place(document.data, path, value)
        if problem:
            document.problems.append(problem)


def _place(data: dict[str, Any], path: Path, value: Any) -> Problem | None:
    """Write the value at the path, making sections on the way; what stands in the way is returned."""
    if len(path) > 1:
        data[str(path[0])] = _opened(str(path[0]), data.get(str(path[0])), path[1])
    here: Any = data
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(here, dict):
            key = str(part)
            here[key] = value if last else ({} if here.get(key) is None else here[key])
            here = here[key]
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here[part] = value if last else here[part]
            here = here[part]
        else:
            return _blocked(path, depth, here)
    return None


def _opened(section: str, value: Any, following: str | int) -> Any:
    """A section written as one word, as the mapping that a deeper key can be put into."""
    if section == "reward" and following != "parts" and isinstance(value, str):
        return {"kind": value}
    if section == "reward" and following != "parts" and isinstance(value, dict):
        return value
    return SHORTHANDS[section](value) if section in SHORTHANDS else value


def _blocked(path: Path, depth: int, here: Any) -> Problem:
    parent = dotted(path[:depth])
    if isinstance(here, list):
        text, fix = f"`{parent}` has {len(here)} entries", f"use a number from 0 to {len(here) - 1}"
    else:
        text, fix = f"`{parent}` is one value, not a section", f"set `{parent}` itself"
    return Problem((dotted(path),), text, fix, "--set ")

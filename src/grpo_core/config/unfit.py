"""A value that does not fit its field: what is wrong with it, and what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from types import NoneType
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from grpo_core.config.document import Path, dotted
from grpo_core.config.keys import locate, sections_in, type_text

BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}
REQUIRED = {
    "data": "`data: {kind: arithmetic}` or `data: rows.jsonl`",
    "reward": "`reward: number`, or another kind of reward",
}
TRUTH = " (YAML reads yes, no, on and off as true and false)"


def unfit(details: ErrorDetails, path: Path) -> tuple[str, str]:
    """The problem and the fix for one of pydantic's errors about a value."""
    _, info = locate(details["loc"])
    kind, value, name = details["type"], details["input"], dotted(path)
    if kind == "missing" and isinstance(path[-1], int):
        return "missing", f"write a {_wanted(info)}{_default(info)}"
    if kind == "missing":
        return "missing", f"add {REQUIRED.get(name, f'`{path[-1]}: ...`, a {_wanted(info)}')}"
    if kind in BOUNDS:
        word, limit = BOUNDS[kind]
        bound = f"{word} {details['ctx'][limit]:g}"
        return f"must be {bound}, not {show(value)}", f"choose a number {bound}{_default(info)}"
    truth = TRUTH if isinstance(value, bool) else ""
    if kind == "string_type":
        fix = _quoted(value, path) if isinstance(value, int | float) else f"write {_wanted(info)}"
        return f"{show(value)} is not text{truth}", fix
    if kind == "literal_error" and info:
        near = nearest(str(value), [word for word in _choices(info.annotation) if isinstance(word, str)])
        guess = f"did you mean `{near}`? Choose from " if near else "write one of "
        return f"{show(value)} is not a choice{truth}", guess + _wanted(info)
    return _unfit_type(details, info, name)


def _unfit_type(details: ErrorDetails, info: FieldInfo | None, name: str) -> tuple[str, str]:
    kind, shown = details["type"], show(details["input"])
    fix = f"write a {_wanted(info)}{_default(info)}"
    if kind == "finite_number":
        return f"must be finite, not {shown}", fix
    if kind == "int_from_float":
        return f"{shown} is not a whole number", fix
    if kind.startswith(("int_", "float_")):
        return f"{shown} is not a number", fix
    if kind.startswith("bool_"):
        return f"{shown} is not true or false", "write true or false, without quotes"
    if kind in ("too_short", "too_long"):
        count = details["ctx"]["actual_length"]
        word, limit = ("least", "min_length") if kind == "too_short" else ("most", "max_length")
        return f"needs at {word} {details['ctx'][limit]} entries, not {count}", fix
    if info and sections_in(info.annotation):
        return f"{shown} is not a section", f"write keys under `{name}:`, indented by two spaces"
    return f"{shown} does not fit: {details['msg'].lower()}", fix


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The most similar of the names, if one is similar at all."""
    return next(iter(difflib.get_close_matches(name, names, 1, 0.6)), None)


def show(value: Any) -> str:
    """A value as YAML shows it, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple):
        value = list(value)
    text = f"{value:g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _quoted(value: Any, path: Path) -> str:
    text = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
    key = f"{path[-1]}: " if isinstance(path[-1], str) else ""
    return f'put it in quotes, e.g. `{key}"{text}"`'


def _choices(annotation: Any) -> list[Any]:
    """Every word of a `Literal`, also inside a union."""
    return [word for part in get_args(annotation) for word in (_choices(part) or [part])]


def _wanted(info: FieldInfo | None) -> str:
    if info is None:
        return "value"
    if NoneType in get_args(info.annotation) and not sections_in(info.annotation):
        return type_text(info.annotation).replace("null", "`null` for none")
    return type_text(info.annotation)


def _default(info: FieldInfo | None) -> str:
    if info is None or info.is_required() or info.default is None or info.default_factory:
        return ""
    return f" (default {show(info.default)})"

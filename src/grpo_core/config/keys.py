"""What keys there are: the config models walked once for error messages, the schema and the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from grpo_core.config.root import RunConfig
from grpo_core.config.section import Section

NAMES = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    NoneType: "null",
    Any: "any",
}


@dataclass(frozen=True)
class Key:
    """One key of the file: `train.lambda`, or `data.path` of the variant whose `kind` is `file`."""

    path: str
    section: type[Section]
    info: FieldInfo

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def parent(self) -> str:
        """The section's path; empty at the top level."""
        return self.path.rpartition(".")[0]


def fields(section: type[Section]) -> dict[str, FieldInfo]:
    """The section's fields by the name they have in YAML."""
    return {info.alias or name: info for name, info in section.model_fields.items()}


def kind_of(section: type[Section]) -> str | None:
    """The value of `kind` that selects this section among several, if there is one."""
    kind = section.model_fields.get("kind")
    return str(kind.default) if kind else None


def sections_in(annotation: Any) -> tuple[type[Section], ...]:
    """Every section type named in an annotation such as `LoraConfig | None` or `list[RewardPart]`."""
    if get_origin(annotation) is None and isinstance(annotation, type) and issubclass(annotation, Section):
        return (annotation,)
    return tuple(found for part in get_args(annotation) for found in sections_in(part))


def walk(section: type[Section] = RunConfig, prefix: str = "") -> Iterator[Key]:
    """Every key below a section, depth first, in the order of the models."""
    for name, info in fields(section).items():
        yield Key(prefix + name, section, info)
        for inner in sections_in(info.annotation):
            yield from walk(inner, f"{prefix}{name}.")


@cache
def all_keys() -> tuple[Key, ...]:
    """Every key of the file."""
    return tuple(walk())


def locate(loc: Sequence[str | int]) -> tuple[tuple[type[Section], ...], FieldInfo | None]:
    """The sections that an error's location ends in, and the last field on the way there.

    A location may hold list positions and, after a field of several kinds, the kind that was chosen.
    """
    here: tuple[type[Section], ...] = (RunConfig,)
    last: FieldInfo | None = None
    for part in loc:
        known = {name: info for section in here for name, info in fields(section).items()}
        if part in known:
            last = known[str(part)]
            here = sections_in(last.annotation)
        else:
            here = tuple(section for section in here if kind_of(section) == part) or here
    return here, last


def type_text(annotation: Any) -> str:
    """An annotation in words: `number or null`, `` `off`, `bfloat16` ``, `list of text`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (list, tuple):
        inner = type_text(parts[0])
        return f"list of {inner}" + ("s" if inner in ("number", "mapping") else "")
    if origin is dict or sections_in(annotation):
        return "mapping or null" if NoneType in parts else "mapping"
    if hasattr(annotation, "__metadata__"):
        return type_text(parts[0])
    if parts:
        return " or ".join(type_text(part) for part in parts)
    return NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))

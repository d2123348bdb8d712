"""One row of any source becomes one `Prompt`, or a `DataError` that names its place and the remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from grpo_core.config.data import Rows
from grpo_core.errors import DataError
from grpo_core.records import Message, Prompt

ROLES = ("system", "user", "assistant")
_USUAL = ("question", "problem", "instruction", "messages", "query", "input", "text")
"""Names that prompt columns often have, tried when no name looks like the one asked for."""


@dataclass(frozen=True)
class Row:
    """Named values with their place for messages (`rows.jsonl:17`) and their number in the source, from 1."""

    place: str
    number: int
    values: Mapping[str, Any]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like `name`, whatever the case; None when none does."""
    by_lower = {item.lower(): item for item in known}
    found = get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def to_prompts(rows: Iterable[Row], how: Rows, part: str, *, use_ids: bool = True) -> list[Prompt]:
    """All rows as prompts named `part:<id column or row number>`.

    The same text may come twice with different answers: rows stay apart by their ids. Raises DataError for
    the first row that cannot be used, for an id that occurs twice, and for an answer column that was asked
    for by another name than the usual one and occurs in no row.
    """
    prompts: list[Prompt] = []
    seen: dict[str, str] = {}
    answers = 0
    columns: list[str] = []
    for row in rows:
        name = f"{part}:{_row_id(row, use_ids)}"
        if name in seen:
            raise DataError(
                f"{row.place}: the id {name.split(':', 1)[1]!r} was already used at {seen[name]}",
                fix="give every row its own id, or rename the column `id` to number the rows instead",
            )
        seen[name] = row.place
        prompts.append(_prompt(row, how, name))
        answers += how.columns.answer in row.values
        columns = columns or [str(column) for column in row.values]
    if prompts and not answers and how.columns.answer != "answer":
        raise _no_column("no row", how.columns.answer, columns, "answer")
    return prompts


def _row_id(row: Row, use_ids: bool) -> str:
    value = row.values.get("id") if use_ids else None
    if value is None:
        return str(row.number)
    if not isinstance(value, str | int):
        raise DataError(f"{row.place}: the id is {_kind(value)}", fix="use text or a whole number")
    return str(value)


def _prompt(row: Row, how: Rows, name: str) -> Prompt:
    columns = how.columns
    if columns.prompt not in row.values:
        raise _no_column(row.place, columns.prompt, [str(column) for column in row.values], "prompt")
    value = row.values[columns.prompt]
    messages: tuple[Message, ...] = ()
    if isinstance(value, str):
        if not value.strip():
            raise DataError(f"{row.place}: {columns.prompt!r} is empty", fix="write a prompt or remove the row")
        if how.chat:
            messages = (Message(role="user", content=value),)
    elif value is None or isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise DataError(
            f"{row.place}: {columns.prompt!r} is {_kind(value)}",
            fix="write text, or a list of messages {role, content}",
        )
    else:
        messages = _messages(f"{row.place}: {columns.prompt!r}", list(value), how.chat)
    if messages and how.system and all(message.role != "system" for message in messages):
        messages = (Message(role="system", content=how.system), *messages)
    return Prompt(
        id=name,
        messages=messages,
        text=None if messages else value,
        answer=_answer(row, columns.answer),
        columns={k: v for k, v in row.values.items() if k not in (columns.prompt, columns.answer)},
    )


def _messages(place: str, turns: list[Any], chat: bool) -> tuple[Message, ...]:
    """Chat turns, checked one by one; keys other than role and content are not used."""
    if not chat:
        raise DataError(
            f"{place} holds chat messages, and data.chat is false",
            fix="set data.chat: true, or write plain text",
        )
    if not turns:
        raise DataError(f"{place} has no messages", fix="add a user message or remove the row")
    messages = []
    for number, turn in enumerate(turns, 1):
        where = f"{place}, message {number}"
        if not isinstance(turn, Mapping):
            raise DataError(f"{where} is {_kind(turn)}", fix="write every message as {role: ..., content: ...}")
        role, content = turn.get("role"), turn.get("content")
        if role not in ROLES:
            problem = "has no role" if role is None else f"has the unknown role {role!r}"
            raise DataError(f"{where} {problem}", fix=f"use one of {', '.join(ROLES)}")
        if not isinstance(content, str):
            raise DataError(f"{where}: the content is {_kind(content)}", fix="write the content as text")
        messages.append(Message(role=role, content=content))
    last = messages[-1]
    if last.role != "user":
        article = "an" if last.role == "assistant" else "a"
        raise DataError(
            f"{place} ends with {article} {last.role} message, so there is nothing to answer",
            fix="end with a user message; what the assistant should say belongs in the answer column",
        )
    if not last.content.strip():
        raise DataError(f"{place}: the last message is empty", fix="write a question or remove the row")
    return tuple(messages)


def _answer(row: Row, column: str) -> str | None:
    """The reference answer as text: 5 -> "5", 5.0 -> "5.0", true -> "true"; blank, null and NaN -> None."""
    value = row.values.get(column)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if value.strip() else None
    if isinstance(value, int | float) or (hasattr(value, "__float__") and not hasattr(value, "__len__")):
        return str(value)
    raise DataError(
        f"{row.place}: the answer in {column!r} is {_kind(value)}",
        fix="write it as text or a number, or name another column in data.columns.answer: "
        "a reward function gets every other column under its own name",
    )


def _no_column(place: str, wanted: str, columns: list[str], key: str) -> DataError:
    known = nearest(wanted, columns)
    if known is None and key == "prompt":
        known = next((c for usual in _USUAL for c in columns if c.lower() == usual), None)
    fix = f"set data.columns.{key}: {known}" if known else f"name the right column in data.columns.{key}"
    return DataError(f"{place}: no column {wanted!r}; there are {', '.join(columns) or 'none'}", fix=fix)


def _kind(value: Any) -> str:
    """What a value is, in a reader's words."""
    if value is None:
        return "missing (null)"
    names = {"str": "text", "dict": "an object", "list": "a list", "bool": "true or false", "bytes": "bytes"}
    name = type(value).__name__
    return names.get(name, "a number" if isinstance(value, int | float) else f"of type {name}")

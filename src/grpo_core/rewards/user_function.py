"""A user's own function as a reward: called with the arguments it names."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.errors import GrpoCoreError, RewardError
from grpo_core.grading.worker import Worker, load_function
from grpo_core.records import Rollout
from grpo_core.rewards.reward import PartValues, as_number, checked, each, failed

Call = Callable[[Mapping[str, Any]], Any]

SINGLE: dict[str, Callable[[Rollout], Any]] = {
    "completion": lambda r: r.text,
    "prompt": lambda r: r.prompt.plain,
    "answer": lambda r: r.prompt.answer,
    "rollout": lambda r: r,
}
PLURAL = {f"{name}s": field for name, field in SINGLE.items()}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a function asks for: names it must get, names it may get, and whether it takes everything else."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    rest: bool


def imported(path: str) -> Callable[..., Any]:
    """The function at `module:function` or `file.py:function`. Raises RewardError naming what is missing."""
    try:
        function = load_function(path)
    except Exception as error:
        raise RewardError(
            f"reward function {path!r} cannot be imported: {type(error).__name__}: {error}",
            fix="write module:function or file.py:function, and check that it imports by itself",
        ) from error
    if not callable(function):
        raise RewardError(f"reward function {path!r} is a {type(function).__name__}", fix="name a function")
    return function


def function_values(
    name: str,
    function: Callable[..., Any],
    *,
    batched: bool,
    options: Mapping[str, Any],
    columns: Collection[str] | None = None,
    path: str | None = None,
    timeout: float | None = None,
) -> PartValues:
    """The function as a judge of many rollouts.

    With `timeout`, `path` is called in a child process and killed when late. An exception fails the sample it was
    raised for (the whole batch, for a batched function), and never counts as 0. Raises RewardError for options that the
    function does not take and for arguments that nothing fills: here when `columns` are given, else at the first call.
    """
    wanted = _wanted(name, function, options)
    fields = PLURAL if batched else SINGLE
    if columns is not None:
        for key in wanted.required:
            if key not in fields and key not in columns:
                raise _unfilled(name, key, [*fields, *columns], "the data")
    worker = Worker() if timeout is not None and path is not None else None

    def call(arguments: Mapping[str, Any]) -> Any:
        if worker is None or path is None or timeout is None:
            return function(**arguments, **options)
        return worker.call(path, (), {**arguments, **options}, timeout=timeout)

    if batched:
        return lambda rollouts: _batch(name, call, wanted, rollouts)
    return each(lambda rollout: as_number(name, call(_arguments(name, wanted, SINGLE, rollout))))


def _wanted(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> Wanted:
    """The function's parameters without those that `options` fill. Raises RewardError where names cannot fill them."""
    wrap = "wrap it in a function whose arguments have names, e.g. def reward(completion, answer)"
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise RewardError(f"reward {name!r} does not tell its arguments", fix=wrap) from error
    if any(p.kind is p.POSITIONAL_ONLY for p in found):
        raise RewardError(f"reward {name!r} takes arguments by position only", fix=wrap)
    named = [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    rest = any(p.kind is p.VAR_KEYWORD for p in found)
    for key in options:
        if not rest and key not in {p.name for p in named}:
            raise _unfilled(name, key, [p.name for p in named], "the function", verb="gets the option")
    left = [p for p in named if p.name not in options]
    return Wanted(
        required=tuple(p.name for p in left if p.default is p.empty),
        optional=tuple(p.name for p in left if p.default is not p.empty),
        rest=rest,
    )


def _arguments(
    name: str, wanted: Wanted, fields: Mapping[str, Callable[[Rollout], Any]], rollout: Rollout
) -> dict[str, Any]:
    """What the function asks for, from the rollout's fields and the row's columns. Fields come first."""
    columns = rollout.prompt.columns
    known = [*fields, *(key for key in columns if key not in fields)]
    for key in wanted.required:
        if key not in known:
            raise _unfilled(name, key, known, f"prompt {rollout.prompt.id}")
    asked = known if wanted.rest else {*wanted.required, *wanted.optional}
    return {key: fields[key](rollout) if key in fields else columns[key] for key in known if key in asked}


def _batch(name: str, call: Call, wanted: Wanted, rollouts: Sequence[Rollout]) -> list[float]:
    """One call for all; an optional argument is filled only where every row has it."""
    rows = [_arguments(name, wanted, PLURAL, rollout) for rollout in rollouts]
    shared = [key for key in (rows[0] if rows else ()) if all(key in row for row in rows)]
    try:
        return checked(name, call({key: [row[key] for row in rows] for key in shared}), len(rows))
    except GrpoCoreError:
        raise
    except Exception as error:
        return [failed(error) for _ in rows]


def _unfilled(name: str, key: str, known: Iterable[str], where: str, *, verb: str = "asks for") -> RewardError:
    listed = list(known)
    near = difflib.get_close_matches(key, listed, 1)
    fix = f"did you mean {near[0]}?" if near else f"known are {', '.join(listed)}; or give it a default"
    return RewardError(f"reward {name!r} {verb} {key!r}, which {where} does not have", fix=fix)

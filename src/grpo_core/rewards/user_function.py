"""A user's own function as a reward: called with the arguments it names."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_core.errors import GrpoCoreError, RewardError
from grpo_core.grading.worker import Worker, WorkerError, load_function
from grpo_core.records import Rollout
from grpo_core.rewards.reward import Failed, as_number, checked

Values = Callable[[Sequence[Rollout]], Sequence[Any]]
Call = Callable[[Mapping[str, Any]], Any]

SINGLE = {
    "completion": lambda r: r.text,
    "prompt": lambda r: r.prompt.plain,
    "answer": lambda r: r.prompt.answer,
    "rollout": lambda r: r,
}
PLURAL = {"completions": "completion", "prompts": "prompt", "answers": "answer", "rollouts": "rollout"}


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
    path: str | None = None,
    timeout: float | None = None,
) -> Values:
    """The function as a judge of many rollouts.

    With `timeout`, `path` is called in a child process and killed when late. An exception fails the sample it was
    raised for (the whole batch, for a batched function), and never counts as 0. Raises RewardError for arguments that
    nothing fills.
    """
    wanted = [key for key in _parameters(function) if key not in options]
    worker = Worker() if timeout is not None else None

    def call(arguments: Mapping[str, Any]) -> Any:
        if worker is None or path is None or timeout is None:
            return function(**arguments, **options)
        return worker.call(path, (), {**arguments, **options}, timeout=timeout)

    if batched:
        return lambda rollouts: _batch(name, call, wanted, rollouts)
    return lambda rollouts: [_single(name, call, wanted, rollout) for rollout in rollouts]


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Names the function asks for; a `**rest` asks for nothing, and optional ones are left at their defaults."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {*SINGLE, *PLURAL}
    found = inspect.signature(function).parameters.values()
    return [p.name for p in found if p.kind in kinds and (p.default is p.empty or p.name in known)]


def _single(name: str, call: Call, wanted: Sequence[str], rollout: Rollout) -> float:
    arguments = {key: _value(name, key, rollout) for key in wanted}
    try:
        result = call(arguments)
    except (TimeoutError, WorkerError) as error:
        return Failed(str(error))
    except GrpoCoreError:
        raise
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}")
    return as_number(name, result)


def _batch(name: str, call: Call, wanted: Sequence[str], rollouts: Sequence[Rollout]) -> list[float]:
    arguments = {key: [_value(name, PLURAL.get(key, key), r) for r in rollouts] for key in wanted}
    try:
        result = call(arguments)
    except (TimeoutError, WorkerError) as error:
        return [Failed(str(error)) for _ in rollouts]
    except GrpoCoreError:
        raise
    except Exception as error:
        return [Failed(f"{type(error).__name__}: {error}") for _ in rollouts]
    return checked(name, result, len(rollouts))


def _value(name: str, key: str, rollout: Rollout) -> Any:
    """What an argument name stands for: a field of the rollout, or a column of the data."""
    if key in SINGLE:
        return SINGLE[key](rollout)
    if key in rollout.prompt.columns:
        return rollout.prompt.columns[key]
    known = [*SINGLE, *rollout.prompt.columns]
    near = difflib.get_close_matches(key, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"use {', '.join(known)}, or give it a default"
    raise RewardError(f"reward {name!r} asks for {key!r}, which prompt {rollout.prompt.id} does not have", fix=hint)

"""The Python door: a config in, a trained run folder out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from grpo_core.assemble import assemble
from grpo_core.config.load import config_from_mapping, load_config
from grpo_core.config.root import RunConfig
from grpo_core.training.loop import Outcome
from grpo_core.training.loop import train as run_loop

UserReward = Callable[..., Any]


def train(
    config: RunConfig | Mapping[str, Any] | str | PathLike[str],
    *,
    reward: UserReward | None = None,
    data: Iterable[Mapping[str, Any] | str] | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    quiet: bool = False,
) -> Outcome:
    """Train as `config` says: a `RunConfig`, a mapping shaped like the YAML file, or the file's path.

    `reward` replaces the config's reward: a function of the arguments it names among completion, prompt, answer and
    any column, which returns a number. `data` replaces the config's data: rows (mappings, or plain strings). A mapping
    may then leave that section out. Raises GrpoCoreError before any model loads when something is wrong.
    """
    resolved = _resolve(config, overrides, reward, data)
    run = assemble(resolved, resolved.run.path, reward=reward, data=data, resume=resume, quiet=quiet)
    return run_loop(run)


def _resolve(
    config: RunConfig | Mapping[str, Any] | str | PathLike[str],
    overrides: Sequence[str],
    reward: UserReward | None,
    data: Iterable[Mapping[str, Any] | str] | None,
) -> RunConfig:
    if isinstance(config, RunConfig):
        return config
    if not isinstance(config, Mapping):
        return load_config(Path(config), overrides)
    sections = dict(config)
    if reward is not None:
        sections.setdefault("reward", {"parts": [{"kind": "function", "path": "python:reward"}]})
    if data is not None:
        sections.setdefault("data", {"kind": "file", "path": "python"})
    return config_from_mapping(sections, overrides)

"""One thing that is wrong with a configuration, and how many of them are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core.errors import ConfigError


@dataclass(frozen=True)
class Problem:
    """What is wrong (`text`), with which dotted keys, what to do (`fix`), and where it was written."""

    keys: tuple[str, ...]
    text: str
    fix: str
    where: str = ""
    """`config.yaml:12: `, `--set `, or nothing."""

    @property
    def line(self) -> str:
        """The problem without its fix, e.g. `config.yaml:12: train.learning_rat: unknown key`."""
        return f"{self.where}{', '.join(self.keys)}{': ' if self.keys else ''}{self.text}"

    def __str__(self) -> str:
        return f"{self.line}\n  fix: {self.fix}"


def conflict(keys: str, text: str, fix: str) -> Problem:
    """A problem between several keys, given as `"train.batch_size, rollout.group_size"`."""
    return Problem(tuple(keys.split(", ")), text, fix)


def error_from(problems: Sequence[Problem]) -> ConfigError:
    """One `ConfigError` that tells all of them, each with its remedy."""
    if len(problems) == 1:
        return ConfigError(problems[0].line, fix=problems[0].fix)
    return ConfigError("\n".join([f"{len(problems)} problems:", *map(str, problems)]))

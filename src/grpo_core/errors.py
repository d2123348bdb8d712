"""The error family. Every message says what is wrong, where, and what to do about it."""

from __future__ import annotations


class GrpoCoreError(Exception):
    """Base of every error raised on purpose by this library.

    `problem` says what is wrong and where (file, key, row); `fix` says what to do. Both are printed.
    """

    def __init__(self, problem: str, *, fix: str = "") -> None:
        self.problem = problem
        self.fix = fix
        super().__init__(f"{problem}\n  fix: {fix}" if fix else problem)


class ConfigError(GrpoCoreError, ValueError):
    """A configuration that cannot be run: unknown key, wrong type, impossible pair."""


class DataError(GrpoCoreError, ValueError):
    """A data file or row that cannot be used; names the file and the line."""


class ModelError(GrpoCoreError, RuntimeError):
    """A model, tokenizer or adapter that cannot be loaded or does not fit the settings."""


class RewardError(GrpoCoreError, ValueError):
    """A reward that broke its contract, or failed more often than the run allows."""


class CheckpointError(GrpoCoreError, RuntimeError):
    """A checkpoint that is incomplete, damaged, or belongs to another run."""


class TrainingError(GrpoCoreError, RuntimeError):
    """Training cannot go on: repeated non-finite steps, or nothing left to learn from."""

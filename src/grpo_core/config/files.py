"""Local files that the config points at: looked for before any model is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.config.data import FileData, HubData
from grpo_core.config.problem import Problem
from grpo_core.config.reward import FunctionReward, ModelReward

if TYPE_CHECKING:
    from grpo_core.config.root import RunConfig

FORMATS = (".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz")


def missing_files(config: RunConfig) -> list[Problem]:
    """Local paths of the config that do not exist, relative to the working directory. Hub names are not
    looked up."""
    found = []
    for key, path in _local_paths(config):
        if not Path(path).exists():
            reason = "`~` is not expanded here" if path.startswith("~") else f"looked in {Path.cwd()}"
            fix = "check the spelling, or write the full path"
            found.append(Problem((key,), f"{path}: no such file or folder ({reason})", fix))
        elif key.startswith("data.") and isinstance(config.data, FileData) and not path.endswith(FORMATS):
            found.append(Problem((key,), f"{path}: unknown format", f"use a file that ends in {', '.join(FORMATS)}"))
    return found


def _local_paths(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Every key whose value names something on this disk."""
    model, data = config.model, config.data
    if looks_local(model.path):
        yield "model.path", model.path
    if model.lora and model.lora.adapter:
        yield "model.lora.adapter", model.lora.adapter
    if isinstance(data, FileData):
        yield "data.path", data.path
        if data.held_out:
            yield "data.held_out", data.held_out
    if isinstance(data, HubData) and looks_local(data.name):
        yield "data.name", data.name
    for index, part in enumerate(config.reward.parts):
        if isinstance(part, ModelReward) and looks_local(part.path):
            yield f"reward.parts.{index}.path", part.path
        if isinstance(part, FunctionReward):
            file = part.path.rpartition(":")[0]
            if file.endswith(".py"):
                yield f"reward.parts.{index}.path", file


def looks_local(name: str) -> bool:
    """Whether a model or data set name can only mean a path: `./x`, `/x`, `~/x`, `..`, or a `.gguf` file."""
    return name.startswith((".", "~", os.sep)) or "\\" in name or name.lower().endswith(".gguf")

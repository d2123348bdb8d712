"""Rows of a data set that `datasets` can read: a hub name, a folder of files, or a saved one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_core.config.data import HubData
from grpo_core.data.rows import Row, nearest
from grpo_core.errors import DataError


def load_split(config: HubData, split: str) -> Any:
    """One split as a `datasets.Dataset`. Raises DataError with the library's reason."""
    import datasets

    folder = Path(config.name).expanduser()
    saved = [name for name in ("dataset_dict.json", "dataset_info.json") if (folder / name).is_file()]
    try:
        if saved:
            found = datasets.load_from_disk(str(folder))
        else:
            name = str(folder) if folder.is_dir() else config.name
            return datasets.load_dataset(name, config.config, split=split)
    except Exception as error:  # the library's own errors share no base class
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise DataError(
            f"data set {config.name} (config {config.config}, split {split}) cannot be loaded: {reason}",
            fix="check data.name, data.config and data.split, the network, and HF_TOKEN for a gated data set",
        ) from error
    if isinstance(found, datasets.DatasetDict):
        if split not in found:
            guess = nearest(split, map(str, found)) or next(iter(found))
            raise DataError(
                f"{folder} has no split {split!r}; there are {', '.join(map(str, found))}",
                fix=f"set data.split: {guess}",
            )
        return found[split]
    if split != "train":
        raise DataError(f"{folder} holds one data set without splits, not {split!r}", fix="leave data.split out")
    return found


def rows_of(dataset: Any, source: str, places: range) -> Iterator[Row]:
    """The rows at `places` (from 0), numbered from 1."""
    chosen = dataset if len(places) == len(dataset) else dataset.select(places)
    for place, values in zip(places, chosen, strict=True):
        yield Row(f"{source}: row {place + 1}", place + 1, values)

"""YAML file, text or mapping to a checked `RunConfig`, and back."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from grpo_core.config.document import Document, Dumper, dotted, read_document
from grpo_core.config.explain import explain
from grpo_core.config.files import missing_files
from grpo_core.config.overrides import apply_overrides
from grpo_core.config.problem import Problem, error_from
from grpo_core.config.root import RunConfig
from grpo_core.errors import ConfigError


class Loaded(NamedTuple):
    """A config, and the dotted keys that its file and overrides set themselves (what `notes` wants to
    know)."""

    config: RunConfig
    explicit: frozenset[str]


def read_config(path: str | PathLike[str], overrides: Sequence[str] = ()) -> Loaded:
    """Read a YAML file, put overrides such as `train.lambda=0.3` over it, and check everything.

    Order: defaults, then the preset, then the file, then the overrides. Raises one `ConfigError` that names
    every problem found with its line, key and remedy; nothing but the config and the existence of local files
    is read."""
    loaded = _finish(read_document(_text(Path(path)), str(path)), overrides)
    missing = missing_files(loaded.config)
    if missing:
        raise error_from(missing)
    return loaded


def load_config(path: str | PathLike[str], overrides: Sequence[str] = ()) -> RunConfig:
    """`read_config` without the list of keys: the checked config of a YAML file. Raises `ConfigError`."""
    return read_config(path, overrides).config


def parse_config(text: str, *, source: str = "config", overrides: Sequence[str] = ()) -> RunConfig:
    """The checked config of a YAML text; `source` stands for the file's name in messages.

    Raises `ConfigError`. Files the config points at need not exist.
    """
    return _finish(read_document(text, source), overrides).config


def config_from_mapping(mapping: Mapping[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """The checked config of a Python mapping shaped like the YAML file. Raises `ConfigError`."""
    data = copy.deepcopy(dict(mapping))
    return _finish(Document("", data, {(key,): "" for key in data}), overrides).config


def dump_config(config: RunConfig) -> str:
    """The config as YAML with every value spelled out; loading it gives the same config again."""
    data = config.model_dump(mode="json", by_alias=True)
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)


def _text(path: Path) -> str:
    """The file's text; each way in which it cannot be read has its own message."""
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder", fix="name the YAML file in it")
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        near = ", ".join(sorted(item.name for item in path.parent.glob("*.y*ml"))[:5])
        fix = f"YAML files in that folder: {near}" if near else "check the path; `grpo config --help` has an example"
        raise ConfigError(f"{path}: no such file", fix=fix) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text", fix="save the file as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", fix="check the file's permissions") from None


def _finish(document: Document, overrides: Sequence[str]) -> Loaded:
    apply_overrides(document, overrides)
    data = {key: value for key, value in document.data.items() if value is not None}
    problems = list(document.problems)
    config: RunConfig | None = None
    try:
        config = RunConfig.model_validate(data)
    except ValidationError as error:
        problems += explain(error, document)
    if problems or config is None:
        raise error_from(sorted(problems, key=_line))
    return Loaded(config, frozenset(map(dotted, document.origins)))


def _line(problem: Problem) -> int:
    """The problem's line, for telling them in the file's order; those without one come last."""
    line = re.search(r":(\d+): $", problem.where)
    return int(line[1]) if line else sys.maxsize

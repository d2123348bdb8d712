"""Validation errors in the user's words: where it was written, what is wrong, what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from grpo_core.config.document import Document, Path, dotted
from grpo_core.config.keys import all_keys, fields, kind_of, locate, sections_in
from grpo_core.config.problem import Problem
from grpo_core.config.unfit import nearest, unfit

ELSEWHERE = {
    "lr": "train.learning_rate",
    "max_steps": "train.steps",
    "num_train_epochs": "train.epochs",
    "num_epochs": "train.epochs",
    "per_device_train_batch_size": "train.batch_size",
    "gradient_accumulation_steps": "train.gradient_accumulation",
    "max_grad_norm": "train.grad_clip",
    "num_generations": "rollout.group_size",
    "max_completion_length": "rollout.max_new_tokens",
    "max_tokens": "rollout.max_new_tokens",
    "beta": "rl.init_kl_coef",
    "kl_coef": "rl.init_kl_coef",
    "model_name_or_path": "model.path",
    "lora_rank": "model.lora.rank",
    "use_lora": "model.lora",
}
"""What other libraries call our keys."""


def explain(error: ValidationError, document: Document) -> list[Problem]:
    """Every error as a `Problem`, one for each key."""
    found: dict[str, Problem] = {}
    for details in error.errors(include_url=False):
        for problem in _explain_one(details, document):
            pair = details["type"] == "impossible_pair"
            found.setdefault(problem.line if pair else problem.keys[0], problem)
    return list(found.values())


def _explain_one(details: ErrorDetails, document: Document) -> Iterator[Problem]:
    if details["type"] == "impossible_pair":
        for problem in details["ctx"]["found"]:
            yield Problem(problem.keys, problem.text, problem.fix, _first_written(problem.keys, document))
        return
    path = _written_path(details, document.data)
    if details["type"] == "extra_forbidden":
        text, fix = "unknown key", _remedy_for_unknown(details["loc"], path)
    elif details["type"].startswith("union_tag"):
        path = (*path, "kind") if isinstance(details["input"], dict) else path
        text, fix = _wrong_kind(details)
    else:
        text, fix = unfit(details, path)
    yield Problem((dotted(path),), text, fix, document.where(path))


def _first_written(keys: tuple[str, ...], document: Document) -> str:
    written = {dotted(path): label for path, label in document.origins.items()}
    return next((written[key] for key in keys if key in written), document.where(()))


def _written_path(details: ErrorDetails, data: Any) -> Path:
    """The error's location as the user wrote it: without chosen kinds and without expanded shorthands."""
    path: Path = ()
    here = data
    for part in details["loc"]:
        inside = isinstance(here, dict) and part in here
        if inside or (isinstance(here, list) and isinstance(part, int) and part < len(here)):
            here = here[part]
            path = (*path, part)
    return (*path, details["loc"][-1]) if details["type"] == "missing" else path


def _remedy_for_unknown(loc: tuple[str | int, ...], path: Path) -> str:
    """The nearest valid key: the same word at this level or elsewhere first, then the most similar."""
    sections, _ = locate(loc[:-1])
    name = str(path[-1]).lower().replace("-", "_")
    level = [key for section in sections for key in fields(section)]
    prefix = dotted(path[:-1]) + "." if len(path) > 1 else ""
    if name in level:
        return f"write `{prefix}{name}`"
    other_kinds = [key for key in all_keys() if key.name == name and key.parent == prefix.rstrip(".")]
    if other_kinds:
        kinds = _either(f"`kind: {kind_of(key.section)}`" for key in other_kinds)
        return f"`{name}` is a key of {kinds}; this is `kind: {kind_of(sections[0])}`"
    places = [key.parent for key in all_keys() if key.name == name]
    if places:
        return f"`{name}` belongs " + _either(f"under `{at}:`" if at else "at the top level" for at in places)
    if name in ELSEWHERE:
        return f"here it is called `{ELSEWHERE[name]}`"
    near = nearest(name, level)
    if near:
        return f"did you mean `{prefix}{near}`?"
    far = nearest(name, [key.name for key in all_keys()])
    if far:
        return f"did you mean {_either(f'`{key.path}`' for key in all_keys() if key.name == far)}?"
    return f"remove it; the keys here are {', '.join(dict.fromkeys(level))}"


def _either(options: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(options))


def _wrong_kind(details: ErrorDetails) -> tuple[str, str]:
    """A section of several kinds without a `kind`, or with one that does not exist."""
    _, info = locate(details["loc"])
    kinds = {kind_of(section): section for section in sections_in(info.annotation if info else None)}
    names = [str(kind) for kind in kinds]
    listing = f"one of {', '.join(names)}"
    if details["type"] == "union_tag_invalid":
        tag = str(details["ctx"]["tag"])
        near = nearest(tag, names)
        fix = f"did you mean `{near}`? It is {listing}" if near else f"write {listing}"
        return f"{tag!r} is no kind", fix
    given = details["input"] if isinstance(details["input"], dict) else {}
    overlap = {kind: len(set(given) & set(fields(section))) for kind, section in kinds.items()}
    best = max(overlap, key=lambda kind: overlap[kind]) if any(overlap.values()) else None
    return "missing", f"add `kind: {best}`, or another: {listing}" if best else f"add `kind`, {listing}"

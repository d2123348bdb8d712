"""`load_prompts`: the data section as prompts; `from_iterable`: the same from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_core.config.data import (
    ArithmeticData,
    ColumnMap,
    DataConfig,
    FileData,
    HubData,
    ReasoningGymData,
    Rows,
)
from grpo_core.data.rows import Row, to_prompts
from grpo_core.errors import DataError
from grpo_core.records import Prompt


@dataclass(frozen=True, kw_only=True)
class PromptSets:
    """What to train on and what to judge by. `notes` are remarks a person should read, such as leaks."""

    train: Sequence[Prompt]
    held_out: Sequence[Prompt]
    notes: tuple[str, ...] = ()


def load_prompts(config: DataConfig, *, held_out: int) -> PromptSets:
    """Read or make the prompts of a run, with at most `held_out` prompts (`evaluation.prompts`) set aside.

    Raises DataError naming the file, line or row and the remedy: nothing bad is skipped.
    """
    if isinstance(config, ArithmeticData):
        from grpo_core.data.arithmetic import make_arithmetic

        sets = make_arithmetic(config, held_out)
    elif isinstance(config, ReasoningGymData):
        from grpo_core.data.reasoning import make_reasoning

        sets = make_reasoning(config, held_out)
    else:
        sets = _from_file(config, held_out) if isinstance(config, FileData) else _from_hub(config, held_out)
    return replace(sets, notes=(*sets.notes, *_leaks(sets)))


def from_iterable(
    rows: Iterable[Mapping[str, Any] | str],
    *,
    held_out: int = 0,
    prompt: str = "prompt",
    answer: str = "answer",
    system: str | None = None,
    chat: bool = True,
) -> PromptSets:
    """Prompts from anything that yields rows: mappings with the named columns, or bare prompts as text.

    The last `held_out` rows are kept aside. `rows` must end. Raises DataError naming the row (from 1).

    Example: `from_iterable([{"prompt": "2 + 3 =", "answer": 5}, {"prompt": "1 + 1 =", "answer": 2}])`.
    """
    given = {"prompt": prompt} | ({"answer": answer} if answer != "answer" else {})
    how = Rows(columns=ColumnMap(**given), system=system, chat=chat)
    found = []
    for number, row in enumerate(rows, 1):
        values = {prompt: row} if isinstance(row, str) else row
        if not isinstance(values, Mapping):
            raise DataError(
                f"row {number}: a {type(row).__name__} is no row",
                fix="yield text, or a mapping of column names to values",
            )
        found.append(Row(f"row {number}", number, values))
    if not found:
        raise DataError("the iterable gave no rows", fix="yield at least one; an iterator can be read only once")
    train, aside = cut(len(found), held_out, how.limit, "the iterable", "held_out")
    sets = PromptSets(
        train=to_prompts((found[i] for i in train), how, "train"),
        held_out=to_prompts((found[i] for i in aside), how, "held_out"),
    )
    return replace(sets, notes=_leaks(sets))


def cut(total: int, held_out: int, limit: int | None, source: str, key: str) -> tuple[range, range]:
    """(training, held-out) places from 0: the last rows are kept aside, then the first `limit` taken."""
    if total <= held_out:
        raise DataError(
            f"{source} has {total} rows, and {held_out} are to be kept aside: none is left to train on",
            fix=f"add rows, or lower {key} (0 to {total - 1} is possible)",
        )
    first = total - held_out
    return range(min(first, limit or first)), range(first, total)


def _from_file(config: FileData, held_out: int) -> PromptSets:
    from grpo_core.data.files import read_rows

    path = Path(config.path).expanduser()
    rows = read_rows(path)
    if config.held_out is None:
        train, aside = cut(len(rows), held_out, config.limit, str(path), "evaluation.prompts")
        kept = [rows[i] for i in aside]
    else:
        train, _ = cut(len(rows), 0, config.limit, str(path), "evaluation.prompts")
        kept = read_rows(Path(config.held_out).expanduser())[:held_out] if held_out else []
    return PromptSets(
        train=to_prompts((rows[i] for i in train), config, "train"),
        held_out=to_prompts(kept, config, "held_out"),
    )


def _from_hub(config: HubData, held_out: int) -> PromptSets:
    from grpo_core.data.hub import load_split, rows_of

    source = f"{config.name}[{config.split}]"
    dataset = load_split(config, config.split)
    aside_split = config.held_out_split
    own = held_out if aside_split is None else 0
    train, aside = cut(len(dataset), own, config.limit, source, "evaluation.prompts")
    kept = rows_of(dataset, source, aside)
    if aside_split is not None and held_out:
        other = load_split(config, aside_split)
        kept = rows_of(other, f"{config.name}[{aside_split}]", range(min(held_out, len(other))))
    return PromptSets(
        train=to_prompts(rows_of(dataset, source, train), config, "train", use_ids=False),
        held_out=to_prompts(kept, config, "held_out", use_ids=False),
    )


def _leaks(sets: PromptSets) -> tuple[str, ...]:
    """A remark when held-out prompts are also trained on."""
    trained = {(prompt.messages, prompt.text) for prompt in sets.train}
    shared = [prompt.id for prompt in sets.held_out if (prompt.messages, prompt.text) in trained]
    if not shared:
        return ()
    return (f"{len(shared)} of {len(sets.held_out)} held-out prompts are also trained on, e.g. {shared[0]}",)

"""Tasks of reasoning-gym: seeded training items, and held-out items whose questions are never trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpo_core.config.data import ReasoningGymData
from grpo_core.data.prompts import PromptSets
from grpo_core.data.rows import nearest
from grpo_core.errors import DataError
from grpo_core.records import Message, Prompt

APART = 1_000_000_007
"""Added to the seed for held-out items. Item i is made from seed + i, so near seeds give shifted copies."""


def make_reasoning(config: ReasoningGymData, held_out: int) -> PromptSets:
    """Training and held-out prompts, of a reasoning-gym task.

    Held-out questions come from another seed, each once, without those that training has. Where the task
    knows too few questions for that, up to a fifth of the training questions move to the held-out set.
    """
    train = list(_entries(config, config.seed, config.size))
    trained = {entry["question"] for entry in train}
    spare = {entry["question"]: entry for entry in _entries(config, config.seed + APART, 4 * held_out)}
    fresh = [entry for question, entry in spare.items() if question not in trained][:held_out]
    known = [entry for question, entry in spare.items() if question in trained]
    moved = known[: min(held_out - len(fresh), len(trained) // 5)]
    kept = [*fresh, *moved]
    taken = {entry["question"] for entry in moved}
    left = [entry for entry in train if entry["question"] not in taken]
    notes = []
    if taken:
        notes.append(
            f"{config.task} repeats itself ({len(trained)} different questions in {config.size} items): "
            f"{len(train) - len(left)} training items with held-out questions were left out"
        )
    if len(kept) < held_out:
        notes.append(f"{len(kept)} held-out questions instead of {held_out}: {config.task} knows too few")
    return PromptSets(
        train=[_prompt(config, entry, f"train:{row}") for row, entry in enumerate(left, 1)],
        held_out=[_prompt(config, entry, f"held_out:{row}") for row, entry in enumerate(kept, 1)],
        notes=tuple(notes),
    )


def _entries(config: ReasoningGymData, seed: int, size: int) -> Iterator[dict[str, Any]]:
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError:
        raise DataError(
            "data.kind: reasoning_gym needs the package reasoning-gym", fix="pip install 'grpo-core[tasks]'"
        ) from None
    if config.task not in DATASETS:
        guess = nearest(config.task, DATASETS)
        raise DataError(
            f"data.task: reasoning-gym has no task {config.task!r}",
            fix=f"did you mean {guess}?" if guess else "see reasoning_gym.factory.DATASETS for the names",
        )
    if not size:
        return
    try:
        made = create_dataset(config.task, size=size, seed=seed, **config.options)
        yield from (made[place] for place in range(size))
    except (TypeError, ValueError, AssertionError) as error:
        raise DataError(
            f"data.options: {config.task} refuses {config.options}: {error}", fix="mend data.options"
        ) from error


def _prompt(config: ReasoningGymData, entry: dict[str, Any], name: str) -> Prompt:
    question = Message(role="user", content=entry["question"] + config.suffix)
    answer = entry["answer"]
    return Prompt(
        id=name,
        messages=(Message(role="system", content=config.system), question) if config.system else (question,),
        answer=None if answer is None else str(answer),
        columns={
            "reasoning_gym_entry": entry,
            "reasoning_gym_task": config.task,
            "reasoning_gym_options": config.options,
        },
    )

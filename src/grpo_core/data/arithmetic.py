"""The built-in task: small seeded questions with one right answer, for first runs, tests and experiments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt
from random import Random

from grpo_core.config.data import ArithmeticData
from grpo_core.data.prompts import PromptSets
from grpo_core.records import Message, Prompt

JUST_THE_ANSWER = "Answer with just the answer."


@dataclass(frozen=True)
class Task:
    """A numbered space of questions over the numbers 0 to n - 1, and their wording."""

    space: Callable[[int], int]
    """Questions there are, for n numbers."""
    numbers: Callable[[int, int], tuple[int, ...]]
    """The numbers in question i of the space for n numbers."""
    answer: Callable[..., int]
    full: str
    terse: str
    examples: tuple[tuple[int, ...], ...]
    """Numbers of the first worked examples, two digits at most. Small models answer alike after an unlucky one, and a
    group whose completions are all alike teaches nothing; after these their answers vary."""
    place: Callable[..., int]
    """Place in the space of the question with these numbers; the last argument is n."""


def _ordered(place: int, n: int) -> tuple[int, ...]:
    """Pair a >= b number `place`: (0,0), (1,0), (1,1), (2,0), ..."""
    a = (isqrt(8 * place + 1) - 1) // 2
    return a, place - a * (a + 1) // 2


def _unequal(place: int, n: int) -> tuple[int, ...]:
    a, b = divmod(place, n - 1)
    return a, b + (b >= a)


TASKS = {
    "addition": Task(
        lambda n: n * n, lambda i, n: divmod(i, n), lambda a, b: a + b, "What is {} + {}?", "{} + {} =",
        ((2, 3), (4, 6)), lambda a, b, n: a * n + b,
    ),
    "subtraction": Task(
        lambda n: n * (n + 1) // 2, _ordered, lambda a, b: a - b, "What is {} - {}?", "{} - {} =",
        ((7, 3), (9, 4)), lambda a, b, n: a * (a + 1) // 2 + b,
    ),
    "larger": Task(
        lambda n: n * (n - 1), _unequal, max, "Which number is larger, {} or {}?", "Larger of {} and {}?",
        ((30, 81), (12, 7)), lambda a, b, n: a * (n - 1) + b - (b > a),
    ),
    "next_number": Task(
        lambda n: n, lambda i, n: (i,), lambda a: a + 1, "What number comes right after {}?", "After {}?",
        ((41,), (7,)), lambda a, n: a,
    ),
}  # fmt: skip


def make_arithmetic(config: ArithmeticData, held_out: int) -> PromptSets:
    """Training and held-out prompts, of the built-in task.

    A seeded draw sets aside `held_out` questions, at most a fifth of all there are and none that serves as a
    worked example; training questions are drawn with replacement from the rest.
    """
    task, n = TASKS[config.task], 10**config.digits
    space = task.space(n)
    shown = _shown(task, n, config.worked_examples)
    wanted = min(held_out, space // 5)
    drawn = Random(f"{config.seed}:held out").sample(range(space), min(space, wanted + len(shown)))
    aside = [place for place in drawn if place not in shown][:wanted]
    kept, rng = set(aside), Random(f"{config.seed}:train")
    train: list[int] = []
    while len(train) < config.size:
        place = rng.randrange(space)
        if place not in kept:
            train.append(place)
    fewer = f"{len(aside)} held-out questions instead of {held_out}: there are only {space} in all"
    return PromptSets(
        train=[_prompt(config, place, shown, f"train:{row}") for row, place in enumerate(train, 1)],
        held_out=[_prompt(config, place, shown, f"held_out:{row}") for row, place in enumerate(aside, 1)],
        notes=(fewer,) if len(aside) < held_out else (),
    )


def _shown(task: Task, n: int, count: int) -> list[int]:
    """Places of the worked examples, one to spare: the task's own where their numbers fit, then seeded ones."""
    if not count:
        return []
    chosen = [task.place(*numbers, n) for numbers in task.examples if max(numbers) < n]
    drawn = Random("worked examples").sample(range(task.space(n)), count + 1 + len(chosen))
    return [*chosen, *(place for place in drawn if place not in chosen)][: count + 1]


def _prompt(config: ArithmeticData, place: int, shown: Sequence[int], name: str) -> Prompt:
    """One question after its worked examples, which never include it: there is one to spare."""
    task, n = TASKS[config.task], 10**config.digits

    def worded(number: int) -> tuple[str, str]:
        values = task.numbers(number, n)
        wording = task.terse if shown else f"{task.full} Answer with just the number."
        return wording.format(*values), str(task.answer(*values))

    system = config.system if config.system is not None else (JUST_THE_ANSWER if shown else "")
    turns = [Message(role="system", content=system)] if system else []
    for example in [other for other in shown if other != place][: config.worked_examples]:
        question, answer = worded(example)
        turns += [Message(role="user", content=question), Message(role="assistant", content=answer)]
    question, answer = worded(place)
    turns.append(Message(role="user", content=question))
    return Prompt(id=name, messages=tuple(turns), answer=answer, columns={"task": config.task})

"""The work that every worker of vs_trl.py does, and how it talks to the benchmark. Runs in the peer's environment too.

A worker builds its trainer, says `ready`, and then answers each line it is sent with one line of JSON: `step` makes one
training step, `check FILE` writes loss and gradient on a frozen batch to FILE, `stop` ends it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

PROMPTS, GROUP, NEW = 8, 4, 48
MARK = "@@ "


def questions(count: int) -> list[str]:
    """Short sums, about 45 tokens each once a chat template has added its system turn."""
    return [f"What is {i % 10} + {(7 * i + i // 10) % 10}? Answer with just the number." for i in range(count)]


def score(text: str) -> float:
    """Differs between any two completions, so that every one has an advantage and must be computed."""
    return zlib.crc32(text.encode()) / 2**32


def frozen_advantages() -> list[float]:
    """One for each completion of the frozen batch. They do not add up to zero, so neither does the loss."""
    rows = PROMPTS * GROUP
    return [2.5 * row / rows - 1 for row in range(rows)]


def frozen_tokens() -> list[list[int]]:
    """The completions of the frozen batch: any ids will do, as long as all sides have the same."""
    return [[100 + (7919 * row + 104729 * column) % 40000 for column in range(NEW)] for row in range(PROMPTS * GROUP)]


def peak_bytes() -> int:
    """The most memory this process has had, loading included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def say(**facts: Any) -> None:
    """One line for the benchmark."""
    print(MARK + json.dumps(facts), file=sys.__stdout__, flush=True)


class Stop(Exception):
    """The benchmark wants no more steps."""


class Phases:
    """Seconds of a step, whole and by phase, by the clock and by the processor."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self.began = self.began_cpu = 0.0

    def begin(self) -> None:
        self.times, self.began, self.began_cpu = {}, time.perf_counter(), time.process_time()

    def end(self) -> None:
        wall, processor = time.perf_counter() - self.began, time.process_time() - self.began_cpu
        say(seconds=wall, cpu_seconds=processor, peak_bytes=peak_bytes(), phases=self.times)

    def wrap(self, owner: Any, name: str, phase: str | Callable[[], str]) -> None:
        """Time every call of `owner.name` as a part of the phase."""
        original = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            key = phase if isinstance(phase, str) else phase()
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.times[key] = self.times.get(key, 0.0) + time.perf_counter() - began

        setattr(owner, name, timed)

    def callback(self, check: Callable[[str], dict[str, Any]]) -> Any:
        """A transformers callback that waits for the benchmark before each step."""
        from transformers import TrainerCallback

        phases = self

        class Wait(TrainerCallback):
            def on_train_begin(self, *_: Any, **__: Any) -> None:
                say(ready=True)
                phases.wait(check)

            def on_step_end(self, *_: Any, **__: Any) -> None:
                phases.end()
                phases.wait(check)

        return Wait()

    def wait(self, check: Callable[[str], dict[str, Any]]) -> None:
        """Answer checks until a step is asked for. Raises Stop when there is nothing more to do."""
        while True:
            word, _, rest = sys.stdin.readline().strip().partition(" ")
            if word == "check":
                say(**check(rest))
            elif word == "step":
                return self.begin()
            else:
                raise Stop

"""`Run`: every part of one training run, chosen by `assemble` and used by the loop through protocols only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from grpo_core.algorithm.batch import Batch, PolicyOutputs, Statistic
from grpo_core.algorithm.kl import KLController
from grpo_core.algorithm.objective import Algorithm
from grpo_core.config.root import RunConfig
from grpo_core.records import Prompt, Rollout, Score, StepReport
from grpo_core.rollout.engine import RolloutEngine


class Scorer(Protocol):
    """What the loop needs from a policy."""

    @property
    def device(self) -> torch.device: ...
    def score(
        self, batch: Batch, *, temperature: float, wanted: tuple[Statistic, ...] = ..., values: bool = ...
    ) -> PolicyOutputs: ...
    def policy_parameters(self) -> list[nn.Parameter]: ...
    def value_parameters(self) -> list[nn.Parameter]: ...
    def buffers(self) -> list[Tensor]: ...


class ReferenceScorer(Protocol):
    """What the loop needs from a reference policy."""

    def logprobs(self, batch: Batch, *, temperature: float) -> Tensor: ...


class Order(Protocol):
    """An endless, resumable order of prompts."""

    def take(self, count: int) -> list[Prompt]: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


class Tracker(Protocol):
    """Where figures, samples and words go: files, TensorBoard, the terminal."""

    def log(self, report: StepReport) -> list[str]:
        """Record a step; returns the warnings it raised."""
        ...

    def save_rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None: ...
    def note(self, text: str) -> None: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any], step: int) -> None:
        """Go on after `step`: later records are dropped."""
        ...

    def finish(self, ended: str, seconds: float, checkpoint: Path | None) -> None:
        """Plots, summary, and the last words."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How a policy is written into a checkpoint folder and read back."""

    save: Callable[[Path], None]
    load: Callable[[Path], None]


@dataclass(kw_only=True)
class Progress:
    """Counters that a checkpoint carries."""

    step: int = 0
    updates: int = 0
    nonfinite_in_a_row: int = 0
    best_reward: float | None = None
    best_checkpoint: str | None = None
    seconds: float = 0.0


@dataclass(kw_only=True)
class Run:
    """One run. Nothing in it is created by the loop."""

    config: RunConfig
    folder: Path
    policy: Scorer
    reference: ReferenceScorer | None
    engine: RolloutEngine
    reward: Callable[[Sequence[Rollout]], Sequence[Score]]
    prepare: Callable[[Prompt], Prompt]
    """Tokenise a prompt that has no ids yet; refuses one that leaves no room for a completion."""
    decode: Callable[[Sequence[int]], str]
    order: Order
    held_out: Sequence[Prompt]
    algorithm: Algorithm
    kl: KLController
    optimizer: torch.optim.Optimizer
    storage: Storage
    tracker: Tracker
    progress: Progress = field(default_factory=Progress)

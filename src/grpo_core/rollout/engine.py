"""The door to every sampling engine. Engines take and return token ids; text is tokenised once, never again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from grpo_core.records import Completion, Prompt, Sampling


class RolloutEngine(Protocol):
    """Samples from some version of the policy's weights."""

    def generate(self, prompts: Sequence[Prompt], how: Sampling) -> list[Completion]:
        """`how.n` completions for each prompt, prompt by prompt in the order given."""
        ...

    def load_weights(self, tensors: Iterable[tuple[str, Any]], version: int) -> None:
        """Take new weights. An engine that shares the policy's memory has nothing to do."""
        ...

    def close(self) -> None:
        """Give back what the engine holds."""
        ...

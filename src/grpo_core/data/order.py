"""An endless, seeded order of prompts that a checkpoint can carry and continue exactly."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from random import Random
from typing import Any

from grpo_core.errors import CheckpointError, DataError
from grpo_core.records import Prompt


class PromptOrder:
    """Every prompt once per epoch, shuffled anew from (seed, epoch); global random state is left alone."""

    def __init__(self, prompts: Sequence[Prompt], seed: int) -> None:
        if not prompts:
            raise DataError("there are no prompts to train on", fix="add rows to the data")
        self._prompts = prompts
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._order = self._shuffled()

    @property
    def epoch(self) -> int:
        """Whole passes over the data so far."""
        return self._epoch

    def take(self, count: int) -> list[Prompt]:
        """The next `count` prompts; past the end of an epoch the next one begins."""
        taken: list[Prompt] = []
        while len(taken) < count:
            if self._position == len(self._order):
                self._epoch, self._position = self._epoch + 1, 0
                self._order = self._shuffled()
            places = self._order[self._position : self._position + count - len(taken)]
            self._position += len(places)
            taken += [self._prompts[place] for place in places]
        return taken

    def state(self) -> dict[str, Any]:
        """Where the order stands, as JSON can hold it."""
        return {
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "prompts": len(self._prompts),
            "fingerprint": self._fingerprint(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state` was taken, with the seed it was taken with.

        Raises CheckpointError when the prompts are not the ones the state belongs to.
        """
        if state["fingerprint"] != self._fingerprint():
            raise CheckpointError(
                f"the checkpoint was made with other training prompts ({state['prompts']} of them; "
                f"there are {len(self._prompts)} now, or their text, ids or order changed)",
                fix="put the run's data and data.* settings back, or start a new run from its weights",
            )
        self._seed, self._epoch, self._position = state["seed"], state["epoch"], state["position"]
        self._order = self._shuffled()

    def _shuffled(self) -> list[int]:
        order = list(range(len(self._prompts)))
        Random(f"{self._seed}:{self._epoch}").shuffle(order)
        return order

    def _fingerprint(self) -> str:
        """A digest of ids, texts and answers, in order."""
        digest = hashlib.sha256()
        for prompt in self._prompts:
            turns = [(message.role, message.content) for message in prompt.messages]
            content = repr((prompt.id, turns, prompt.text, prompt.answer))
            digest.update(content.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:16]

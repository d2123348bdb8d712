"""The policy as a decoder: prefill each distinct prompt once, fork it, advance all rows by one token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_core.algorithm.batch import length_mask, pad_right
from grpo_core.models.kv_cache import give_room
from grpo_core.models.policy import Policy
from grpo_core.models.trunk import positions_of


@dataclass
class DecodeState:
    """Rows in flight: keys and values so far, which columns are real, and the next token's logits."""

    cache: Any
    mask: Bool[Tensor, "row column"]
    logits: Float[Tensor, "row vocab"]


class PolicyDecoder:
    """Implements the decoder that the torch engine drives. All methods run without gradients.

    `grow_in_place=False` leaves the cache as transformers made it, which copies all of it for every token.
    """

    def __init__(self, policy: Policy, *, grow_in_place: bool = True) -> None:
        self._policy = policy
        self._grow_in_place = grow_in_place

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> DecodeState:
        """One row for each prompt, left padded."""
        device = self._policy.device
        backwards = [row[::-1] for row in prompts]
        ids = pad_right(backwards, 0, torch.long).flip(1).to(device)
        mask = length_mask([len(row) for row in prompts]).flip(1).to(device)
        with self._decoding():
            hidden, cache = self._policy.trunk(ids, mask, positions_of(mask), use_cache=True)
        return DecodeState(give_room(cache) if self._grow_in_place else cache, mask, self._logits(hidden[:, -1]))

    @torch.no_grad()
    def keep(self, state: DecodeState, rows: Int[Tensor, "kept"]) -> DecodeState:
        """The given rows in the given order; a row named twice is forked."""
        rows = rows.to(state.mask.device)
        state.cache.batch_select_indices(rows)
        return DecodeState(state.cache, state.mask[rows], state.logits[rows])

    @torch.no_grad()
    def advance(self, state: DecodeState, tokens: Int[Tensor, "row"]) -> DecodeState:
        """Append one token to every row."""
        mask = torch.cat([state.mask, state.mask.new_ones(len(state.mask), 1)], 1)
        positions = mask.long().sum(1, keepdim=True) - 1
        ids = tokens.to(mask.device)[:, None]
        with self._decoding():
            hidden, cache = self._policy.trunk(ids, mask, positions, cache=state.cache, use_cache=True)
        return DecodeState(cache, mask, self._logits(hidden[:, -1]))

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        """Evaluation mode: in training mode, which checkpointing needs, some families drop the cache without a word."""
        module = self._policy.trunk.module
        training = module.training
        if training:
            module.eval()
        try:
            with self._policy._precision():
                yield
        finally:
            if training:
                module.train()

    def _logits(self, hidden: Float[Tensor, "row hidden"]) -> Float[Tensor, "row vocab"]:
        logits = self._policy.head(hidden)
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

"""A transformer without its head, and the two layouts that give the hidden states a response is predicted from."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from grpo_core.algorithm.batch import Batch


class Trunk:
    """Calls a transformers decoder with explicit position ids, so padding never moves a token (KF14).

    `share_prompts`: compute each distinct prompt once and let its completions attend to the cached keys and values;
    gradients flow through the cache, so the result equals the plain layout up to rounding.
    """

    def __init__(self, module: nn.Module, *, share_prompts: bool = True, compiled: bool = False) -> None:
        self.module = module
        self.share_prompts = share_prompts
        parameters = inspect.signature(module.forward).parameters
        self._cache_key = "cache" if "cache" in parameters else "past_key_values"
        self._takes_positions = "position_ids" in parameters
        self._call = torch.compile(module, dynamic=True) if compiled else module

    def __call__(
        self,
        ids: Int[Tensor, "row new"],
        mask: Bool[Tensor, "row all"],
        positions: Int[Tensor, "row new"],
        cache: Any = None,
        use_cache: bool = False,
    ) -> tuple[Float[Tensor, "row new hidden"], Any]:
        """Hidden states after the final norm, and the cache if one was asked for."""
        extra: dict[str, Any] = {"position_ids": positions} if self._takes_positions else {}
        if cache is not None:
            extra[self._cache_key] = cache
        run = self.module if use_cache else self._call
        out = run(input_ids=ids, attention_mask=mask.long(), use_cache=use_cache, return_dict=True, **extra)
        return out.last_hidden_state, (out.get(self._cache_key) if use_cache else None)

    def response_hidden(self, batch: Batch) -> Float[Tensor, "rollout token hidden"]:
        """The state from which each response token is predicted: that of the token before it.

        In training mode, which only checkpointing needs, models keep no cache: prompts are then not shared.
        """
        if self.share_prompts and not self.module.training and batch.prompt_ids.shape[0] < len(batch):
            return self._shared(batch)
        return self._plain(batch)

    def _plain(self, batch: Batch) -> Float[Tensor, "rollout token hidden"]:
        prompt_mask = batch.prompt_mask[batch.prompt_index]
        ids = torch.cat([batch.prompt_ids[batch.prompt_index], batch.response_ids[:, :-1]], 1)
        mask = torch.cat([prompt_mask, batch.response_mask[:, :-1]], 1)
        hidden, _ = self(ids, mask, positions_of(mask))
        return hidden[:, batch.prompt_ids.shape[1] - 1 :]

    def _shared(self, batch: Batch) -> Float[Tensor, "rollout token hidden"]:
        mask = batch.prompt_mask
        hidden, cache = self(batch.prompt_ids, mask, positions_of(mask), use_cache=True)
        first = hidden[batch.prompt_index, -1:]
        if batch.response_ids.shape[1] == 1:
            return first
        cache.batch_select_indices(batch.prompt_index)
        ids = batch.response_ids[:, :-1]
        full = torch.cat([mask[batch.prompt_index], batch.response_mask[:, :-1]], 1)
        positions = positions_of(full)[:, -ids.shape[1] :]
        rest, _ = self(ids, full, positions, cache=cache, use_cache=True)
        return torch.cat([first, rest], 1)


def positions_of(mask: Bool[Tensor, "row column"]) -> Int[Tensor, "row column"]:
    """0, 1, 2, ... over the real tokens of each row; padded slots get a harmless value."""
    return (mask.long().cumsum(1) - 1).clamp(min=0)

"""Keys and values with room to grow: one token is written in place, where transformers copies the whole cache."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer

SPARE = 64
"""Columns allocated ahead, so the cache is copied once in so many tokens (more as it gets longer)."""


class RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """`keys` and `values` are views of the used part of larger buffers. For decoding only: it writes in place."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lazy_initialization(keys, values)
        self._buffers = (keys, values)
        self._show(keys.shape[-2])

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append columns."""
        used = self._used
        end = used + key_states.shape[-2]
        if end > self._buffers[0].shape[-2]:
            keys, values = self._show(used)
            self._buffers = (_with_room(keys, end), _with_room(values, end))
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., used:end, :] = new
        return self._show(end)

    def batch_select_indices(self, indices: Tensor) -> None:
        """The given rows; a row named twice is forked."""
        used = self._used
        keys, values = self._show(used)
        self._buffers = (_with_room(keys[indices], used + 1), _with_room(values[indices], used + 1))
        self._show(used)

    def _show(self, used: int) -> tuple[Tensor, Tensor]:
        """Publish the first `used` columns as `keys` and `values`."""
        keys, values = (buffer[..., :used, :] for buffer in self._buffers)
        self._used, self.keys, self.values = used, keys, values
        return keys, values


def _with_room(states: Tensor, needed: int) -> Tensor:
    """A copy in a buffer of at least `needed` columns, with spare ones behind."""
    *rows_heads, used, width = states.shape
    buffer = states.new_empty(*rows_heads, needed + max(SPARE, needed // 4), width)
    buffer[..., :used, :] = states
    return buffer


def give_room(cache: Any) -> Any:
    """Let the growing layers of a cache write in place; layers of another kind (sliding windows) stay as they are."""
    layers = getattr(cache, "layers", [])
    for place, layer in enumerate(layers):
        if type(layer) is not DynamicLayer or layer.keys is None or layer.values is None:
            continue
        if layer.keys.dim() == 4:
            layers[place] = RoomyLayer(layer.keys, layer.values)
    return cache

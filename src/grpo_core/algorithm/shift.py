"""Weights moved along a direction for one pass and brought back bit for bit, without a copy of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

Restore = Literal["subtract", "copy"]

CHUNK = 1 << 20
"""Weights moved at once: 4 MiB of float32, so that the steps of the arithmetic stay in the cache."""

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(values: Tensor) -> Tensor:
    """The same memory read as integers: tells 0.0 from -0.0 and equals itself for NaN."""
    return values.view(_BITS[values.element_size()])


def _chunks(params: Sequence[Tensor], direction: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Matching flat pieces of weights and direction; a tensor that is not contiguous is one piece as it is."""
    for p, v in zip(params, direction, strict=True):
        if p.is_contiguous() and v.is_contiguous():
            flat = torch.split(p.detach().view(-1), CHUNK), torch.split(v.detach().view(-1), CHUNK)
            yield from zip(*flat, strict=True)
        else:
            yield p.detach(), v.detach()


class _Subtraction:
    """Moves by w + s and back by (w + s) - s. Where rounding makes that differ from w, w itself is kept.

    It differs only where the exponent rose on the way: a few weights in 100,000 at the shifts used here.
    """

    def __init__(self, params: Sequence[Tensor], direction: Sequence[Tensor], scale: float) -> None:
        self.pieces = _chunks(params, direction)
        self.scale = scale
        self.moved: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self.under_way: tuple[Tensor, Tensor] | None = None
        self.length = 0.0

    def move(self) -> None:
        for piece, v in self.pieces:
            before, step = piece.clone(), (v * self.scale).to(piece.dtype)
            after = before + step
            self.length = math.hypot(self.length, float((after - before).norm()))
            missed = (_bits(after - step) != _bits(before)).nonzero(as_tuple=True)
            self.under_way = (piece, before)
            piece.copy_(after)
            self.moved.append((piece, v, torch.stack(missed), before[missed]))
            self.under_way = None

    def back(self) -> None:
        if self.under_way is not None:
            piece, before = self.under_way
            piece.copy_(before)
            if self.moved and self.moved[-1][0] is piece:
                self.moved.pop()
        for piece, v, places, values in self.moved:
            piece.sub_((v * self.scale).to(piece.dtype))
            piece[tuple(places)] = values


class _Copy:
    """Moves in place and brings back a copy that was made first."""

    def __init__(self, params: Sequence[Tensor], direction: Sequence[Tensor], scale: float) -> None:
        self.params, self.direction, self.scale = params, direction, scale
        self.saved = [p.detach().clone() for p in params]
        self.length = 0.0

    def move(self) -> None:
        for p, v, before in zip(self.params, self.direction, self.saved, strict=True):
            p.add_((v * self.scale).to(p.dtype))
            self.length = math.hypot(self.length, float((p - before).norm()))

    def back(self) -> None:
        for p, before in zip(self.params, self.saved, strict=True):
            p.copy_(before)


@contextmanager
def shifted(
    params: Sequence[Tensor], direction: Sequence[Tensor], scale: float, *, restore: Restore = "subtract"
) -> Iterator[float]:
    """Weights at theta + scale * direction inside the block; yields the length of the move after rounding.

    Afterwards the weights are theta again, bit for bit, also when the block raises or is interrupted. `subtract`
    keeps no copy of them, but needs `direction` unchanged until the end; `copy` needs one copy of `params`.
    """
    way = (_Subtraction if restore == "subtract" else _Copy)(params, direction, scale)
    try:
        with torch.no_grad():
            way.move()
        yield way.length
    finally:
        with torch.no_grad():
            way.back()

"""Weights moved along a direction for one pass and brought back bit for bit, without a copy of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

Restore = Literal["subtract", "copy"]

CHUNK = 1 << 16
"""Weights moved at once, so that every step of the arithmetic but the first read and the last write is in the cache."""

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


class _Scratch:
    """Three tensors that are used again for every piece of the same type and device."""

    def __init__(self) -> None:
        self.flat: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def like(self, piece: Tensor) -> Sequence[Tensor]:
        key, size = (piece.dtype, piece.device), piece.numel()
        if key not in self.flat or self.flat[key].shape[1] < size:
            self.flat[key] = piece.new_empty(3, size)
        return [row[:size].view(piece.shape) for row in self.flat[key]]


class _Subtraction:
    """Moves by w + s and back by (w + s) - s. Where rounding makes that differ from w, w itself is kept.

    It differs only where the exponent rose on the way: a few weights in 100,000 at the shifts used here.
    """

    def __init__(self, params: Sequence[Tensor], direction: Sequence[Tensor], scale: float) -> None:
        self.pieces = _chunks(params, direction)
        self.scale = scale
        self.scratch = _Scratch()
        self.moved: list[tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]] = []
        self.under_way: tuple[Tensor, Tensor] | None = None
        self.length = 0.0

    def move(self) -> None:
        for piece, v in self.pieces:
            step, after, back = self.scratch.like(piece)
            torch.mul(v, self.scale, out=step)
            torch.add(piece, step, out=after)
            torch.sub(after, step, out=back)
            missed = torch.nonzero(_bits(back) != _bits(piece), as_tuple=True)
            values = piece[missed]
            back[missed] = values  # now `back` is the piece as it was
            self.length = math.hypot(self.length, float(torch.sub(after, piece, out=step).norm()))
            self.under_way = (piece, back)
            piece.copy_(after)
            self.moved.append((piece, v, missed, values))
            self.under_way = None

    def back(self) -> None:
        """May be called again after an interrupt."""
        if self.under_way is not None:
            piece, before = self.under_way
            piece.copy_(before)
            if self.moved and self.moved[-1][0] is piece:
                self.moved.pop()
            self.under_way = None
        while self.moved:
            piece, v, places, values = self.moved[-1]
            step, _, before = self.scratch.like(piece)
            torch.sub(piece, torch.mul(v, self.scale, out=step), out=before)
            before[places] = values
            self.under_way = (piece, before)
            piece.copy_(before)
            self.moved.pop()
            self.under_way = None


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
        """May be called again after an interrupt."""
        for p, before in zip(self.params, self.saved, strict=True):
            p.copy_(before)


def _bring_back(way: _Subtraction | _Copy) -> None:
    """To the end, whatever interrupts it on the way; the interrupt goes on afterwards."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            with torch.no_grad():
                way.back()
            break
        except KeyboardInterrupt as raised:
            interrupt = raised
    if interrupt is not None:
        raise interrupt


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
        _bring_back(way)

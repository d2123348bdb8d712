"""Weights come back from a shift bit for bit, whatever they are and whatever interrupts it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_core.algorithm import shift
from grpo_core.algorithm.shift import shifted

WAYS = pytest.mark.parametrize("restore", ["subtract", "copy"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16}


def bits(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies as integers: 0.0 and -0.0 differ there."""
    return [t.detach().clone().view(INTEGERS[t.dtype]) for t in tensors]


def same(tensors: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    return all(torch.equal(now, then) for now, then in zip(bits(tensors), before, strict=True))


def awkward(dtype: torch.dtype) -> list[Tensor]:
    """Ordinary weights, powers of two, zeros of both signs, subnormals and huge values, in tensors of several shapes."""
    draw, info = torch.Generator().manual_seed(3), torch.finfo(dtype)
    sizes = {0.05: 400, 1.0: 100, 1e-4: 100, info.tiny / 8: 60, info.max / 8: 60}
    kinds = [torch.randn(n, generator=draw, dtype=torch.float64) * size for size, n in sizes.items()]
    powers = torch.tensor([2.0**k * sign for k in range(-12, 4) for sign in (1, -1)], dtype=torch.float64)
    zeros = torch.tensor([0.0, -0.0] * 20, dtype=torch.float64)
    flat = torch.cat([*kinds, powers, zeros]).to(dtype)
    flat = flat[torch.randperm(len(flat), generator=draw)]
    assert flat.isfinite().all() and ((flat != 0) & (flat.abs() < info.tiny)).sum() > 20
    return [flat[:300].clone().reshape(10, 30), flat[300].clone(), flat[301:301], flat[301:].clone()]


def directions(params: Sequence[Tensor], seed: int = 4) -> list[Tensor]:
    """Unit length together; a few exact zeros of both signs."""
    draw = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(p.shape, generator=draw, dtype=torch.float64) for p in params]
    length = torch.cat([d.flatten() for d in drawn]).norm()
    for d in drawn:
        d.view(-1)[::9] *= 0.0
    return [(d / length).to(p.dtype) for d, p in zip(drawn, params, strict=True)]


@DTYPES
@WAYS
@pytest.mark.parametrize("length", [1e-6, 1e-4, 0.002, 0.02, 0.3, 10.0])
@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_weights_come_back_bit_for_bit(
    dtype: torch.dtype, restore: Any, length: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shift, "CHUNK", chunk)
    weights = awkward(dtype)
    before = bits(weights)
    with shifted(weights, directions(weights), length, restore=restore) as realised:
        assert realised > 0 or (dtype == torch.bfloat16 and length < 1e-3)
        assert same(weights, before) is (realised == 0)
    assert same(weights, before)


@DTYPES
@WAYS
def test_weights_are_at_theta_plus_scale_times_v_inside(
    dtype: torch.dtype, restore: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shift, "CHUNK", 50)
    weights = awkward(dtype)
    before, v = [w.clone() for w in weights], directions(weights)
    with shifted(weights, v, -0.5, restore=restore):
        for w, b, d in zip(weights, before, v, strict=True):
            assert torch.equal(w, b + (d * -0.5))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.01)]
)
@WAYS
@pytest.mark.parametrize("length", [1e-4, 0.002, 10.0])
def test_the_length_is_that_of_the_move_the_weights_made(
    dtype: torch.dtype, tolerance: float, restore: Any, length: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shift, "CHUNK", 64)
    draw = torch.Generator().manual_seed(1)
    weights = [(torch.randn(shape, generator=draw) * 0.05).to(dtype) for shape in ((20, 30), (7,))]
    before = [w.double().clone() for w in weights]
    with shifted(weights, directions(weights), length, restore=restore) as realised:
        moves = [w.double() - b for w, b in zip(weights, before, strict=True)]
        made = float(torch.cat([m.flatten() for m in moves]).norm())
        assert realised == pytest.approx(made, rel=tolerance)
        if dtype == torch.float64:
            asked = float(torch.cat([d.flatten() for d in directions(weights)]).norm()) * length
            assert realised == pytest.approx(asked, rel=1e-9)


@WAYS
@pytest.mark.parametrize(
    ("weight", "direction"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16), (torch.float32, torch.float64)],
)
def test_a_direction_of_another_type_is_rounded_to_that_of_the_weights(
    weight: torch.dtype, direction: torch.dtype, restore: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the moments of a 16-bit adapter may be."""
    monkeypatch.setattr(shift, "CHUNK", 50)
    weights = awkward(weight)
    before, kept, v = [w.clone() for w in weights], bits(weights), [d.to(direction) for d in directions(weights)]
    with shifted(weights, v, 0.3, restore=restore):
        for w, b, d in zip(weights, before, v, strict=True):
            assert torch.equal(w, b + (d * 0.3).to(weight))
    assert same(weights, kept)


def test_bfloat16_shows_the_part_of_a_small_shift_that_was_lost() -> None:
    weights = [torch.ones(1000, dtype=torch.bfloat16)]
    with shifted(weights, directions(weights), 0.002) as realised:
        assert realised == 0.0


@DTYPES
@WAYS
@pytest.mark.parametrize("which", ["transposed weights", "transposed direction", "strided", "expanded direction"])
def test_tensors_that_are_not_contiguous(
    dtype: torch.dtype, restore: Any, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shift, "CHUNK", 16)
    store = awkward(dtype)[0]
    whole = bits([store])
    weight = {"transposed weights": store.t(), "strided": store[::2, 1::3]}.get(which, store)
    v = directions([weight])[0]
    if which == "transposed direction":
        v = v.t().contiguous().t()
    if which == "expanded direction":
        v = v[:1].expand_as(weight)
    assert not (weight.is_contiguous() and v.is_contiguous())
    before = weight.clone()
    with shifted([weight], [v], 0.3, restore=restore):
        assert torch.equal(weight, before + v * 0.3)
        assert not same([store], whole)
    assert same([store], whole)


def test_values_that_overflow_on_the_way_come_back() -> None:
    weights = [torch.tensor([3e38, -3e38, float("inf"), float("nan"), 1.0])]
    before = bits(weights)
    with shifted(weights, [torch.tensor([2e38, -2e38, 1.0, 1.0, 1e38])], 1.0):
        assert weights[0][:2].isinf().all()
    assert same(weights, before)


@WAYS
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_weights_come_back_when_the_block_raises(
    restore: Any, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shift, "CHUNK", 64)
    weights = awkward(torch.float32)
    before = bits(weights)

    def broken() -> None:
        with shifted(weights, directions(weights), 0.3, restore=restore):
            assert not same(weights, before)
            raise error

    with pytest.raises(error):
        broken()
    assert same(weights, before)


class InterruptAt:
    """Raises KeyboardInterrupt before the n-th bytecode of the named functions of `shift.py`."""

    def __init__(self, n: int, names: Sequence[str]) -> None:
        self.left, self.names = n, names

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename != shift.__file__ or frame.f_code.co_name not in self.names:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.within

    def within(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.within


@WAYS
def test_an_interrupt_at_any_point_of_the_move_leaves_no_trace(restore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between the write and the note of it. Swept over every bytecode, three pieces of weights."""
    monkeypatch.setattr(shift, "CHUNK", 3)
    weights = [torch.tensor([0.1, -0.0, 3.0, 1e-40, 0.49999]), torch.tensor([1e30])]
    v = [torch.tensor([0.3, 0.2, 0.1, -0.1, 0.7]), torch.tensor([0.5])]
    before = bits(weights)
    n, in_block = 0, False
    old = sys.gettrace()
    while not in_block:
        interrupt = InterruptAt(n, ["move", "_chunks", "like"])
        try:
            sys.settrace(interrupt)
            with shifted(weights, v, 1.0, restore=restore):
                sys.settrace(None)
                in_block = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(old)
        assert same(weights, before), f"bytecode {n}"
        n += 1
    assert n > 60, "the sweep did reach into the move"


class Breaking(list[Any]):
    """A list whose n-th append raises, before or after it has taken the item."""

    def __init__(self, n: int, after: bool) -> None:
        super().__init__()
        self.n, self.after = n, after

    def append(self, item: Any) -> None:
        breaks = len(self) == self.n
        if not breaks or self.after:
            super().append(item)
        if breaks:
            raise KeyboardInterrupt


@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_at_the_note_of_a_move(n: int, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shift, "CHUNK", 64)
    weights = awkward(torch.float32)
    before = bits(weights)
    way = shift._Subtraction(weights, directions(weights), 0.3)
    way.moved = Breaking(n, after)
    with torch.no_grad():
        with pytest.raises(KeyboardInterrupt):
            way.move()
        assert not same(weights, before)
        way.back()
    assert same(weights, before)


def kept_aside(weights: Tensor, v: Tensor, scale: float) -> int:
    way = shift._Subtraction([weights], [v], scale)
    with torch.no_grad():
        way.move()
        count = sum(len(values) for *_, values in way.moved)
        way.back()
    return count


def test_few_weights_are_kept_aside_and_those_are_needed() -> None:
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(1_000_000, generator=draw) * 0.05
    v = torch.randn(1_000_000, generator=draw)
    scale = 0.002 / float(v.norm())
    step = v * scale
    lost = int((((weights + step) - step) != weights).sum())
    assert 0 < lost < 10_000, "plain subtraction is not exact"
    assert kept_aside(weights, v, scale) == lost


def test_without_the_kept_values_the_weights_would_not_come_back() -> None:
    weights = [torch.randn(100_000, generator=torch.Generator().manual_seed(0)) * 0.05]
    before = weights[0].clone()
    way = shift._Subtraction(weights, directions(weights), 0.02)
    with torch.no_grad():
        way.move()
        way.moved = [(piece, v, tuple(p[:0] for p in places), values[:0]) for piece, v, places, values in way.moved]
        way.back()
    assert int((weights[0] != before).sum()) > 0

"""The order of prompts: each once per epoch, and exactly continued after a break."""

from __future__ import annotations

import json
import random

import pytest

from grpo_core.data.order import PromptOrder
from grpo_core.data.prompts import from_iterable
from grpo_core.errors import CheckpointError, DataError

TEN = from_iterable(f"question {n}" for n in range(10)).train


def ids(order: PromptOrder, count: int) -> list[str]:
    return [prompt.id for prompt in order.take(count)]


def test_each_prompt_once_per_epoch_in_a_new_order() -> None:
    order = PromptOrder(TEN, seed=1)
    drawn = ids(order, 35)
    epochs = [drawn[0:10], drawn[10:20], drawn[20:30]]
    assert all(sorted(epoch) == sorted(p.id for p in TEN) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert len(set(drawn[30:])) == 5
    assert order.epoch == 3
    again = PromptOrder(TEN, seed=1)
    assert drawn == [name for _ in range(7) for name in ids(again, 5)]
    assert drawn != ids(PromptOrder(TEN, seed=2), 35)


def test_global_random_state_is_untouched() -> None:
    before = random.getstate()
    PromptOrder(TEN, seed=1).take(25)
    assert random.getstate() == before


@pytest.mark.parametrize("before", [0, 3, 10, 24])
def test_kf27_a_restored_order_continues_exactly(before: int) -> None:
    whole = PromptOrder(TEN, seed=5)
    whole.take(before)
    state = json.loads(json.dumps(whole.state()))
    resumed = PromptOrder(TEN, seed=6)
    resumed.restore(state)
    assert ids(resumed, 40) == ids(whole, 40)
    assert resumed.state() == whole.state()


def test_kf27_other_prompts_are_refused_on_restore() -> None:
    state = PromptOrder(TEN, seed=5).state()
    for other in (TEN[:9], [*TEN[1:], TEN[0]], from_iterable(f"other {n}" for n in range(10)).train):
        with pytest.raises(CheckpointError, match=r"other training prompts \(10 of them.*\n  fix: "):
            PromptOrder(other, seed=5).restore(state)


def test_no_prompts() -> None:
    with pytest.raises(DataError, match="no prompts to train on"):
        PromptOrder([], seed=0)

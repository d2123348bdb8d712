"""Seeds for purposes, and generators that go on where they were."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from grpo_core.runtime.interrupt import Interrupt
from grpo_core.runtime.memory import memory_metrics
from grpo_core.runtime.seeding import derive, random_state, seed_everything, set_random_state


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_purposes_and_steps_have_their_own_streams() -> None:
    seeds = {derive(seed, name, step) for seed in (0, 1) for name in ("rollout", "minibatches") for step in range(50)}
    assert len(seeds) == 200
    assert derive(0, "rollout", 3) == derive(0, "rollout", 3)
    assert all(0 <= seed < 2**63 for seed in seeds), "a torch generator takes it"


def test_kf27_every_generator_goes_on_where_it_was(tmp_path: Path) -> None:
    seed_everything(5)
    draw()
    torch.save(random_state(), tmp_path / "state.pt")
    expected = [draw() for _ in range(3)]
    seed_everything(6)
    set_random_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert [draw() for _ in range(3)] == expected


def test_memory_figures_are_plausible() -> None:
    figures = memory_metrics()
    assert 0.05 < figures["memory/rss_gb"] <= figures["memory/peak_gb"] * 1.01 < 100


def test_an_interrupt_is_only_noted_and_the_old_handler_comes_back() -> None:
    import signal

    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested
    assert signal.getsignal(signal.SIGINT) is before

"""A live panel in a terminal, one readable line per step in a log."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console as Terminal

from grpo_core.records import StepReport
from grpo_core.tracking.console import Console, sparkline, summary_table

METRICS = {
    "reward/mean": 0.5, "optim/grad_norm": 1.234, "penalty/ratio": 0.2, "kl/reference": 0.01, "rollout/length_mean": 30.0,
    "speed/tokens_per_second": 12345.6, "memory/rss_gb": 2.5, "time/step": 2.0,
}  # fmt: skip


def terminal(*, live: bool) -> Terminal:
    return Terminal(file=io.StringIO(), force_terminal=live, width=100, color_system=None)


def shown(screen: Terminal) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_one_line_per_step_in_a_log() -> None:
    screen = terminal(live=False)
    with Console(200, 9, terminal=screen) as console:
        console.step(StepReport(step=10, metrics=METRICS))
        console.step(StepReport(step=11, metrics={"reward/mean": math.nan, "optim/skipped": 1.0, "time/step": 2.0}))
        console.warn("[rollout] most are cut\n  fix: raise rollout.max_new_tokens")
    lines = shown(screen).splitlines()
    assert lines[0] == (
        "step 10/200  reward 0.500  grad 1.23  penalty 0.20  kl 0.01  length 30  tok/s 12,346  RAM GiB 2.5  2.0s/step  6m20s left"
    )
    assert lines[1] == "step 11/200  reward nan  SKIPPED (not finite) 1  2.0s/step  6m18s left"
    assert lines[2:] == [" WARNING  [rollout] most are cut", "  fix: raise rollout.max_new_tokens"]


def test_a_live_panel_in_a_terminal() -> None:
    screen = terminal(live=True)
    with Console(20, terminal=screen) as console:
        console.note("hello")
        for step in range(1, 4):
            console.step(StepReport(step=step, metrics=METRICS | {"reward/mean": step / 4}))
    text = shown(screen)
    for part in ("hello", "step 3/20", "34.0s left", "0.750", "▁▅█" if "▁▅█" in text else "▁▄█", "12,346"):
        assert part in text
    assert "\x1b[?25h" in text, "the cursor is back"


def test_the_terminal_is_given_back_after_an_error() -> None:
    screen = terminal(live=True)
    with pytest.raises(KeyboardInterrupt), Console(20, terminal=screen):
        raise KeyboardInterrupt
    assert "\x1b[?25h" in shown(screen)


def test_time_left_is_the_median_of_recent_steps() -> None:
    console = Console(100, terminal=terminal(live=False))
    assert console.seconds_left() is None
    for step, seconds in enumerate([50.0] + [1.0] * 30 + [99.0], 1):
        console.step(StepReport(step=step, metrics={"time/step": seconds}))
    assert console.seconds_left() == 68.0


def test_a_second_report_of_one_step_is_no_second_step() -> None:
    console = Console(10, terminal=terminal(live=False))
    console.step(StepReport(step=0, metrics={"held_out/reward": 0.1}))
    assert console.seconds_left() is None


def test_sparkline() -> None:
    assert sparkline([0.0, 1.0, math.nan, 0.5], width=60) == "▁█?▅"
    assert sparkline([2.0], width=60) == "▁"
    assert len(sparkline([float(n) for n in range(1000)], width=60)) <= 60


def test_summary_table_colours_by_the_better_direction() -> None:
    table = summary_table(
        {"held_out/reward": 0.1, "held_out/truncated": 0.5, "old": 1.0},
        {"held_out/reward": 0.4, "held_out/truncated": 0.2, "new": 2.0},
    )
    screen = terminal(live=False)
    screen.print(table)
    assert "+0.3" in shown(screen)
    changes = list(table.columns[3].cells)
    assert [str(getattr(cell, "style", "")) for cell in changes] == ["green", "green", "", ""]

"""Each warning: fires on a run that has the fault, stays silent on one that has not, and does not nag."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from grpo_core.records import StepReport
from grpo_core.tracking.watch import Watch

Metrics = Callable[[int], dict[str, float]]


def healthy(step: int) -> dict[str, float]:
    return {
        "reward/mean": 0.3 + 0.01 * step, "reward/std": 0.4, "reward/failed": 0.0, "rollout/truncated": 0.05,
        "rollout/tokens": 640.0, "rollout/length_mean": 20.0, "groups/zero_spread": 0.2, "policy/entropy": 1.0 - 0.01 * step,
        "kl/reference": 0.05 * step, "policy/kl_rollout": 0.01, "optim/skipped": 0.0, "loss/total": 0.1, "optim/grad_norm": 1.0,
    }  # fmt: skip


def feed(change: Metrics, steps: int = 9, **how: bool) -> list[tuple[int, str]]:
    watch = Watch(**how)
    reports = [StepReport(step=s, metrics=healthy(s) | change(s)) for s in range(1, steps + 1)]
    return [(report.step, alarm.key) for report in reports for alarm in watch.feed(report)]


def test_a_healthy_run_is_left_alone() -> None:
    assert feed(lambda step: {}, steps=60) == []


FAULTS: dict[str, tuple[Metrics, list[tuple[int, str]]]] = {
    "truncated": (lambda s: {"rollout/truncated": 0.95}, [(3, "truncated")]),
    "no_spread": (lambda s: {"groups/zero_spread": 1.0}, [(3, "no_spread")]),
    "constant": (lambda s: {"reward/mean": 0.0, "reward/std": 0.0}, [(5, "constant_reward")]),
    "kl": (lambda s: {"kl/reference": 0.1 if s < 6 else float(s)}, [(8, "kl/reference")]),
    "kl_rollout": (lambda s: {"policy/kl_rollout": 0.0 if s < 6 else float(s)}, [(8, "policy/kl_rollout")]),
    "failures": (lambda s: {"reward/failed": 4.0}, [(3, "failures")]),
    "entropy": (lambda s: {"policy/entropy": 1.0 if s < 5 else 0.05}, [(7, "entropy")]),
    "skipped": (lambda s: {"optim/skipped": float(s == 4)}, [(4, "nonfinite")]),
    "nan": (lambda s: {"loss/total": math.nan if s == 4 else 1.0}, [(4, "nonfinite")]),
}
FINE: dict[str, Metrics] = {
    "truncated_twice": lambda s: {"rollout/truncated": 0.95 if s % 3 else 0.5},
    "spread_sometimes": lambda s: {"groups/zero_spread": 1.0 if s % 3 else 0.8},
    "constant_mean_with_spread": lambda s: {"reward/mean": 0.5, "reward/std": 0.5},
    "zero_spread_but_moving": lambda s: {"reward/mean": float(s % 2), "reward/std": 0.0},
    "kl_grows_little": lambda s: {"kl/reference": 0.001 if s < 6 else 0.1 * s},
    "kl_drifts_steadily": lambda s: {"kl/reference": 0.3 * s},
    "kl_high_from_the_start": lambda s: {"kl/reference": 3.0 + s},
    "kl_high_but_falling": lambda s: {"kl/reference": 0.1 if s < 6 else 20.0 - s},
    "one_failure": lambda s: {"reward/failed": 1.0},
    "entropy_dips": lambda s: {"policy/entropy": 0.05 if s == 6 else 1.0},
    "nan_gap": lambda s: {"rollout/truncated": math.nan if s % 3 == 0 else 1.0},
    "nothing_known": lambda s: (
        dict.fromkeys(healthy(s), math.nan) | {n: 1.0 for n in ("loss/total", "optim/grad_norm", "reward/mean")}
    ),
}


@pytest.mark.parametrize(("change", "expected"), FAULTS.values(), ids=FAULTS)
def test_fault_is_noticed(change: Metrics, expected: list[tuple[int, str]]) -> None:
    assert feed(change) == expected


@pytest.mark.parametrize("change", FINE.values(), ids=FINE)
def test_no_false_alarm(change: Metrics) -> None:
    assert feed(change, steps=20) == []


def test_groups_without_spread_are_no_loss_where_groups_do_not_matter() -> None:
    assert feed(lambda s: {"groups/zero_spread": 1.0}, groups=False) == []


def test_kf19_every_completion_cut_and_every_reward_zero_is_said_aloud() -> None:
    def change(s):
        return {
            "rollout/truncated": 1.0,
            "groups/zero_spread": 1.0,
            "reward/mean": 0.0,
            "reward/std": 0.0,
        }

    assert feed(change, steps=5) == [(3, "truncated"), (3, "no_spread"), (5, "constant_reward")]
    watch = Watch()
    alarms = [a for s in range(3) for a in watch.feed(StepReport(step=s, metrics=healthy(s) | change(s)))]
    assert "100%" in str(alarms[0])
    assert "rollout.max_new_tokens" in alarms[0].remedy


def test_kf52_a_skipped_step_is_said_aloud() -> None:
    alarm = Watch().feed(StepReport(step=1, metrics={"optim/skipped": 2.0, "loss/total": math.nan}))[0]
    assert "2 optimizer step(s) skipped, loss/total" in alarm.message
    assert "train.learning_rate" in alarm.remedy


def test_a_warning_is_repeated_every_ten_steps_also_across_a_resume() -> None:
    stuck: Metrics = lambda s: healthy(s) | {"rollout/truncated": 1.0, "loss/total": math.nan if s > 20 else 1.0}  # noqa: E731
    whole, told = Watch(), []
    for step in range(1, 31):
        if step == 9:
            state = json.loads(json.dumps(whole.state(), allow_nan=False))
            whole = Watch()
            whole.restore(state)
        told += [(step, alarm.key) for alarm in whole.feed(StepReport(step=step, metrics=stuck(step)))]
    assert told == [(3, "truncated"), (13, "truncated"), (21, "nonfinite"), (23, "truncated")]

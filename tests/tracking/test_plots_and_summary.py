"""Pictures and the summary come out of any run, long, short, or broken."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from grpo_core.records import StepReport
from grpo_core.tracking.plots import plot_run
from grpo_core.tracking.summary import write_summary
from grpo_core.tracking.writer import MetricsWriter

FULL = {
    "reward/mean": 0.5, "optim/grad_norm": 1.0, "penalty/ratio": 0.2, "kl/reference": 0.1, "policy/entropy": 1.0,
    "rollout/length_mean": 9.0, "rollout/truncated": 0.0,
}  # fmt: skip


def run(folder: Path, rows: dict[int, dict[str, float]]) -> Path:
    writer = MetricsWriter(folder, tensorboard=False)
    for step, metrics in rows.items():
        writer.write(StepReport(step=step, metrics=metrics))
    writer.close()
    return folder


RUNS: dict[str, dict[int, dict[str, float]]] = {
    "full": {0: {"held_out/reward": 0.1}}
    | {s: {n: v * s for n, v in FULL.items()} for s in range(1, 50)}
    | {50: {"held_out/reward": 0.9}},
    "one_step": {1: FULL},
    "only_reward": {1: {"reward/mean": 0.1}, 2: {"reward/mean": 0.2}},
    "only_right_sides": {1: {"penalty/ratio": 0.1, "rollout/truncated": 0.2}},
    "gaps": {s: dict.fromkeys(FULL, math.nan if s % 3 == 0 else 1.0) for s in range(1, 40)},
    "all_nan": {s: dict.fromkeys([*FULL, "held_out/reward"], math.nan) for s in range(1, 4)},
    "infinite": {1: FULL, 2: dict.fromkeys(FULL, math.inf)},
    "nothing_known": {1: {"own/metric": 1.0}},
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rows", RUNS.values(), ids=RUNS)
def test_every_run_can_be_drawn(tmp_path: Path, rows: dict[int, dict[str, float]]) -> None:
    paths = plot_run(run(tmp_path, rows))
    assert [path.name for path in paths] == ["overview.png", "reward.png"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in paths)
    assert write_summary(tmp_path, title="Run", facts={}, seconds=1, ended="finished").is_file()


def test_nothing_recorded_draws_nothing(tmp_path: Path) -> None:
    assert plot_run(tmp_path) == []


def test_the_summary_tells_what_a_person_wants_to_know(tmp_path: Path) -> None:
    rows: dict[int, dict[str, float]] = {
        s: FULL | {"reward/mean": s / 20, "rollout/tokens": 500.0, "memory/peak_gb": 1.5 + s / 100}
        for s in range(1, 21)
    }
    rows[0] = {"held_out/reward": 0.125}
    rows[10] = rows[10] | {"held_out/reward": 0.75, "optim/skipped": 1.0}
    rows[20] = rows[20] | {"held_out/reward": 0.5}
    text = write_summary(
        run(tmp_path, rows), title="Run sums", facts={"model": "tiny", "data": "rows.jsonl"}, seconds=3900, ended="stopped by hand",
        warnings=["most are cut\n  fix: raise it", "most are cut\n  fix: raise it"], checkpoint=tmp_path / "checkpoints/step-000010",
    ).read_text()  # fmt: skip
    for part in (
        "# Run sums", "- model: tiny", "Stopped by hand after 20 steps and 1 h 05 min.", "| held-out | 0.125 | 0.5 | 0.75 (step 10) |",
        "| training (mean of 2 steps) | 0.075 | 0.975 | |", "1.70 GiB", "10,000 tokens", "not finite: 1", "step-000010`",
        f"grpo generate {tmp_path}", f"grpo export {tmp_path}", f"grpo train --resume {tmp_path}",
    ):  # fmt: skip
        assert part in text
    assert text.count("most are cut fix: raise it") == 1


def test_the_summary_of_a_run_that_never_started(tmp_path: Path) -> None:
    text = write_summary(tmp_path, title="Run", facts={}, seconds=3, ended="failed").read_text()
    assert "Failed after 0 steps" in text
    assert "No reward was recorded." in text
    assert "There is no checkpoint." in text

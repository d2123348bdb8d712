"""metrics.jsonl survives crashes and resumes, hides nothing, and rollouts come back as they were."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from grpo_core.errors import DataError
from grpo_core.records import Completion, Prompt, Rollout, Sampling, Score, StepReport
from grpo_core.tracking.writer import MetricsWriter, RolloutWriter, read_metrics


def written(folder: Path, *steps: int, tensorboard: bool = False) -> MetricsWriter:
    writer = MetricsWriter(folder, tensorboard=tensorboard)
    for step in steps:
        writer.write(StepReport(step=step, metrics={"reward/mean": step / 7}))
    return writer


def steps(folder: Path) -> list[int]:
    return [report.step for report in read_metrics(folder)]


def test_values_come_back_exactly_and_at_once(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)  # not closed: every line is flushed
    assert [r.metrics["reward/mean"] for r in read_metrics(tmp_path)] == [1 / 7, 2 / 7, 3 / 7]
    assert read_metrics(tmp_path / "absent") == []


def test_kf52_values_that_are_not_finite_stay_visible(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, tensorboard=False)
    writer.write(StepReport(step=1, metrics={"loss/total": math.nan, "optim/grad_norm": -math.inf, "reward/mean": 0.5}))
    line = (tmp_path / "metrics.jsonl").read_text()
    strict = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert strict == {
        "step": 1, "loss/total": None, "optim/grad_norm": None, "reward/mean": 0.5,
        "nonfinite": {"loss/total": "nan", "optim/grad_norm": "-inf"},
    }  # fmt: skip
    metrics = read_metrics(tmp_path)[0].metrics
    assert math.isnan(metrics["loss/total"])
    assert metrics["optim/grad_norm"] == -math.inf


def test_a_torn_last_line_is_left_out_and_cut_off_on_resume(tmp_path: Path) -> None:
    written(tmp_path, 1, 2)
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 3, "rew')
    assert steps(tmp_path) == [1, 2]
    written(tmp_path, 3)
    assert steps(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("damage", ["{oops", "[1]", '{"reward/mean": 1}'])
def test_damage_elsewhere_is_named(tmp_path: Path, damage: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{damage}\n{{"step": 3}}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: not a row of metrics"):
        read_metrics(tmp_path)


def test_truncate_after_forgets_later_steps(tmp_path: Path) -> None:
    writer = written(tmp_path, 1, 2, 3, 4)
    writer.write(StepReport(step=2, metrics={"held_out/reward": math.inf}))
    writer.truncate_after(2)
    writer.write(StepReport(step=3, metrics={"reward/mean": 9.0}))
    rows = read_metrics(tmp_path)
    assert [(r.step, r.metrics["reward/mean"]) for r in rows] == [(1, 1 / 7), (2, 2 / 7), (3, 9.0)]
    assert rows[1].metrics["held_out/reward"] == math.inf, "reports of one step are merged"
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_crash_while_truncating_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = written(tmp_path, 1, 2, 3)
    monkeypatch.setattr("grpo_core.tracking.writer.os.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        writer.truncate_after(1)
    assert steps(tmp_path) == [1, 2, 3]


def test_tensorboard_curves_and_their_restart(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = written(tmp_path, 1, 2, 3, tensorboard=True)
    writer.truncate_after(1)
    writer.write(StepReport(step=2, metrics={"reward/mean": 5.0}))
    writer.close()
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, round(e.value, 3)) for e in found.Scalars("reward/mean")] == [(1, 0.143), (2, 5.0)]


def rollout(number: int, score: Score | None) -> Rollout:
    completion = Completion(
        prompt_id="train:1",
        token_ids=(7, number),
        logprobs=(-0.5, -0.25),
        policy_logprobs=(-0.5, -0.125),
        finish_reason="eos",
    )
    return Rollout(
        prompt=Prompt(id="train:1", text="2 + 3 =", answer="5"), group_id=4, completion=completion, text=f"é{number}",
        sampling=Sampling(max_new_tokens=8), policy_version=11, score=score,
    )  # fmt: skip


def test_rollouts_come_back_and_failures_have_no_number(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    writer = RolloutWriter(tmp_path)
    rollouts = [
        rollout(1, Score(value=1.0, parts={"exact": 1.0})),
        rollout(2, Score(value=float("nan"), failure="timeout")),
    ]
    path = writer.write(12, rollouts)
    assert path == tmp_path / "rollouts" / "step-000012.parquet"
    good, bad = pq.read_table(path).to_pylist()
    assert good == {
        "step": 12, "prompt_id": "train:1", "group_id": 4, "prompt": "2 + 3 =", "completion": "é1", "answer": "5",
        "score": 1.0, "failure": None, "finish_reason": "eos", "policy_version": 11, "token_ids": [7, 1],
        "logprobs": [-0.5, -0.25], "policy_logprobs": [-0.5, -0.125], "part/exact": 1.0,
    }  # fmt: skip
    assert (bad["score"], bad["failure"], bad["part/exact"]) == (None, "timeout", None)
    writer.write(13, [rollout(3, None)])
    writer.truncate_after(12)
    assert [p.name for p in (tmp_path / "rollouts").iterdir()] == ["step-000012.parquet"]

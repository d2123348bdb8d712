"""The loop: what it logs, when it stops, what it keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import even_share, tiny_run

from grpo_core.errors import CheckpointError, DataError, RewardError
from grpo_core.tracking.names import describe
from grpo_core.training.collect import collect
from grpo_core.training.loop import train
from grpo_core.training.run import Run
from grpo_core.training.schedule import factor


def rows(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "group_relative", "rloo", "dr_grpo", "reinforce"])
def test_every_algorithm_runs_and_every_figure_is_documented(algorithm: str, tmp_path: Path) -> None:
    run = tiny_run(tmp_path, algorithm=algorithm, evaluation={"prompts": 4, "every": 2})
    outcome = train(run)
    logged = rows(run)
    assert (outcome.steps, outcome.stopped_by) == (4, "steps")
    assert [row["step"] for row in logged] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in logged if "held_out/reward" in row] == [0, 2, 4]
    assert outcome.held_out == logged[-1]["held_out/reward"]
    unknown = {name for row in logged for name in row if name != "step" and describe(name) is None}
    assert not unknown
    assert all(row["optim/grad_norm"] > 0 for row in logged[1:])
    assert (logged[-1]["penalty/ratio"] > 0) == (algorithm == "grpo")


def test_the_reward_goes_up_on_a_task_a_tiny_model_can_learn(tmp_path: Path) -> None:
    run = tiny_run(
        tmp_path,
        train={"steps": 40, "batch_size": 32, "learning_rate": 1e-2},
        rollout={"group_size": 8, "max_new_tokens": 6},
        evaluation={"prompts": 8, "temperature": 1.0},
    )
    train(run)
    held = [row["held_out/reward"] for row in rows(run) if "held_out/reward" in row]
    assert held[-1] > held[0] + 0.2, held


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_a_critic_learns_the_value(critic: str, tmp_path: Path) -> None:
    run = tiny_run(
        tmp_path,
        algorithm={"name": "ppo", "critic": critic, "value_coef": 1.0, "value_clip": None},
        train={"steps": 30, "batch_size": 16, "critic_learning_rate": 3e-2, "learning_rate": 1e-6},
    )
    train(run)
    losses = [row["loss/value"] for row in rows(run)[1:]]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5]), losses
    assert len(run.policy.value_parameters()) == (
        2 if critic == "shared" else 2 + len(list(run.policy.model.base_model.parameters()))
    )  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": {"max_minutes": 1e-6}}, "time"),
        ({"run": {"stop_at_reward": 0.0}, "evaluation": {"prompts": 4, "every": 1}}, "reward"),
        ({"run": {"watch": "stop"}, "train": {"steps": 12}}, "watch"),
    ],
)
def test_stop_rules_end_with_a_checkpoint(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    constant = (lambda completion: 0.5) if reason == "watch" else even_share
    run = tiny_run(tmp_path, reward=constant, **changes)
    outcome = train(run)
    assert outcome.stopped_by == reason
    assert outcome.steps < run.config.train.steps
    assert outcome.checkpoint == run.folder / "checkpoints" / f"step-{outcome.steps:06d}"
    assert (outcome.checkpoint / "manifest.json").is_file()


def test_the_last_and_the_best_checkpoints_are_kept(tmp_path: Path) -> None:
    run = tiny_run(
        tmp_path,
        train={"steps": 8, "learning_rate": 5e-2},
        evaluation={"prompts": 4, "every": 1},
        run={"checkpoint_every": 1, "keep_checkpoints": 2},
    )
    train(run)
    kept = {path.name for path in (run.folder / "checkpoints").iterdir()}
    held = {row["step"]: row["held_out/reward"] for row in rows(run)}
    best = max(range(9), key=lambda step: (held[step], -step))
    expected = {"step-000007", "step-000008"} | ({f"step-{best:06d}"} if best else set())
    assert kept == expected


def test_kf20_completion_answer_and_reward_belong_together(tmp_path: Path) -> None:
    seen = []

    def judge(completion: str, prompt: str, answer: str) -> float:
        seen.append((prompt, answer))
        return float(len(completion) % 2)

    experience = collect(tiny_run(tmp_path, reward=judge), 1)
    for row, rollout in enumerate(experience.rollouts):
        assert seen[row] == (rollout.prompt.plain, rollout.prompt.answer)
        assert rollout.completion.prompt_id == rollout.prompt.id
        assert rollout.score is not None
        assert rollout.score.value == float(len(rollout.text) % 2)
    sizes = [sum(r.group_id == group for r in experience.rollouts) for group in range(2)]
    assert sizes == [4, 4]


def test_kf32_failed_rewards_leave_the_batch_and_too_many_stop_the_run(tmp_path: Path) -> None:
    calls = iter(range(1000))
    run = tiny_run(tmp_path / "a", reward=lambda completion: None if next(calls) % 4 == 1 else even_share(completion))
    experience = collect(run, 1)
    assert experience.metrics["reward/failed"] == 2
    assert len(experience.batch) == 6
    with pytest.raises(RewardError, match="8 of 8 completions have no reward"):
        collect(tiny_run(tmp_path / "b", reward=lambda completion: None), 1)


def test_a_prompt_without_room_for_an_answer_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"prompt (train|held_out):\d+ has \d+ tokens") as caught:
        collect(tiny_run(tmp_path, train={"seq_length": 20}), 1)
    assert "train.seq_length" in caught.value.fix


def test_a_damaged_checkpoint_is_refused_with_a_remedy(tmp_path: Path) -> None:
    from grpo_core.training.snapshot import restore_latest

    run = tiny_run(tmp_path)
    outcome = train(run)
    assert outcome.checkpoint is not None
    state = outcome.checkpoint / "state.pt"
    state.write_bytes(state.read_bytes()[:-10] + b"0123456789")
    again = tiny_run(tmp_path / "other")
    again.folder = run.folder
    with pytest.raises(CheckpointError, match=r"state\.pt is missing or damaged"):
        restore_latest(again)


def test_schedules_by_hand() -> None:
    def rates(shape: Any) -> list[float]:
        return [round(factor(u, total=6, warmup=2, shape=shape), 4) for u in range(6)]

    assert rates("constant") == [0.5, 1, 1, 1, 1, 1]
    assert rates("linear") == [0.5, 1, 1, 0.75, 0.5, 0.25]
    assert rates("cosine") == [0.5, 1, 1, 0.8536, 0.5, 0.1464]


@pytest.mark.slow
@pytest.mark.parametrize("train_keys", [{"compile": True}, {"autocast": "bfloat16", "lambda": 0.0}])
def test_compiled_and_autocast_steps_stay_near_the_plain_one(train_keys: dict[str, Any], tmp_path: Path) -> None:
    from grpo_core.training.update import update

    losses = []
    for place, keys in enumerate(({}, train_keys)):
        run = tiny_run(tmp_path / str(place), train=keys | {"share_prompts": "off"})
        losses.append(update(run, collect(run, 1).batch, 1))
    plain, other = losses
    loose = "autocast" in train_keys
    assert other["loss/policy"] == pytest.approx(plain["loss/policy"], abs=5e-2 if loose else 1e-5)
    if not loose:
        assert other["penalty/grad_norm"] == pytest.approx(plain["penalty/grad_norm"], rel=1e-3)
    assert torch.isfinite(torch.tensor(other["optim/grad_norm"]))

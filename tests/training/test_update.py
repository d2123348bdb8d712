"""The update: the same gradient for any split, the right optimizer step, early stop, skipped steps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_runs import tiny_run

from grpo_core.errors import TrainingError
from grpo_core.training.collect import collect
from grpo_core.training.run import Run
from grpo_core.training.update import update

ALGORITHMS = ["grpo", "ppo", "group_relative", "rloo", "dr_grpo", "reinforce"]


def weights(run: Run) -> list[torch.Tensor]:
    return [p.detach().clone() for p in run.policy.policy_parameters() + run.policy.value_parameters()]


class Recorder(torch.optim.SGD):
    """Plain SGD that keeps the gradients it was given."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.seen = [p.grad.clone() for g in self.param_groups for p in g["params"] if p.grad is not None]
        super().step()


def with_recorder(run: Run) -> Recorder:
    groups = [{"params": g["params"], "peak_lr": 0.1} for g in run.optimizer.param_groups]
    run.optimizer = Recorder(groups, lr=0.1)
    return run.optimizer


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_kf05_any_split_gives_the_same_gradient(algorithm: str, lora: dict | None, tmp_path: Path) -> None:
    seen = {}
    for parts in (1, 3, 8):
        run = tiny_run(
            tmp_path / str(parts), dtype=torch.float64, kind="gpt2", algorithm=algorithm, model={"lora": lora},
            train={"gradient_accumulation": parts, "grad_clip": None}, rollout={"mask_truncated": False},
        )  # fmt: skip
        recorder = with_recorder(run)
        metrics = update(run, collect(run, 1).batch, 1)
        seen[parts] = recorder.seen
        assert metrics["penalty/grad_norm"] > 0
    for parts in (3, 8):
        for one, other in zip(seen[1], seen[parts], strict=True):
            torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-9)


def test_rows_without_advantage_are_left_out_exactly(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, dtype=torch.float64, kind="gpt2", train={"lambda": 0, "grad_clip": None})
    recorder = with_recorder(run)
    batch = collect(run, 1).batch
    assert batch.advantages is not None
    flat = replace(batch, advantages=torch.where(batch.group_ids[:, None] == 0, batch.advantages, 0.0))
    metrics = update(run, flat, 1)
    assert metrics["optim/rows_used"] == 4
    run.algorithm = replace(run.algorithm, entropy_coef=1e-300)
    assert not run.algorithm.linear_in_advantage
    short = recorder.seen
    for parameter, saved in zip(run.policy.policy_parameters(), short, strict=True):
        parameter.data.add_(saved, alpha=0.1)
    update(run, flat, 1)
    for one, other in zip(short, recorder.seen, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


def test_kf02_ratio_is_one_on_a_fresh_rollout(tmp_path: Path) -> None:
    single = tiny_run(tmp_path / "a")
    assert update(single, collect(single, 1).batch, 1)["policy/ratio_max"] == 1.0
    several = tiny_run(tmp_path / "b", algorithm="ppo", train={"epochs": 2, "learning_rate": 1e-12})
    batch = collect(several, 1).batch
    assert update(several, batch, 1)["policy/ratio_max"] == pytest.approx(1.0, abs=1e-5)


def test_kf21_late_minibatches_are_off_policy(tmp_path: Path) -> None:
    run = tiny_run(
        tmp_path,
        algorithm="group_relative",
        rl={"target_kl": None},
        train={"epochs": 2, "minibatches": 2, "learning_rate": 1e-2},
    )
    metrics = update(run, collect(run, 1).batch, 1)
    assert metrics["optim/updates"] == 4
    assert metrics["policy/ratio_max"] > 1.001
    assert metrics["policy/kl_rollout"] > 0


def test_target_kl_ends_the_updates_early(tmp_path: Path) -> None:
    changes = {"algorithm": "group_relative", "train": {"epochs": 4, "learning_rate": 5e-2}}
    free = tiny_run(tmp_path / "a", rl={"target_kl": None}, **changes)
    held = tiny_run(tmp_path / "b", rl={"target_kl": 1e-4}, **changes)
    assert update(free, collect(free, 1).batch, 1)["optim/updates"] == 4
    metrics = update(held, collect(held, 1).batch, 1)
    assert metrics["optim/stopped_early"] == 1 and metrics["optim/updates"] == 1


@pytest.mark.parametrize("where", ["first pass", "second pass"])
def test_kf52_a_nonfinite_step_is_skipped_whole_and_repeated_ones_stop_the_run(where: str, tmp_path: Path) -> None:
    run = tiny_run(tmp_path, train={"max_nonfinite_steps": 2})
    batch = collect(run, 1).batch
    before, calls = weights(run), 0
    score = run.policy.score

    def poisoned(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        out = score(*args, **kwargs)
        wanted = calls > (0 if where == "first pass" else 2)
        return replace(out, logprobs=out.logprobs * math.nan) if wanted else out

    run.policy.score = poisoned  # type: ignore[method-assign]
    metrics = update(run, batch, 1)
    assert metrics["optim/skipped"] == 1
    assert all(torch.equal(a, b) for a, b in zip(before, weights(run), strict=True))
    assert not run.optimizer.state, "moments unchanged"
    calls = 0
    with pytest.raises(TrainingError, match="2 optimizer steps in a row"):
        update(run, batch, 2)


def test_a_batch_without_any_signal_changes_nothing(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, reward=lambda completion: 0.5)
    before = weights(run)
    experience = collect(run, 1)
    metrics = update(run, experience.batch, 1)
    assert experience.metrics["groups/zero_spread"] == 1 and metrics["optim/rows_used"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, weights(run), strict=True))


def test_kf48_lambda_zero_is_bit_identical_to_no_penalty(tmp_path: Path) -> None:
    ends = []
    for changes in ({"algorithm": {"name": "grpo", "penalty": "none"}}, {"train": {"lambda": 0}}):
        run = tiny_run(tmp_path / str(len(ends)), **changes)
        update(run, collect(run, 1).batch, 1)
        ends.append(weights(run))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_exact_and_finite_difference_agree_through_the_loop(tmp_path: Path) -> None:
    seen = {}
    for estimator in ("exact", "finite_difference"):
        run = tiny_run(
            tmp_path / estimator, dtype=torch.float64, kind="gpt2", attention="eager", model={"attention": "eager"},
            algorithm={"name": "grpo", "penalty": estimator}, train={"grad_clip": None}, penalty={"shift": 1e-5},
        )  # fmt: skip
        recorder = with_recorder(run)
        metrics = update(run, collect(run, 1).batch, 1)
        assert metrics["penalty/ratio"] == pytest.approx(0.2)
        seen[estimator] = recorder.seen
    for one, other in zip(*seen.values(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-5 * float(one.abs().max() + 1e-9))

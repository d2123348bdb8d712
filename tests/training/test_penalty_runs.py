"""Every estimator of the penalty through the training: runs, splits, checkpoints, errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import even_share, merged, tiny_run
from torch import Tensor

from grpo_core.algorithm.batch import Batch
from grpo_core.algorithm.penalty import Penalty
from grpo_core.algorithm.products import finite_difference
from grpo_core.training.collect import collect
from grpo_core.training.run import Run
from grpo_core.training.snapshot import restore, save
from grpo_core.training.update import update

ESTIMATORS = ["exact", "finite_difference", "reuse", "every_k", "logit_space"]
RHYTHM = {"refresh_every": 3, "measure_every": 4}
SETUPS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": {"name": "grpo"}},
    "ppo shared": {"algorithm": {"name": "ppo", "critic": "shared"}},
    "ppo separate": {"algorithm": {"name": "ppo", "critic": "separate"}},
    "group_relative lora": {"algorithm": {"name": "group_relative"}, "model": {"lora": {"rank": 4}}},
}
UPDATES = {"one update": {}, "2 x 2 updates": {"epochs": 2, "minibatches": 2}}


def penalised(folder: Path, estimator: str, changes: dict[str, Any] | None = None, **more: Any) -> Run:
    """A tiny run with the named estimator; `exact` gets the attention it needs."""
    base: dict[str, Any] = {"algorithm": {"name": "grpo", "penalty": estimator}, "penalty": RHYTHM}
    if estimator == "exact":
        base["model"] = {"attention": "eager"}
        more["attention"] = "eager"
    return tiny_run(folder, **merged(base, changes or {}), **more)


def steps(run: Run, count: int) -> list[dict[str, float]]:
    """As the loop does them, without its files."""
    rows = []
    for _ in range(count):
        rows.append(update(run, collect(run, run.progress.step + 1).batch, run.progress.step + 1))
        run.progress.step += 1
    return rows


def weights(run: Run) -> list[Tensor]:
    return [p.detach().clone() for p in run.policy.policy_parameters() + run.policy.value_parameters()]


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def moved(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Share of the tensors that differ."""
    return sum(not torch.equal(a, b) for a, b in zip(one, other, strict=True)) / len(one)


def recorded(run: Run) -> list[list[Tensor]]:
    """The gradients of every optimizer step from now on; AdamW itself stays, with its moments."""
    seen: list[list[Tensor]] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        seen.append([p.grad.clone() for g in optimizer.param_groups for p in g["params"] if p.grad is not None])

    run.optimizer.register_step_pre_hook(note)
    return seen


def figures(rows: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Without those that measure this machine."""
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.mark.parametrize("updates", list(UPDATES))
@pytest.mark.parametrize("setup", list(SETUPS))
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_trains_every_setup(estimator: str, setup: str, updates: str, tmp_path: Path) -> None:
    train = {"gradient_accumulation": 1} | UPDATES[updates]
    run = penalised(tmp_path, estimator, merged(SETUPS[setup], {"train": train, "rollout": {"max_new_tokens": 4}}))
    before = weights(run)
    count = 3 if updates == "one update" else 1
    rows = steps(run, count)
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert all(bool(w.isfinite().all()) for w in weights(run))
    assert moved(before, weights(run)) > 0.9
    assert sum(row["optim/skipped"] for row in rows) == 0
    assert rows[0]["penalty/measured"] > 0
    assert all(row["penalty/grad_norm"] > 0 for row in rows)
    assert all(0 < row["penalty/ratio"] < 1.01 for row in rows)
    shares = [row["penalty/measured"] for row in rows]
    if estimator in ("exact", "finite_difference"):
        assert shares == [1.0] * count
        assert [row["penalty/ratio"] for row in rows] == pytest.approx([0.2] * count)
    else:
        assert min(shares) < 1
        rhythm = {
            ("reuse", "one update"): [1, 1, 0],
            ("every_k", "one update"): [1, 0, 0],
            ("logit_space", "one update"): [1, 0, 0],
            ("reuse", "2 x 2 updates"): [0.5],
            ("every_k", "2 x 2 updates"): [0.5],
            ("logit_space", "2 x 2 updates"): [0.25],
        }[estimator, updates]
        assert shares == rhythm


SPLITS = [
    *[("grpo", estimator, {}) for estimator in ("finite_difference", "reuse", "every_k", "logit_space")],
    *[("ppo separate", estimator, {}) for estimator in ("finite_difference", "reuse")],
    ("ppo shared", "every_k", {}),
    ("ppo shared", "logit_space", {}),
    ("group_relative lora", "reuse", {}),
    ("grpo", "reuse", {"direction": "gradient"}),
    ("grpo", "reuse", {"form": "literal"}),
]


@pytest.mark.parametrize(("setup", "estimator", "how"), SPLITS)
def test_kf49_any_split_gives_the_same_gradient_on_measured_and_quick_steps(
    setup: str, estimator: str, how: dict[str, Any], tmp_path: Path
) -> None:
    runs, seen = [], []
    for parts in (1, 4):
        train = {"gradient_accumulation": parts, "grad_clip": None}
        changes = merged(SETUPS[setup], {"train": train, "penalty": how})
        runs.append(penalised(tmp_path / str(parts), estimator, changes, dtype=torch.float64, kind="gpt2"))
        seen.append(recorded(runs[-1]))
    flags = set()
    for step in range(1, 4):
        batch = collect(runs[0], step).batch
        rows = [update(run, batch, step) for run in runs]
        flags.add(rows[0]["penalty/measured"])
        assert rows[0]["penalty/ratio"] == pytest.approx(rows[1]["penalty/ratio"], rel=1e-6)
    assert flags == ({1.0} if estimator == "finite_difference" else {0.0, 1.0})
    for one, other in zip(*seen, strict=True):
        size = max(float(g.norm()) for g in one)
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-8, atol=1e-8 * size)


@pytest.mark.parametrize(
    ("estimator", "lora"),
    [
        ("finite_difference", None),
        ("reuse", None),
        ("reuse", {"rank": 4}),
        ("every_k", None),
        ("logit_space", {"rank": 4}),
    ],
)
def test_gradient_checkpointing_changes_nothing(estimator: str, lora: Any, tmp_path: Path) -> None:
    """In the second pass and on quick steps the activations are made again at the shifted weights."""
    runs, seen = [], []
    for checkpointing in (False, True):
        changes = {
            "model": {"gradient_checkpointing": checkpointing, "lora": lora},
            "train": {"grad_clip": None},
        }
        runs.append(penalised(tmp_path / str(checkpointing), estimator, changes, dtype=torch.float64, kind="gpt2"))
        seen.append(recorded(runs[-1]))
    for step in range(1, 4):
        batch = collect(runs[0], step).batch
        for run in runs:
            update(run, batch, step)
    for one, other in zip(*seen, strict=True):
        size = max(float(g.norm()) for g in one)
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-7, atol=1e-8 * size)


RICH = {
    "algorithm": {"name": "ppo", "kl": "loss", "kl_controller": "fixed", "kl_estimator": "k2", "entropy_coef": 0.02}
}


@pytest.mark.parametrize("form", ["score", "literal"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_exact_and_finite_difference_agree_with_every_term_and_off_policy(
    form: str, epochs: int, tmp_path: Path
) -> None:
    """Value, entropy and KL in the loss. After the first epoch the old log-probs are not the current ones."""
    seen, batch = {}, None
    for estimator in ("exact", "finite_difference"):
        how = {"form": form, "shift": 1e-6}
        train = {"epochs": epochs, "grad_clip": None, "learning_rate": 3e-3}
        changes = merged(RICH, {"penalty": how, "train": train, "algorithm": {"penalty": estimator}})
        changes["model"] = {"attention": "eager"}
        run = tiny_run(tmp_path / estimator, dtype=torch.float64, kind="gpt2", attention="eager", **changes)
        gradients = recorded(run)
        batch = batch or collect(run, 1).batch
        metrics = update(run, batch, 1)
        assert metrics["penalty/ratio"] == pytest.approx(0.2)
        seen[estimator] = gradients
    assert len(seen["exact"]) == epochs
    for one, other in zip(*seen.values(), strict=True):
        size = max(float(g.norm()) for g in one)
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4 * size)


RESUMED: dict[str, tuple[str, dict[str, Any]]] = {
    "reuse": ("reuse", {}),
    "reuse gradient": ("reuse", {"penalty": {"direction": "gradient", "form": "literal", "warmup_steps": 5}}),
    "reuse ppo": ("reuse", merged(SETUPS["ppo separate"], {"train": UPDATES["2 x 2 updates"]})),
    "every_k lora": ("every_k", SETUPS["group_relative lora"]),
    "every_k ppo": ("every_k", merged(SETUPS["ppo shared"], {"train": UPDATES["2 x 2 updates"]})),
    "logit_space": ("logit_space", {}),
}


@pytest.mark.parametrize("name", list(RESUMED))
def test_kf26_a_resumed_run_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    estimator, changes = RESUMED[name]
    changes = merged(changes, {"train": {"steps": 7}})
    several = "epochs" in changes["train"]
    before, after = (1, 2) if several else (3, 4)
    whole = penalised(tmp_path / "whole", estimator, changes)
    steps(whole, before)
    checkpoint = save(whole)
    at_checkpoint = weights(whole)
    expected = steps(whole, after)
    assert {row["penalty/measured"] < 1 for row in expected} >= {True}

    fresh = penalised(tmp_path / "fresh", estimator, changes)
    steps(fresh, 1)
    restore(fresh, checkpoint)
    assert same(weights(fresh), at_checkpoint)
    assert figures(steps(fresh, after)) == figures(expected)
    assert same(weights(fresh), weights(whole))


@pytest.mark.parametrize(
    ("estimator", "step", "call", "restore_by", "error"),
    [
        ("finite_difference", 1, 3, "subtract", torch.cuda.OutOfMemoryError),
        ("finite_difference", 1, 4, "copy", KeyboardInterrupt),
        ("every_k", 1, 4, "subtract", KeyboardInterrupt),
        ("reuse", 2, 3, "subtract", RuntimeError),
        ("reuse", 3, 1, "subtract", torch.cuda.OutOfMemoryError),
        ("reuse", 3, 2, "subtract", KeyboardInterrupt),
        ("reuse", 3, 2, "copy", KeyboardInterrupt),
    ],
)
def test_kf50_an_error_at_shifted_weights_leaves_weights_and_moments(
    estimator: str, step: int, call: int, restore_by: str, error: type[BaseException], tmp_path: Path
) -> None:
    run = penalised(tmp_path, estimator, {"penalty": {"restore": restore_by, "shift": 0.01}})
    steps(run, step - 1)
    batch = collect(run, step).batch
    before, policy = weights(run), run.policy.policy_parameters()
    moments = [run.optimizer.state[p]["exp_avg"].clone() for p in policy if p in run.optimizer.state]
    score, calls, shifted = run.policy.score, [], []

    def breaking(*args: Any, **kwargs: Any) -> Any:
        out = score(*args, **kwargs)
        calls.append(1)
        if len(calls) == call:
            shifted.append(moved(before, weights(run)) > 0.5)
            raise error("out of luck")
        return out

    run.policy.score = breaking  # type: ignore[method-assign]
    with pytest.raises(error):
        update(run, batch, step)
    assert shifted == [True], "the weights were away when it raised"
    assert same(weights(run), before)
    assert same([run.optimizer.state[p]["exp_avg"] for p in policy if p in run.optimizer.state], moments)

    run.policy.score = score  # type: ignore[method-assign]
    update(run, batch, step)
    assert moved(weights(run), before) > 0.9, "training can go on"


ALGORITHMS = ["grpo", "ppo", "group_relative", "rloo", "dr_grpo", "reinforce"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_kf48_lambda_0_is_bit_identical_to_no_penalty(algorithm: str, tmp_path: Path) -> None:
    ends = {}
    for estimator in ("none", "finite_difference", "reuse"):
        changes = {"algorithm": {"name": algorithm}, "train": {} if estimator == "none" else {"lambda": 0}}
        run = penalised(tmp_path / estimator, estimator, changes)
        if estimator == "finite_difference":
            run.algorithm = replace(run.algorithm, penalty=Penalty(product=finite_difference, strength=0.0))
        rows = steps(run, 2)
        ends[estimator] = weights(run), figures(rows)
    plain, metrics = ends.pop("none")
    for found, rows in ends.values():
        assert same(found, plain)
        assert rows == metrics


SCHEDULES = {
    "constant": [0.5, 1, 1, 1, 1, 1],
    "linear": [0.5, 1, 1, 0.75, 0.5, 0.25],
    "cosine": [0.5, 1, 1, 0.5 + 0.25 * math.sqrt(2), 0.5, 0.5 - 0.25 * math.sqrt(2)],
}


@pytest.mark.parametrize(
    ("estimator", "schedule"),
    [("finite_difference", "cosine"), ("reuse", "linear"), ("every_k", "cosine"), ("logit_space", "constant")],
)
def test_the_penaltys_own_schedule(estimator: str, schedule: str, tmp_path: Path) -> None:
    """Literal lambda 1e-4 over six updates, two of them warm-up; the learning rate has a schedule of its own."""
    train = {"lambda": 1e-4, "lambda_mode": "literal", "penalty_cap": None, "steps": 6, "learning_rate": 1e-6}
    how = {"warmup_steps": 2, "schedule": schedule}
    run = penalised(tmp_path, estimator, {"train": train, "penalty": how})
    rows = steps(run, 6)
    assert [row["penalty/lambda"] for row in rows] == pytest.approx([1e-4 * share for share in SCHEDULES[schedule]])
    assert [row["optim/lr"] for row in rows] == [1e-6] * 6


def test_reuse_never_shifts_further_than_max_shift(tmp_path: Path) -> None:
    run = penalised(tmp_path, "reuse", {"penalty": {"max_shift": 5e-4, "shift": 5e-4}, "train": {"lambda": 0.9}})
    rows = steps(run, 4)
    quick = [row for row in rows if not row["penalty/measured"]]
    assert len(quick) == 2
    for row in quick:
        assert (row["penalty/capped"], row["penalty/shift"]) == (1.0, 5e-4)
        assert row["penalty/shift_realised"] == pytest.approx(5e-4, rel=1e-2)


def test_reuse_in_the_literal_form_is_the_gradient_of_j_at_the_shifted_weights(tmp_path: Path) -> None:
    """On a fresh rollout the old log-probs are those of theta, not of where the only pass is made."""
    run = penalised(
        tmp_path,
        "reuse",
        {"penalty": {"form": "literal", "max_shift": 100.0}, "train": {"grad_clip": None}},
        dtype=torch.float64,
        kind="gpt2",
    )
    steps(run, 2)
    seen, batch = recorded(run), collect(run, 3).batch
    assert batch.old_logprobs is not None, "`collect` scored them"
    policy = run.policy.policy_parameters()
    beta = run.config.train.betas[0]
    v = [run.optimizer.state[p]["exp_avg"] / (1 - beta**2) for p in policy]
    with torch.no_grad():
        old = run.policy.score(batch, temperature=run.config.rollout.temperature).logprobs
    expected = at_shifted(run, batch, old, v)
    assert update(run, batch, 3)["penalty/measured"] == 0
    for found, wanted in zip(seen[0], expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6 * float(expected[0].norm()))


def at_shifted(run: Run, batch: Batch, old: Tensor, v: Sequence[Tensor]) -> list[Tensor]:
    """grad of -token mean(ratio A) at theta + 2 lambda v, written out."""
    policy = run.policy.policy_parameters()
    penalty = run.algorithm.penalty
    assert penalty is not None and penalty.last is not None and batch.advantages is not None
    saved = [p.detach().clone() for p in policy]
    with torch.no_grad():
        for p, direction in zip(policy, v, strict=True):
            p.add_(direction, alpha=2 * penalty.last.lam)
    logprobs = run.policy.score(batch, temperature=run.config.rollout.temperature).logprobs
    per_token = -(logprobs - old).exp() * batch.advantages
    loss = per_token[batch.loss_mask].sum() / batch.loss_mask.sum()
    result = torch.autograd.grad(loss, policy)
    with torch.no_grad():
        for p, before in zip(policy, saved, strict=True):
            p.copy_(before)
    return list(result)


def test_the_loss_that_a_quick_step_reports_is_j(tmp_path: Path) -> None:
    """On a fresh rollout the ratio is 1, so the policy term is the mean of -A, shift or none."""
    run = penalised(tmp_path, "reuse", {"penalty": {"max_shift": 1e-6}})
    for step in range(1, 4):
        batch = collect(run, step).batch
        assert batch.advantages is not None
        expected = -float((batch.advantages * batch.loss_mask).sum() / batch.loss_mask.sum())
        row = update(run, batch, step)
        assert row["policy/ratio_max"] == pytest.approx(1.0, abs=1e-4)
        assert row["loss/policy"] == pytest.approx(expected, abs=1e-4), f"measured: {row['penalty/measured']}"


@pytest.mark.parametrize(
    ("estimator", "direction", "kl", "flat"),
    [
        ("finite_difference", "moment", "loss", (1, 3)),
        ("every_k", "moment", "none", (1, 3, 4)),
        ("every_k", "moment", "loss", (1, 3, 4)),
        ("logit_space", "moment", "loss", (1, 3)),
        ("reuse", "moment", "none", (1,)),
        ("reuse", "moment", "none", (2, 4)),
        ("reuse", "gradient", "loss", (2, 4)),
        ("reuse", "moment", "loss", (1,)),
        ("reuse", "gradient", "loss", (1,)),
        ("reuse", "gradient", "none", (1,)),
        ("reuse", "gradient", "none", (2,)),
        ("reuse", "gradient", "none", (3, 4)),
    ],
)
def test_steps_without_spread_in_any_group_are_got_over(
    estimator: str, direction: str, kl: str, flat: tuple[int, ...], tmp_path: Path
) -> None:
    """With the KL in the loss such a step has rows, and a gradient of exactly zero as long as the policy is the
    reference."""
    now = {"step": 0}

    def reward(completion: str) -> float:
        return 0.5 if now["step"] in flat else even_share(completion)

    changes = {"algorithm": {"name": "group_relative", "kl": kl}, "penalty": {"direction": direction}}
    run = penalised(tmp_path, estimator, changes, reward=reward)
    for step in range(1, 7):
        now["step"] = step
        before = weights(run)
        (row,) = steps(run, 1)
        assert all(math.isfinite(value) for value in row.values())
        assert row["optim/skipped"] == 0
        if step not in flat:
            assert moved(before, weights(run)) > 0.9

"""Advantage estimators against the shared cases and numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import case_params
from tiny_batches import batch_of

from grpo_core.algorithm import advantages
from grpo_core.algorithm.batch import Batch

GROUP_ESTIMATORS = [
    advantages.group_centered,
    advantages.group_normalized,
    advantages.leave_one_out,
    advantages.batch_baseline,
]


def grouped(row: dict[str, Any]) -> Batch:
    rewards = [float("nan") if r is None else float(r) for r in row["rewards"]]
    if "group_ids" in row:
        names = sorted(set(row["group_ids"]))
        groups = [names.index(name) for name in row["group_ids"]]
    else:
        groups = [place // row["group_size"] for place in range(len(rewards))]
    return batch_of(rewards, groups)


def close(actual: torch.Tensor, expected: Any, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(
        actual.double(), torch.tensor(expected, dtype=torch.float64), atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize(
    "row",
    [
        *case_params("advantages.jsonl", kind="group_relative"),
        *case_params("advantages.jsonl", kind="group_by_id"),
        *case_params("advantages.jsonl", kind="missing_reward"),
    ],
)
def test_kf03_kf31_kf32_group_cases(row: dict[str, Any]) -> None:
    batch = grouped(row)
    single = replace(batch, rewards=batch.rewards.float())
    for kind, estimator in (
        ("centered", advantages.group_centered),
        ("z_ddof1", advantages.group_normalized),
    ):
        expected = row["expected"][kind]
        close(estimator(batch)[:, 0], expected)
        close(estimator(single)[:, 0], expected, 1e-5)
        exact_zero = torch.tensor(expected) == 0
        assert bool((estimator(single)[:, 0][exact_zero] == 0).all())
        assert bool((estimator(batch)[:, 0][exact_zero] == 0).all())


@pytest.mark.parametrize("row", case_params("advantages.jsonl", kind="group_relative"))
def test_kf03_groups_without_spread_can_be_counted(row: dict[str, Any]) -> None:
    batch = grouped(row)
    flat = advantages.spread(advantages.totals(batch), batch.group_ids) == 0
    assert len(batch.group_ids[flat].unique()) == row["expected"]["zero_std_groups"]


@pytest.mark.parametrize("row", case_params("advantages.jsonl", kind="rloo"))
def test_kf10_leave_one_out_takes_the_kl_before_the_baseline(row: dict[str, Any]) -> None:
    batch = grouped(row)
    if "sequence_kl" in row:
        # each sequence's KL on two tokens, a third slot of padding with garbage in it
        half = torch.tensor(row["sequence_kl"], dtype=torch.float64)[:, None] * row["kl_coef"] / 2
        mask = torch.tensor([[1, 1, 0]]).repeat(len(half), 1)
        batch = batch_of(
            row["rewards"],
            batch.group_ids.tolist(),
            mask=mask,
            kl_penalty=torch.cat([half, half, torch.full_like(half, 1e6)], 1),
        )
    close(advantages.totals(batch), row["expected"]["total"])
    result = advantages.leave_one_out(batch)
    close(result[:, 0], row["expected"]["advantage"])
    if "sequence_kl" in row:
        close(result[:, 1], row["expected"]["advantage"])
        assert bool((result[:, 2] == 0).all()), "padding carries no advantage"


@pytest.mark.parametrize("row", case_params("advantages.jsonl", kind="loo_normalised"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kf03_no_estimator_blows_up_a_constant_rest(row: dict[str, Any], dtype: torch.dtype) -> None:
    batch = grouped(row)
    batch = replace(batch, rewards=batch.rewards.to(dtype))
    for estimator in GROUP_ESTIMATORS:
        assert float(estimator(batch).abs().max()) <= 10
    # ours is the unscaled difference throughout, so it equals the listed value where the others have no spread
    unscaled = advantages.leave_one_out(batch)[0, 0]
    close(unscaled[None], row["expected"]["advantage_when_zero_std_is_left_unscaled"][:1], 1e-6)


@pytest.mark.parametrize("row", case_params("advantages.jsonl", kind="gae"))
def test_kf09_gae_cases(row: dict[str, Any]) -> None:
    def tensor(name: str) -> torch.Tensor:
        return torch.tensor([row[name]], dtype=torch.float64)

    mask = tensor("mask").bool()
    result = advantages.generalised(tensor("rewards"), tensor("values"), mask, row["gamma"], row["lam"])
    close(result, [row["expected"]["advantages"]])
    close((result + tensor("values")) * mask, [row["expected"]["returns"]])


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1 / 3, 0.95])
def test_kf03_equal_rewards_give_exactly_zero(estimator: Any, dtype: torch.dtype, value: float) -> None:
    for size in range(1, 10):
        batch = batch_of(torch.full((size,), value, dtype=dtype), [7] * size)
        assert bool((estimator(batch) == 0).all()), size


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
@pytest.mark.parametrize("missing", [float("nan"), float("inf"), float("-inf")])
def test_kf32_a_reward_that_is_not_finite_changes_nobody_else(estimator: Any, missing: float) -> None:
    for rest in ([0.1, 0.1, 0.1], [1.0, 0.0, 0.0], [0.3]):
        with_hole = estimator(batch_of([rest[0], missing, *rest[1:]], [4] * (len(rest) + 1)))[:, 0]
        without = estimator(batch_of(rest, [4] * len(rest)))[:, 0]
        assert with_hole[1] == 0
        torch.testing.assert_close(with_hole[[0, *range(2, len(rest) + 1)]], without, atol=1e-12, rtol=0)


def test_kf32_gae_leaves_out_a_rollout_without_reward() -> None:
    values = torch.tensor([[0.5, 0.25], [0.5, 0.25]], dtype=torch.float64)
    batch = batch_of([float("nan"), 1.0], [0, 0], mask=[[1, 1], [1, 1]], old_values=values)
    result = advantages.gae(batch, gamma=1.0, lam=1.0)
    close(result, [[0.0, 0.0], [0.5, 0.75]])


def test_kf31_interleaved_groups_equal_groups_side_by_side() -> None:
    draw = torch.Generator().manual_seed(0)
    rewards = torch.rand(12, generator=draw, dtype=torch.float64)
    groups = torch.tensor([3, 3, 3, 3, 3, 8, 8, 8, 8, -1, -1, 5])
    order = torch.randperm(12, generator=draw)
    for estimator in GROUP_ESTIMATORS:
        straight = estimator(batch_of(rewards, groups.tolist()))
        mixed = estimator(batch_of(rewards[order], groups[order].tolist()))
        torch.testing.assert_close(mixed, straight[order], atol=1e-12, rtol=0)
        assert estimator is advantages.batch_baseline or straight[11, 0] == 0, "a lone survivor gets 0"


def test_batch_baseline_subtracts_the_mean_of_all_groups() -> None:
    result = advantages.batch_baseline(batch_of([1.0, 2.0, 6.0], [0, 0, 1]))
    close(result[:, 0], [-2.0, -1.0, 3.0])


def test_gae_places_the_score_on_the_last_token_and_the_kl_on_each() -> None:
    # delta_2 = (2 - 0.3) - 0.5 = 1.2; delta_1 = -0.1 + 0.9*0.5 - 0.4 = -0.05; A_1 = -0.05 + 0.9*0.8*1.2 = 0.814
    batch = batch_of(
        [2.0],
        [0],
        mask=[[1, 1, 0]],
        kl_penalty=torch.tensor([[0.1, 0.3, 99.0]], dtype=torch.float64),
        old_values=torch.tensor([[0.4, 0.5, 99.0]], dtype=torch.float64),
    )
    close(advantages.token_rewards(batch), [[-0.1, 1.7, 0.0]])
    close(advantages.gae(batch, gamma=0.9, lam=0.8), [[0.814, 1.2, 0.0]])


def test_gae_with_lambda_1_is_the_return_minus_the_value() -> None:
    values = torch.tensor([[0.3, -0.7, 2.0]], dtype=torch.float64)
    batch = batch_of([1.5], [0], mask=[[1, 1, 1]], old_values=values)
    close(advantages.gae(batch, gamma=1.0, lam=1.0), [[1.2, 2.2, -0.5]])


def test_gae_without_values_names_the_setting() -> None:
    with pytest.raises(ValueError, match=r"algorithm\.critic"):
        advantages.gae(batch_of([1.0], [0]))


@pytest.mark.parametrize("estimator", [*GROUP_ESTIMATORS, advantages.gae])
def test_wider_padding_changes_no_advantage(estimator: Any) -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    filler = torch.tensor([[9.0, 9.0, 9.0]], dtype=torch.float64).repeat(3, 1)

    def build(extra: int) -> Batch:
        wide = torch.cat([mask, torch.zeros(3, extra, dtype=mask.dtype)], 1)
        garbage = torch.cat([filler, torch.full((3, extra), 1e5, dtype=torch.float64)], 1)
        return batch_of([1.0, 0.0, 0.5], [0, 0, 0], mask=wide, kl_penalty=garbage * 0.01, old_values=garbage)

    narrow, wide = estimator(build(0)), estimator(build(4))
    torch.testing.assert_close(wide[:, :3], narrow, atol=0, rtol=0)
    assert bool((wide[:, 3:] == 0).all())
    assert bool((narrow[mask == 0] == 0).all())

"""Collating and selecting: who belongs to whom, and what padding may not change."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from conftest import case_params
from tiny_batches import random_batch, rollout_of

from grpo_core.algorithm.batch import Batch, collate, length_mask, pad_right
from grpo_core.records import Score


def rows_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, response ids) of each rollout, without padding."""
    prompts, masks = batch.prompt_ids[batch.prompt_index], batch.prompt_mask[batch.prompt_index]
    return [
        (prompts[row][masks[row]].tolist(), batch.response_ids[row][batch.response_mask[row]].tolist())
        for row in range(len(batch))
    ]


def test_prompts_are_left_padded_and_responses_right_padded() -> None:
    batch = collate([rollout_of([1, 2, 3], [4], prompt_id="a"), rollout_of([5], [6, 7], prompt_id="b")], fill=9)
    assert batch.prompt_ids.tolist() == [[1, 2, 3], [9, 9, 5]]
    assert batch.prompt_mask.tolist() == [[True, True, True], [False, False, True]]
    assert batch.response_ids.tolist() == [[4, 9], [6, 7]]
    assert batch.response_mask.tolist() == [[True, False], [True, True]]


def test_rollouts_of_one_prompt_share_its_row() -> None:
    rollouts = [rollout_of([1, 2], [3], prompt_id=p) for p in ("a", "b", "a")]
    batch = collate([rollouts[0], replace(rollouts[1]), rollouts[2]])
    assert batch.prompt_index.tolist() == [0, 1, 0]
    assert batch.prompt_ids.shape[0] == 2


def test_kf20_the_same_prompt_id_with_other_tokens_is_another_prompt() -> None:
    rollouts = [rollout_of([1, 2], [3], prompt_id="a"), rollout_of([1, 2, 3, 4], [5], prompt_id="a")]
    assert rows_of(collate(rollouts)) == [([1, 2], [3]), ([1, 2, 3, 4], [5])]


def test_kf20_equal_prompts_keep_their_own_completion_reward_and_group() -> None:
    rollouts = [
        rollout_of(
            [1, 2],
            [10 + row],
            prompt_id=f"row{row % 2}",
            group=row % 2,
            score=float(row),
            answer=str(row % 2),
        )
        for row in range(6)
    ]
    order = [4, 1, 0, 5, 3, 2]
    batch = collate([rollouts[row] for row in order])
    assert batch.rewards.tolist() == [float(row) for row in order]
    assert batch.group_ids.tolist() == [row % 2 for row in order]
    assert rows_of(batch) == [([1, 2], [10 + row]) for row in order]


@pytest.mark.parametrize("row", case_params("eos_masks.jsonl"))
@pytest.mark.parametrize("fill", [0, 2])
def test_kf11_masks_come_from_lengths_whatever_the_fill(row: dict[str, Any], fill: int) -> None:
    kept = row["completion_ids"][: row["expected"]["length"]]
    width = len(row["completion_ids"])
    batch = collate([rollout_of([1], kept), rollout_of([1], [7] * width)], fill=fill)
    assert batch.response_mask[0].long().tolist() == row["expected"]["mask"]
    assert batch.loss_mask[0].long().tolist() == row["expected"]["mask"]
    if row["expected"]["finished"]:
        last = batch.response_ids[0][batch.loss_mask[0]][-1]
        assert int(last) in row["eos_ids"], "the EOS itself is trained"


def test_truncated_completions_can_leave_the_loss() -> None:
    rollouts = [rollout_of([1], [2, 3], reason="length"), rollout_of([1], [4])]
    assert collate(rollouts).loss_mask.tolist() == [[True, True], [True, False]]
    masked = collate(rollouts, mask_truncated=True)
    assert masked.loss_mask.tolist() == [[False, False], [True, False]]
    assert masked.response_mask.tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize(
    "score", [None, Score(value=0.0, failure="timeout"), Score(value=float("nan")), Score(value=float("inf"))]
)
def test_kf32_a_rollout_without_reward_is_missing_and_never_0(score: Score | None) -> None:
    batch = collate([rollout_of([1], [2], score=score), rollout_of([1], [3], score=1.0)])
    assert bool(batch.rewards[0].isnan())
    assert batch.rewards[1] == 1.0
    assert batch.loss_mask.tolist() == [[False], [True]]
    assert batch.response_mask.tolist() == [[True], [True]]


def test_select_keeps_order_and_trims_padding() -> None:
    batch = random_batch(rollouts=10, prompts=4)
    rows = torch.tensor([7, 2, 2, 5])
    part = batch.select(rows)
    whole = rows_of(batch)
    assert rows_of(part) == [whole[row] for row in rows.tolist()]
    assert part.response_mask[:, -1].any(), "no column of padding is left"
    assert part.prompt_mask[:, 0].any()
    assert part.prompt_ids.shape[0] == len(batch.prompt_index[rows].unique())
    assert part.weights is not None
    assert batch.weights is not None
    width = part.weights.shape[1]
    torch.testing.assert_close(part.weights, batch.weights[rows, :width], atol=0, rtol=0)


def test_kf05_select_cuts_the_weights_without_changing_their_sum() -> None:
    batch = random_batch(rollouts=9)
    assert batch.weights is not None
    shares = [batch.select(rows).weights for rows in torch.arange(9).tensor_split(4)]
    assert sum(float(share.sum()) for share in shares if share is not None) == pytest.approx(1.0, abs=1e-12)


def test_select_of_nothing_and_of_everything() -> None:
    batch = random_batch()
    empty = batch.select(torch.zeros(0, dtype=torch.long))
    assert len(empty) == 0
    assert rows_of(batch.select(torch.arange(len(batch)))) == rows_of(batch)


def test_growing_the_padding_changes_no_row() -> None:
    rollouts = [
        rollout_of([1, 2], [3, 4], prompt_id="a", score=0.5),
        rollout_of([5], [6], prompt_id="b", score=1.0),
    ]
    longer = rollout_of(list(range(1, 20)), list(range(30)), prompt_id="c")
    narrow, wide = collate(rollouts), collate([*rollouts, longer])
    assert rows_of(wide)[:2] == rows_of(narrow)
    trimmed = wide.select(torch.tensor([0, 1]))
    for item in fields(Batch):
        left, right = getattr(narrow, item.name), getattr(trimmed, item.name)
        assert (left is None) == (right is None)
        if left is not None:
            torch.testing.assert_close(left, right, atol=0, rtol=0)


def test_padding_helpers_have_at_least_one_column() -> None:
    assert pad_right([[], []], 0, torch.long).shape == (2, 1)
    assert length_mask([0, 0]).tolist() == [[False], [False]]
    assert length_mask([2, 0, 3]).tolist() == [[True, True, False], [False] * 3, [True] * 3]

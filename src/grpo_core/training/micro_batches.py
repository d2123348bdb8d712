"""Cutting a batch into micro-batches. The loss's weights are set before the cut, so any cut gives the same gradient."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from grpo_core.algorithm.batch import Batch


def micro_batches(batch: Batch, count: int) -> Iterator[tuple[Tensor, Batch]]:
    """At most `count` near-equal (rows, part), completions of one prompt kept side by side."""
    order = torch.argsort(batch.prompt_index, stable=True)
    for rows in order.tensor_split(min(count, len(batch))):
        if len(rows):
            yield rows, batch.select(rows)

"""The learning rate's shape over optimizer steps."""

from __future__ import annotations

import math
from typing import Literal


def factor(update: int, *, total: int, warmup: int, shape: Literal["constant", "linear", "cosine"]) -> float:
    """Multiple of the peak rate for optimizer step `update` (from 0) of `total`.

    Rises as (update + 1) / warmup, then stays, or falls to 0 after the last step, in a line or half a cosine.
    """
    if update < warmup:
        return (update + 1) / warmup
    done = (update - warmup) / max(1, total - warmup)
    if shape == "linear":
        return 1 - done
    return 0.5 * (1 + math.cos(math.pi * done)) if shape == "cosine" else 1.0

"""The verifiers of reasoning-gym, called in a child process: several of them evaluate what the model wrote.

Only that child imports this module, and with it the library: importing is not part of the limit of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reasoning_gym.factory import create_dataset

_made: dict[str, Any] = {}


def verify(task: str, options: Mapping[str, Any], answer: str | None, entry: Mapping[str, Any]) -> float:
    """The task's own score of an answer in [0, 1]. May raise or hang on what a model writes.

    `options` are those the entry was made with: some verifiers read their tolerances and bounds from them.
    """
    key = f"{task} {sorted(options.items())!r}"
    if key not in _made:
        _made[key] = create_dataset(task, **options)
    return float(_made[key].score_answer(answer, entry))

"""A whole run on a tiny random model in float64 or float32, without files: for tests of the loop's parts.

In float64 take kind="gpt2": the other families round to float32 in their norms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_models import byte_tokenizer, tiny_model

from grpo_core.assemble import assemble
from grpo_core.config.load import config_from_mapping
from grpo_core.models.loading import prepare
from grpo_core.training.run import Run


def even_share(completion: str) -> float:
    """A reward that varies within every group of a random model: the share of characters with an even code."""
    return sum(ord(letter) % 2 == 0 for letter in completion) / max(1, len(completion))


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`changes` laid over `base`, section by section."""
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


BASE: dict[str, Any] = {
    "data": {"kind": "arithmetic", "size": 40},
    "reward": {"parts": [{"kind": "length", "target": 2, "limit": 9}]},
    "train": {"batch_size": 8, "seq_length": 128, "steps": 4, "learning_rate": 1e-3, "gradient_accumulation": 2},
    "rollout": {"group_size": 4, "max_new_tokens": 6},
    "evaluation": {"prompts": 4},
    "run": {"tensorboard": False, "save_rollouts_every": 0},
}


def tiny_run(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    kind: str = "llama",
    attention: str = "sdpa",
    reward: Any = even_share,
    **changes: Any,
) -> Run:
    """An assembled run; `changes` are config sections laid over BASE."""
    config = config_from_mapping(merged(BASE, changes))
    model = tiny_model(kind, dtype=dtype, attention=attention)
    loaded = prepare(model, byte_tokenizer(), config.model)
    return assemble(config, folder / "run", reward=reward, loaded=loaded, quiet=True)

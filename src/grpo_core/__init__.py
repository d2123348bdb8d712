"""grpo-core: Gradient-Regularized Policy Optimization, PPO and group-relative RL for language models.

Public names are resolved on first use, so that `import grpo_core` and the command line stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_core.algorithm.objective import Algorithm, regularized_gradient, surrogate
    from grpo_core.algorithm.penalty import Penalty
    from grpo_core.algorithm.products import exact, finite_difference
    from grpo_core.api import train
    from grpo_core.config.load import config_from_mapping, load_config
    from grpo_core.config.root import RunConfig
    from grpo_core.errors import GrpoCoreError
    from grpo_core.records import Completion, Message, Prompt, Rollout, Sampling, Score

__version__ = "0.1.0"

_HOME = {
    "train": "grpo_core.api",
    "RunConfig": "grpo_core.config.root",
    "load_config": "grpo_core.config.load",
    "config_from_mapping": "grpo_core.config.load",
    "Algorithm": "grpo_core.algorithm.objective",
    "surrogate": "grpo_core.algorithm.objective",
    "regularized_gradient": "grpo_core.algorithm.objective",
    "Penalty": "grpo_core.algorithm.penalty",
    "exact": "grpo_core.algorithm.products",
    "finite_difference": "grpo_core.algorithm.products",
    "GrpoCoreError": "grpo_core.errors",
    "Completion": "grpo_core.records",
    "Message": "grpo_core.records",
    "Prompt": "grpo_core.records",
    "Rollout": "grpo_core.records",
    "Sampling": "grpo_core.records",
    "Score": "grpo_core.records",
}

__all__ = [
    "Algorithm",
    "Completion",
    "GrpoCoreError",
    "Message",
    "Penalty",
    "Prompt",
    "Rollout",
    "RunConfig",
    "Sampling",
    "Score",
    "config_from_mapping",
    "exact",
    "finite_difference",
    "load_config",
    "regularized_gradient",
    "surrogate",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'grpo_core' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

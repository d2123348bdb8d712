"""`RunConfig`: the whole YAML file, with the checks that need more than one section."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from grpo_core.config.algorithm import AlgorithmConfig, RLConfig, expand_algorithm
from grpo_core.config.data import DataConfig, expand_data
from grpo_core.config.evaluation import EvaluationConfig
from grpo_core.config.model import ModelConfig
from grpo_core.config.penalty import PenaltyConfig
from grpo_core.config.presets import PresetName, beneath
from grpo_core.config.reward import RewardConfig, expand_reward
from grpo_core.config.rollout import RolloutConfig
from grpo_core.config.run import RunSection
from grpo_core.config.section import Section
from grpo_core.config.training import TrainConfig

SHORTHANDS: dict[str, Callable[[Any], Any]] = {
    "algorithm": expand_algorithm,
    "data": expand_data,
    "reward": expand_reward,
}
"""The sections that may be written as one word, and what that word stands for."""


class RunConfig(Section):
    """One run, complete. `grpo config schema` prints its JSON schema."""

    preset: PresetName | None = None
    """Settings that suit a kind of task, put beneath this file: what the file says wins (`grpo presets`)."""
    model: ModelConfig = ModelConfig()
    data: DataConfig
    reward: RewardConfig
    algorithm: AlgorithmConfig = AlgorithmConfig()
    train: TrainConfig = TrainConfig()
    penalty: PenaltyConfig = PenaltyConfig()
    rl: RLConfig = RLConfig()
    rollout: RolloutConfig = RolloutConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    run: RunSection = RunSection()

    @property
    def completions_per_step(self) -> int:
        """Completions sampled in one training step."""
        return self.train.batch_size * self.train.minibatches

    @property
    def prompts_per_step(self) -> int:
        """Prompts drawn in one training step."""
        return self.completions_per_step // self.rollout.group_size

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps in one training step."""
        return self.train.epochs * self.train.minibatches

    @property
    def penalty_shift(self) -> float:
        """penalty.shift, or the length that suits the arithmetic (docs/gradient-regularization.md, Precision)."""
        if self.penalty.shift is not None:
            return self.penalty.shift
        if self.train.autocast != "off" or self.model.dtype != "float32":
            return 0.1
        return 0.002 if self.model.matmul_precision == "highest" else 0.02

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, value: Any) -> Any:
        return beneath(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _check_pairs(self) -> RunConfig:
        from grpo_core.config.pairs import conflicts

        found = conflicts(self)
        if found:
            text = "\n".join(str(problem) for problem in found)
            raise PydanticCustomError("impossible_pair", "{text}", {"text": text, "found": found})
        return self

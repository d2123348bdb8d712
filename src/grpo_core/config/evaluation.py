"""Held-out evaluation during training."""

from __future__ import annotations

from pydantic import Field

from grpo_core.config.section import Section


class EvaluationConfig(Section):
    """The same reward on prompts that are never trained on: before, every so many steps, and after."""

    prompts: int = Field(default=64, ge=0)
    """Held-out prompts; 0 switches evaluation off."""
    every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0 evaluates before and after only."""
    samples: int = Field(default=1, ge=1)
    """Completions per held-out prompt."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""

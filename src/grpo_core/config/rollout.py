"""How completions are sampled during training."""

from __future__ import annotations

from pydantic import Field

from grpo_core.config.section import Flag, Section


class RolloutConfig(Section):
    """Sampling in training. Evaluation has its own settings."""

    group_size: int = Field(default=8, ge=1)
    """Completions per prompt. Group-based advantages need at least 2."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Length limit of a completion, in tokens; must leave room for a prompt within train.seq_length."""
    temperature: float = Field(default=1.0, gt=0)
    """Softmax temperature; the same value is used wherever the trainer scores tokens."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k most likely tokens; 0 keeps all. The trainer scores without the cut, so any value but 0
    makes the policy gradient biased: a warning says so."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling. Biased below 1 for the same reason as top_k."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Keep tokens with at least this share of the top probability. Biased above 0 for the same reason."""
    min_new_tokens: int = Field(default=0, ge=0)
    """No end-of-sequence token before this many tokens."""
    batch_size: int | None = Field(default=None, ge=1)
    """Completions decoded at once; all of a rollout by default. Lower it when decoding runs out of memory."""
    mask_truncated: Flag = False
    """Leave completions that hit max_new_tokens out of the loss (their group still counts their reward)."""

"""The optimizer's side: batch, learning rate, and the gradient penalty's strength."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grpo_core.config.section import Flag, Section

Decay = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(Section):
    """Batch, steps, learning rate, and the gradient penalty's strength."""

    batch_size: int = Field(default=16, ge=1)
    """Completions per optimizer step."""
    seq_length: int = Field(default=2048, ge=2)
    """Most tokens of a prompt and its completion together."""
    learning_rate: float = Field(default=1e-5, gt=0, lt=1)
    """Peak learning rate of AdamW."""
    lambda_: float = Field(default=0.2, ge=0, alias="lambda")
    """Strength of the gradient penalty, read as lambda_mode says; 0 switches it off and costs nothing. It
    acts where algorithm.penalty is not `none`."""
    lambda_mode: Literal["relative", "literal"] = "relative"
    """`relative`: the penalty's gradient is held at `lambda` times the loss's gradient, so one value means
    the same for every model. `literal`: the factor of ||grad J||^2 in the formula."""
    penalty_cap: float | None = Field(default=1.0, gt=0)
    """Most the penalty's gradient may measure, relative to the loss's gradient; a capped step is logged."""
    grad_clip: float | None = Field(default=1.0, gt=0)
    """Clip the norm of the finished gradient (extra safety); null for none."""
    steps: int = Field(default=100, ge=1)
    """Training steps. One step samples batch_size x minibatches completions and updates on them."""
    epochs: int = Field(default=1, ge=1)
    """Passes over each rollout."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps per pass."""
    gradient_accumulation: int = Field(default=4, ge=1)
    """Micro-batches per optimizer step. Any split gives the same gradient; more splits need less memory."""
    share_prompts: Literal["auto", "on", "off"] = "auto"
    """Compute each group's prompt once in the forward and backward pass. `auto`: unless gradient
    checkpointing."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the learning rate rises from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the learning rate after the warm-up; linear and cosine end at 0."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW's moment decays."""
    compile: Flag = False
    """torch.compile the trunk: faster steps after a slow start, more memory."""
    autocast: Literal["off", "bfloat16"] = "off"
    """Compute in bfloat16 with float32 weights; log-probabilities stay float32."""
    max_nonfinite_steps: int = Field(default=5, ge=1)
    """The run stops after this many skipped steps in a row (non-finite loss or gradient)."""
    critic_learning_rate: float | None = Field(default=None, gt=0)
    """Learning rate of the value head or critic; train.learning_rate by default."""

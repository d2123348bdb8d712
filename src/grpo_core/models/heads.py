"""The output head of a causal LM as a function of hidden states, checked against the model's own logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from grpo_core.errors import ModelError


def language_head(model: Any) -> Callable[[Tensor], Tensor]:
    """logits = f(W h): W the output embedding, f the scaling or soft cap some families put behind it."""
    output = model.get_output_embeddings()
    config = model.config
    cap = getattr(config, "final_logit_softcapping", None)
    scale = getattr(config, "logit_scale", None) or 1.0
    divide = getattr(config, "logits_scaling", None) or 1.0

    def head(hidden: Tensor) -> Tensor:
        logits: Tensor = output(hidden)
        if scale != 1.0 or divide != 1.0:
            logits = logits * (scale / divide)
        return torch.tanh(logits / cap) * cap if cap else logits

    return head


@torch.no_grad()
def check_head(model: Any, head: Callable[[Tensor], Tensor]) -> None:
    """Refuse a family whose logits are not `head(trunk(ids))`; raises ModelError. Costs one forward of four tokens."""
    device = next(model.parameters()).device
    ids = torch.arange(4, device=device)[None] % model.config.get_text_config().vocab_size
    own = model(input_ids=ids, use_cache=False).logits.float()
    ours = head(model.base_model(input_ids=ids, use_cache=False).last_hidden_state).float()
    if own.shape != ours.shape or not torch.allclose(own, ours, rtol=1e-3, atol=1e-3 * float(own.abs().max() + 1)):
        raise ModelError(
            f"model type {model.config.model_type!r} changes its logits in a way this library does not know",
            fix="use another model family, or report it with the model's name",
        )


class ValueHead(nn.Module):
    """V(s_t) = w . h_t + b, in float32. Starts at 0, so that the first advantages are the rewards."""

    def __init__(self, hidden: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, 1, dtype=dtype)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Float[Tensor, "*axes hidden"]) -> Float[Tensor, "*axes"]:
        """Values, one for each hidden state."""
        values: Tensor = self.linear(hidden.to(self.linear.weight.dtype))
        return values.squeeze(-1)

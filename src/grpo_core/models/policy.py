"""The policy: one function scores tokens for the loss, the old policy and the reference alike."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from grpo_core.algorithm.batch import Batch, PolicyOutputs
from grpo_core.models.heads import ValueHead, language_head
from grpo_core.models.logprobs import Wanted, token_logprobs
from grpo_core.models.trunk import Trunk

REFERENCE = "reference"
"""Name of the frozen adapter that is the reference when training starts from an adapter."""


class Policy:
    """A causal LM of transformers, with or without peft adapters and a value head.

    `model` is the bare transformers model (adapters sit inside its layers); `adapter` the PeftModel around it, or
    None for full training.
    """

    def __init__(
        self,
        model: Any,
        *,
        adapter: Any = None,
        critic: str = "none",
        share_prompts: bool = True,
        compiled: bool = False,
        autocast: torch.dtype | None = None,
        frozen_value_trunk: bool = False,
    ) -> None:
        self.model = model
        self.adapter = adapter
        self.autocast = autocast
        self.frozen_value_trunk = frozen_value_trunk
        self.trunk = Trunk(model.base_model, share_prompts=share_prompts, compiled=compiled)
        self.head = language_head(model)
        text = model.config.get_text_config()
        self.vocab = model.get_output_embeddings().weight.shape[0]
        self.value_trunk: Trunk | None = None
        self.value_head: ValueHead | None = None
        if critic != "none":
            floating = torch.float64 if self.dtype == torch.float64 else torch.float32
            self.value_head = ValueHead(text.hidden_size, floating).to(self.device)
        if critic == "separate":
            twin = (
                copy.deepcopy(model.base_model).float()
                if self.dtype != torch.float64
                else copy.deepcopy(model.base_model)
            )
            for parameter in twin.parameters():
                parameter.requires_grad_(True)
            self.value_trunk = Trunk(twin, share_prompts=share_prompts, compiled=compiled)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        first: Tensor = next(self.model.parameters())
        return first.device

    @property
    def dtype(self) -> torch.dtype:
        """Storage type of the first weight."""
        first: Tensor = next(self.model.parameters())
        return first.dtype

    def policy_parameters(self) -> list[nn.Parameter]:
        """Trainable weights of the policy: what the penalty covers."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def value_parameters(self) -> list[nn.Parameter]:
        """Trainable weights of the value head, and of the critic's own trunk if there is one."""
        head = [] if self.value_head is None else list(self.value_head.parameters())
        return head + ([] if self.value_trunk is None else list(self.value_trunk.module.parameters()))

    def buffers(self) -> list[Tensor]:
        """Buffers a forward pass could change."""
        return list(self.model.buffers())

    def score(self, batch: Batch, *, temperature: float, wanted: Wanted = (), values: bool = False) -> PolicyOutputs:
        """Log-probs (nats) of the response tokens at `temperature`, 0 in padded slots; `wanted` and values if asked."""
        mask = batch.response_mask
        with self._precision():
            hidden = self.trunk.response_hidden(batch)
        logprobs, *figures = token_logprobs(
            hidden[mask],
            batch.response_ids[mask],
            self.head,
            vocab=self.vocab,
            temperature=temperature,
            wanted=wanted,
        )
        return PolicyOutputs(
            logprobs=_scatter(logprobs, mask),
            **{name: _scatter(figure, mask) for name, figure in zip(wanted, figures, strict=True)},
            values=self._values(batch, hidden) if values else None,
        )

    def _values(self, batch: Batch, hidden: Tensor) -> Float[Tensor, "rollout token"]:
        assert self.value_head is not None, "this policy was built without a value head"
        if self.value_trunk is not None:
            with self._precision():
                hidden = self.value_trunk.response_hidden(batch)
        elif self.frozen_value_trunk:
            hidden = hidden.detach()
        return torch.where(batch.response_mask, self.value_head(hidden), 0.0)

    def _precision(self) -> Any:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)

    @contextmanager
    def reference_weights(self) -> Iterator[None]:
        """The policy as it was loaded, without a second model: adapters off, or the frozen copy of the first one."""
        assert self.adapter is not None, "full training keeps its reference as a frozen copy"
        flags = [(p, p.requires_grad) for p in self.model.parameters()]
        active = self.adapter.active_adapter
        began_with_adapter = REFERENCE in self.adapter.peft_config
        try:
            if began_with_adapter:
                self.adapter.set_adapter(REFERENCE)
            with nullcontext() if began_with_adapter else self.adapter.disable_adapter():
                yield
        finally:
            self.adapter.set_adapter(active)
            for parameter, flag in flags:
                parameter.requires_grad_(flag)


def _scatter(values: Float[Tensor, "kept"], mask: Tensor) -> Float[Tensor, "rollout token"]:
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)

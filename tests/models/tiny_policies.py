"""Tiny policies, and batches to score, for the tests of the models room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny_models import VOCAB, byte_tokenizer, tiny_model
from torch import Tensor, nn

from grpo_core.algorithm.batch import Batch, collate
from grpo_core.config.model import ModelConfig
from grpo_core.models.loading import prepare
from grpo_core.models.policy import Policy
from grpo_core.records import Completion, Prompt, Rollout, Sampling, Score


def policy_for(
    kind: str = "llama",
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    lora: dict[str, Any] | None = None,
    checkpointing: bool = False,
    trained: bool = True,
    **more: Any,
) -> Policy:
    """A policy as `prepare` makes it. With adapters: `trained` gives both halves of each adapter random weights."""
    config = ModelConfig.model_validate({"lora": lora, "gradient_checkpointing": checkpointing})
    loaded = prepare(tiny_model(kind, dtype=dtype, seed=seed), byte_tokenizer(), config)
    if lora is not None and trained:
        move(loaded.model, seed=seed + 1)
    return Policy(loaded.model, adapter=loaded.adapter, **more)


def move(module: nn.Module, *, seed: int = 0, scale: float = 0.1) -> None:
    """Random steps on every trainable weight, as an optimizer would take them."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape, generator=draw, dtype=torch.float32).to(p.dtype), alpha=scale)


def rollout_of(prompt: Sequence[int], response: Sequence[int], prompt_id: str = "p") -> Rollout:
    """A scored rollout of the given ids."""
    zeros = tuple(0.0 for _ in response)
    return Rollout(
        prompt=Prompt(id=prompt_id, text="-", token_ids=tuple(prompt)),
        group_id=0,
        completion=Completion(
            prompt_id=prompt_id,
            token_ids=tuple(response),
            logprobs=zeros,
            policy_logprobs=zeros,
            finish_reason="eos",
        ),
        text="",
        sampling=Sampling(max_new_tokens=64),
        policy_version=0,
        score=Score(value=0.0),
    )


PROMPT_LENGTHS = {"a": 9, "b": 1, "c": 17}
RESPONSES = [("a", 5), ("b", 14), ("a", 1), ("c", 3), ("a", 15), ("c", 8)]
"""Prompts shorter and longer than the sliding window (12) of the gemma families; responses that cross it."""


def ids_of(length: int, draw: torch.Generator) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=draw).tolist()


def mixed_batch(seed: int = 0) -> Batch:
    """Six rollouts of three prompts, all of different lengths."""
    draw = torch.Generator().manual_seed(seed)
    prompts = {name: ids_of(length, draw) for name, length in PROMPT_LENGTHS.items()}
    return collate([rollout_of(prompts[name], ids_of(length, draw), name) for name, length in RESPONSES])


def full_logits(policy: Policy, batch: Batch, row: int, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """(log-softmax of the model's own logits for each response token of one row, its ids): alone, without padding."""
    place = batch.prompt_index[row]
    prompt = batch.prompt_ids[place][batch.prompt_mask[place]]
    answer = batch.response_ids[row][batch.response_mask[row]]
    logits = policy.model(input_ids=torch.cat([prompt, answer])[None], use_cache=False).logits[0]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1), answer


def really_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let float64 models compute in float64: transformers' norms and eager softmax go through float32 by name."""
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(Tensor, "float", Tensor.double)

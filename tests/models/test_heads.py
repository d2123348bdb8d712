"""The output head as a function of hidden states, and the check that refuses what it does not know."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import KINDS, byte_tokenizer, tiny_model
from torch import nn

from grpo_core.config.model import ModelConfig
from grpo_core.errors import ModelError
from grpo_core.models.heads import ValueHead, check_head, language_head
from grpo_core.models.loading import prepare

IDS = torch.tensor([[5, 300, 17, 42]])


def both(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        hidden = model.base_model(input_ids=IDS, use_cache=False).last_hidden_state
        return language_head(model)(hidden), model(input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize("kind", KINDS)
def test_the_head_gives_the_models_own_logits(kind: str) -> None:
    ours, own = both(tiny_model(kind))
    torch.testing.assert_close(ours, own, atol=1e-5, rtol=1e-5)


def test_gemma2_soft_cap_is_part_of_the_head() -> None:
    model = tiny_model("gemma2")
    model.config.final_logit_softcapping = 0.5
    ours, own = both(model)
    torch.testing.assert_close(ours, own, atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        raw = model.lm_head(model.model(input_ids=IDS, use_cache=False).last_hidden_state)
    torch.testing.assert_close(ours, 0.5 * torch.tanh(raw / 0.5))
    assert float(raw.abs().max()) > 1.0
    assert float(ours.abs().max()) <= 0.5
    check_head(model, language_head(model))


def test_families_that_scale_their_logits() -> None:
    from transformers import AutoModelForCausalLM, CohereConfig, GraniteConfig

    shape = {
        "vocab_size": 384, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    for config in (CohereConfig(**shape, logit_scale=0.25), GraniteConfig(**shape, logits_scaling=8.0)):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        ours, own = both(model)
        torch.testing.assert_close(ours, own, atol=1e-6, rtol=1e-5)
        check_head(model, language_head(model))


@pytest.mark.parametrize("change", [lambda x: 1.5 * x, lambda x: x + 1.0, lambda x: x[..., :-1], torch.tanh])
def test_a_model_that_alters_its_logits_in_another_way_is_refused(change: Any) -> None:
    model = tiny_model("llama")
    plain = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        out = plain(*args, **kwargs)
        out.logits = change(out.logits)
        return out

    model.forward = forward
    with pytest.raises(ModelError, match="llama"):
        prepare(model, byte_tokenizer(), ModelConfig())


def test_value_head_starts_at_0_and_computes_in_its_own_precision() -> None:
    head = ValueHead(3)
    assert head(torch.randn(2, 5, 3, dtype=torch.bfloat16)).tolist() == [[0.0] * 5] * 2
    with torch.no_grad():
        head.linear.weight.copy_(torch.tensor([[1.0, 2.0, 3.0]]))
        nn.init.constant_(head.linear.bias, 0.5)
    value = head(torch.tensor([[1.0, 0.0, -1.0]], dtype=torch.bfloat16))
    assert value.dtype == torch.float32
    assert value.tolist() == [-1.5]

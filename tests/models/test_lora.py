"""Adapters: frozen base, right reference, no dropout, and gradients through checkpointing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import KINDS, byte_tokenizer, tiny_model
from tiny_policies import mixed_batch, move, policy_for
from torch import Tensor, nn

from grpo_core.config.model import ModelConfig
from grpo_core.errors import ModelError
from grpo_core.models.decoding import PolicyDecoder
from grpo_core.models.loading import prepare, silence_dropout
from grpo_core.models.policy import REFERENCE, Policy
from grpo_core.models.reference import Reference
from grpo_core.records import Prompt, Sampling
from grpo_core.rollout.torch_engine import TorchEngine

PROMPTS = [Prompt(id="a", text="-", token_ids=(5, 6, 7)), Prompt(id="b", text="-", token_ids=(9,))]


def score(policy: Policy) -> Tensor:
    with torch.no_grad():
        return policy.score(mixed_batch(), temperature=0.7).logprobs


def generate(policy: Policy, seed: int = 0) -> list[tuple[int, ...]]:
    engine = TorchEngine(PolicyDecoder(policy), {256})
    return [c.token_ids for c in engine.generate(PROMPTS, Sampling(max_new_tokens=6, n=2, seed=seed))]


def learn(policy: Policy, rate: float = 0.3) -> None:
    """One plain gradient step that raises all log-probs."""
    policy.model.zero_grad(set_to_none=True)
    policy.score(mixed_batch(), temperature=1.0).logprobs.mean().neg().backward()
    with torch.no_grad():
        for p in policy.policy_parameters():
            if p.grad is not None:
                p.sub_(p.grad, alpha=rate)


def saved_adapter(folder: Path, **changes: Any) -> Path:
    """An adapter that has learnt something, written by peft itself."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    wanted = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", **changes)
    adapter = get_peft_model(tiny_model("llama"), wanted)
    move(adapter, seed=9)
    adapter.save_pretrained(folder)
    return folder


def test_kf22_a_bf16_base_is_bitwise_unchanged_over_rollouts_and_updates() -> None:
    policy = policy_for("llama", dtype=torch.bfloat16, lora={"rank": 4})
    reference = Reference(policy)
    base = {n: p.detach().clone() for n, p in policy.model.named_parameters() if not p.requires_grad}
    assert base
    assert all(p.dtype == torch.float32 for p in policy.policy_parameters()), "adapters train in float32"
    for cycle in range(20):
        generate(policy, cycle)
        reference.logprobs(mixed_batch(), temperature=1.0)
        learn(policy)
    for name, before in base.items():
        assert torch.equal(dict(policy.model.named_parameters())[name], before), name


def test_kf23_a_fresh_adapter_starts_at_the_base_and_its_reference_stays_there() -> None:
    policy = policy_for("llama", lora={"rank": 4}, trained=False)
    reference = Reference(policy)
    base = score(policy_for("llama"))
    flags = {n: p.requires_grad for n, p in policy.model.named_parameters()}
    torch.testing.assert_close(score(policy), base, atol=0, rtol=0)
    learn(policy)
    learn(policy)
    assert float((score(policy) - base).abs().max()) > 1e-3
    torch.testing.assert_close(reference.logprobs(mixed_batch(), temperature=0.7), base, atol=0, rtol=0)
    assert {n: p.requires_grad for n, p in policy.model.named_parameters()} == flags


def test_kf23_starting_from_a_trained_adapter_the_reference_is_that_adapter(tmp_path: Path) -> None:
    policy = policy_for("llama", lora={"adapter": str(saved_adapter(tmp_path))}, trained=False)
    reference = Reference(policy)
    flags = {n: p.requires_grad for n, p in policy.model.named_parameters()}
    start = score(policy)
    assert float((start - score(policy_for("llama"))).abs().max()) > 1e-2, "not the base model"
    assert torch.equal(reference.logprobs(mixed_batch(), temperature=0.7), start), "KL 0 at the start"
    frozen = {n: p.detach().clone() for n, p in policy.model.named_parameters() if f".{REFERENCE}." in n}
    assert frozen
    for _ in range(3):
        learn(policy)
        now = score(policy)
        assert torch.equal(reference.logprobs(mixed_batch(), temperature=0.7), start), "the reference stays"
        assert torch.equal(score(policy), now), "and the policy is back after the switch"
    assert float((now - start).abs().max()) > 1e-3
    assert {n: p.requires_grad for n, p in policy.model.named_parameters()} == flags
    trained = [n for n, p in policy.model.named_parameters() if p.requires_grad]
    assert trained
    assert all(".default." in n and "lora_" in n for n in trained)
    for name, before in frozen.items():
        assert torch.equal(dict(policy.model.named_parameters())[name], before)


def test_kf23_the_switch_is_undone_when_scoring_raises(tmp_path: Path) -> None:
    for lora in ({"rank": 4}, {"adapter": str(saved_adapter(tmp_path))}):
        policy = policy_for("llama", lora=lora)
        policy.policy_parameters()[0].requires_grad_(False)  # somebody's own choice, to be respected
        before, flags = score(policy), [p.requires_grad for p in policy.model.parameters()]
        with pytest.raises(KeyboardInterrupt), policy.reference_weights():
            raise KeyboardInterrupt
        assert torch.equal(score(policy), before)
        assert [p.requires_grad for p in policy.model.parameters()] == flags


def test_full_training_keeps_a_frozen_copy_as_reference() -> None:
    policy = policy_for("llama")
    reference, start = Reference(policy), score(policy)
    learn(policy)
    assert torch.equal(reference.logprobs(mixed_batch(), temperature=0.7), start)
    assert float((score(policy) - start).abs().max()) > 1e-3


def test_kf24_dropout_of_base_and_adapter_is_silent_in_training_mode(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    llama = tiny_model("llama")
    for layer in llama.model.layers:
        layer.self_attn.attention_dropout = 0.5
    adapter = saved_adapter(tmp_path, lora_dropout=0.5)
    cases = [(model, None), (llama, {"adapter": str(adapter)})]
    for bare, lora in cases:
        config = ModelConfig.model_validate({"lora": lora})
        loaded = prepare(bare, byte_tokenizer(), config)
        policy = Policy(loaded.model, adapter=loaded.adapter)
        loaded.model.train()
        first, second = score(policy), score(policy)
        assert torch.equal(first, second)
        loaded.model.eval()
        torch.testing.assert_close(score(policy), first, atol=1e-5, rtol=1e-5)


def test_kf24_dropout_kept_as_a_plain_number_is_found_whatever_its_name() -> None:
    block = nn.Module()
    block.hidden_dropout, block.attn_pdrop, block.layerdrop, block.scaling = 0.1, 0.2, 0.3, 0.4
    silence_dropout(nn.Sequential(block, nn.Dropout(0.5), nn.Dropout1d(0.5), nn.AlphaDropout(0.5)))
    assert (block.hidden_dropout, block.attn_pdrop, block.layerdrop, block.scaling) == (0.0, 0.0, 0.0, 0.4)


@pytest.mark.parametrize("kind", KINDS)
def test_kf25_checkpointing_on_a_frozen_embedding_feeds_every_adapter(kind: str) -> None:
    policy = policy_for(kind, lora={"rank": 4}, checkpointing=True, trained=False)
    policy.score(mixed_batch(), temperature=1.0).logprobs.sum().backward()
    ups = {n: p for n, p in policy.model.named_parameters() if "lora_B" in n}
    assert len(ups) >= 8
    for name, p in ups.items():
        assert p.grad is not None, name
        assert float(p.grad.abs().max()) > 0, name
    for name, p in policy.model.named_parameters():
        assert "lora_" in name or p.grad is None, name


@pytest.mark.parametrize("kind", KINDS)
def test_kf25_sampling_from_a_checkpointed_policy_equals_sampling_from_a_plain_one(kind: str) -> None:
    plain, checkpointed = policy_for(kind), policy_for(kind, checkpointing=True)
    assert checkpointed.model.training
    assert generate(checkpointed) == generate(plain)
    assert all(m.training for m in checkpointed.model.modules()), "back in training mode afterwards"


def test_wrong_targets_and_a_missing_adapter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.lora\.targets"):
        policy_for("llama", lora={"targets": ["no_such_layer"]})
    with pytest.raises(ModelError, match=r"model\.lora\.adapter"):
        policy_for("llama", lora={"adapter": str(tmp_path / "nothing")})

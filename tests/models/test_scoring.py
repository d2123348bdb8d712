"""The one scoring function: both layouts, against the model's own logits, in chunks, and without large tensors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from conftest import case_params
from tiny_models import KINDS, VOCAB
from tiny_policies import full_logits, mixed_batch, policy_for, really_double, rollout_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_core.algorithm.batch import collate
from grpo_core.models import logprobs as logprobs_module
from grpo_core.models.policy import Policy
from grpo_core.models.trunk import positions_of


def scored(policy: Policy, share: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    """(log-probs, entropies, gradients of a weighted sum of both)."""
    policy.trunk.share_prompts = share
    policy.model.zero_grad(set_to_none=True)
    out = policy.score(mixed_batch(), temperature=0.7, wanted=("entropy",))
    assert out.entropy is not None
    weights = torch.linspace(-1, 1, out.logprobs.numel(), dtype=out.logprobs.dtype).reshape(out.logprobs.shape)
    (weights * out.logprobs + weights.flip(0) * 0.3 * out.entropy).sum().backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in policy.policy_parameters()]
    return out.logprobs.detach(), out.entropy.detach(), grads


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["full", "lora"])
@pytest.mark.parametrize("kind", KINDS)
def test_shared_prompts_equal_the_plain_layout(kind: str, lora: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    really_double(monkeypatch)
    policy = policy_for(kind, dtype=torch.float64, lora=lora)
    calls = []
    policy.trunk.module.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    plain, shared = scored(policy, False), scored(policy, True)
    assert calls == [(6, 31), (3, 17), (6, 14)], "the second layout really computed each prompt once"
    torch.testing.assert_close(shared[0], plain[0], atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(shared[1], plain[1], atol=1e-9, rtol=1e-9)
    largest = max(float(g.abs().max()) for g in plain[2])
    assert largest > 1e-3
    for left, right in zip(shared[2], plain[2], strict=True):
        torch.testing.assert_close(left, right, atol=1e-9 * largest, rtol=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("share", [True, False], ids=["shared", "plain"])
@pytest.mark.parametrize("kind", KINDS)
def test_kf17_logprobs_equal_the_models_own_logits(kind: str, share: bool, temperature: float) -> None:
    policy, batch = policy_for(kind, share_prompts=share), mixed_batch()
    with torch.no_grad():
        out = policy.score(batch, temperature=temperature, wanted=("entropy",))
        assert out.entropy is not None
        for row in range(len(batch)):
            full, answer = full_logits(policy, batch, row, temperature)
            kept = batch.response_mask[row]
            expected = full.gather(1, answer[:, None])[:, 0]
            torch.testing.assert_close(out.logprobs[row][kept], expected, atol=1e-4, rtol=1e-5)
            entropy = -(full.exp() * full).sum(-1)
            torch.testing.assert_close(out.entropy[row][kept], entropy, atol=1e-4, rtol=1e-5)
    assert bool((out.logprobs[~batch.response_mask] == 0).all())
    assert bool((out.entropy[~batch.response_mask] == 0).all())


@pytest.mark.parametrize("share", [True, False], ids=["shared", "plain"])
@pytest.mark.parametrize("critic", ["none", "shared", "separate"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma3"])
def test_kf14_seven_left_pads_move_nothing(kind: str, critic: str, share: bool) -> None:
    policy = policy_for(kind, critic=critic, share_prompts=share)
    if policy.value_head is not None:
        torch.nn.init.normal_(policy.value_head.linear.weight, generator=torch.Generator().manual_seed(0))
    short = rollout_of([3, 4, 5], [6, 7, 8], "short")
    long = [rollout_of(range(20, 30), [9, 10, 11, 12, 13], "long") for _ in range(2)]
    with torch.no_grad():
        alone = policy.score(collate([short]), temperature=1.0, values=critic != "none")
        padded = policy.score(collate([short, *long]), temperature=1.0, values=critic != "none")
    torch.testing.assert_close(padded.logprobs[0, :3], alone.logprobs[0], atol=1e-4, rtol=0)
    if critic != "none":
        assert alone.values is not None
        assert padded.values is not None
        torch.testing.assert_close(padded.values[0, :3], alone.values[0], atol=1e-4, rtol=0)
        assert float(alone.values.abs().min()) > 1e-3
        assert padded.values[0, 3:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("row", case_params("position_ids.jsonl"))
def test_kf14_positions_count_the_real_tokens(row: dict[str, Any]) -> None:
    found = positions_of(torch.tensor([row["attention_mask"]]).bool())[0].tolist()
    wanted = row["expected"]["position_ids"]
    assert [a for a, b in zip(found, wanted, strict=True) if b is not None] == [b for b in wanted if b is not None]
    assert min(found) >= 0


@pytest.mark.parametrize("rows", [1, 7, 46, 1000])
@pytest.mark.parametrize("grad", [True, False])
def test_chunks_change_nothing(rows: int, grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def once() -> tuple[Tensor, Tensor, list[Tensor]]:
        policy = policy_for("llama", dtype=torch.float64)
        if grad:
            return scored(policy, True)
        with torch.no_grad():
            out = policy.score(mixed_batch(), temperature=0.7, wanted=("entropy",))
        assert out.entropy is not None
        return out.logprobs, out.entropy, []

    whole = once()
    monkeypatch.setattr(logprobs_module, "CHUNK_ELEMENTS", rows * VOCAB)
    cut = once()
    for left, right in zip([*whole[:2], *whole[2]], [*cut[:2], *cut[2]], strict=True):
        torch.testing.assert_close(left, right, atol=1e-9, rtol=1e-9)


def test_entropy_in_closed_form() -> None:
    hidden = torch.zeros(2, 3, dtype=torch.float64)

    def head(_: Tensor) -> Tensor:
        return torch.tensor([[0.0] * 4, [2.0 * math.log(3.0), 0.0, -1e4, -1e4]], dtype=torch.float64)

    chosen, entropy = logprobs_module.token_logprobs(
        hidden, torch.tensor([2, 0]), head, vocab=4, temperature=2.0, wanted=("entropy",)
    )
    # uniform over four; then 3/4 and 1/4 once the temperature has halved the logits
    expected = torch.tensor([4.0, 4**0.25 * (4 / 3) ** 0.75], dtype=torch.float64).log()
    assert entropy is not None
    torch.testing.assert_close(entropy, expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(chosen, torch.tensor([0.25, 0.75]).double().log(), atol=1e-7, rtol=0)


def test_a_batch_without_tokens_scores_nothing() -> None:
    policy, batch = policy_for(), collate([rollout_of([1, 2], [])])
    out = policy.score(batch, temperature=1.0, wanted=("entropy",))
    assert out.logprobs.tolist() == [[0.0]]


class Largest(TorchDispatchMode):
    """Remembers the largest tensor made, and the largest whose last axis is the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.any = self.vocab = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(item, Tensor):
                self.any = max(self.any, item.numel())
                if item.dim() and item.shape[-1] == VOCAB:
                    self.vocab = max(self.vocab, item.numel())
        return result


@pytest.mark.parametrize("grad", [True, False])
def test_no_tensor_of_rollout_x_token_x_vocab_is_ever_made(grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs_module, "CHUNK_ELEMENTS", 16 * VOCAB)
    batch = collate([rollout_of([1, 2, 3], [row] * 48) for row in range(8)])
    policy = policy_for("llama")
    with Largest() as seen, torch.set_grad_enabled(grad):
        out = policy.score(batch, temperature=1.0, wanted=("entropy",))
        if grad:
            assert out.entropy is not None
            (out.logprobs.sum() + out.entropy.sum()).backward()
    weight = policy.model.get_output_embeddings().weight.numel()
    assert seen.vocab <= max(16 * VOCAB, weight)
    assert seen.any < 8 * 48 * VOCAB / 2


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["bf16-weights", "autocast"])
def test_kf02_one_function_for_rollout_and_loss(autocast: torch.dtype | None) -> None:
    dtype = torch.float32 if autocast else torch.bfloat16
    policy, batch = policy_for("llama", dtype=dtype, autocast=autocast), mixed_batch()
    with torch.no_grad():
        old = policy.score(batch, temperature=0.7)
    now = policy.score(batch, temperature=0.7, wanted=("entropy",))
    assert old.logprobs.dtype == now.logprobs.dtype == torch.float32
    assert torch.equal(old.logprobs, now.logprobs), "the ratio is exactly 1 before any update"


def test_kf02_the_log_softmax_of_a_bf16_model_is_taken_in_float32() -> None:
    policy = policy_for("llama", dtype=torch.bfloat16)
    every = collate([rollout_of([5, 6, 7], [token]) for token in range(VOCAB)])
    with torch.no_grad():
        total = policy.score(every, temperature=1.0).logprobs.double().exp().sum()
    assert float(total) == pytest.approx(1.0, abs=1e-5), "in bfloat16 the sum is off by about 1e-2"


@pytest.mark.parametrize("kind", KINDS)
def test_kf02_eight_rows_at_once_equal_eight_times_one(kind: str) -> None:
    draw = torch.Generator().manual_seed(0)
    rollouts = [
        rollout_of(
            torch.randint(0, VOCAB, (4,), generator=draw).tolist(),
            torch.randint(0, VOCAB, (6,), generator=draw).tolist(),
            str(row),
        )
        for row in range(8)
    ]
    bounds = {torch.float32: 1e-5, torch.bfloat16: 0.25}
    for dtype, bound in bounds.items():
        policy = policy_for(kind, dtype=dtype)
        with torch.no_grad():
            together = policy.score(collate(rollouts), temperature=1.0).logprobs
            apart = torch.cat([policy.score(collate([r]), temperature=1.0).logprobs for r in rollouts])
        assert float((together - apart).abs().max()) < bound * (1 + float(apart.abs().mean()))


@pytest.mark.parametrize("kind", KINDS)
def test_checkpointing_gives_the_same_gradients(kind: str) -> None:
    plain = scored(policy_for(kind), False)
    # asked to share prompts, it must notice that a checkpointed model keeps no cache
    again = scored(policy_for(kind, checkpointing=True), True)
    for left, right in zip([*plain[:2], *plain[2]], [*again[:2], *again[2]], strict=True):
        torch.testing.assert_close(left, right, atol=2e-4, rtol=2e-4)

"""Value heads: shared with the policy's trunk, or with a trunk of their own."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_policies import mixed_batch, policy_for
from torch import Tensor

from grpo_core.models.policy import Policy


def with_weights(policy: Policy) -> Policy:
    assert policy.value_head is not None
    torch.nn.init.normal_(policy.value_head.linear.weight, generator=torch.Generator().manual_seed(0))
    return policy


def values_of(policy: Policy) -> Tensor:
    values = policy.score(mixed_batch(), temperature=1.0, values=True).values
    assert values is not None
    return values


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_values_start_at_exactly_0_and_are_float32(critic: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        values = values_of(policy_for(critic=critic, dtype=dtype))
        assert values.dtype == torch.float32
        assert bool((values == 0).all())


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_a_value_is_read_from_the_state_before_its_token(critic: str, share: bool) -> None:
    policy, batch = with_weights(policy_for(critic=critic, share_prompts=share)), mixed_batch()
    assert policy.value_head is not None
    values = values_of(policy)
    for row in range(len(batch)):
        place, kept = batch.prompt_index[row], batch.response_mask[row]
        prompt, answer = batch.prompt_ids[place][batch.prompt_mask[place]], batch.response_ids[row][kept]
        states = policy.model.model(input_ids=torch.cat([prompt, answer])[None], use_cache=False).last_hidden_state[0]
        expected = states[len(prompt) - 1 : -1] @ policy.value_head.linear.weight[0]
        torch.testing.assert_close(values[row][kept], expected, atol=1e-4, rtol=1e-4)
        assert bool((values[row][~kept] == 0).all())


@pytest.mark.parametrize(
    ("critic", "frozen", "reaches_policy"),
    [("shared", False, True), ("shared", True, False), ("separate", False, False)],
)
def test_where_the_value_gradient_goes(critic: str, frozen: bool, reaches_policy: bool) -> None:
    policy = with_weights(policy_for(critic=critic, frozen_value_trunk=frozen))
    (values_of(policy) - 1).square().sum().backward()
    reached = [p for p in policy.policy_parameters() if p.grad is not None and float(p.grad.abs().max()) > 0]
    assert bool(reached) is reaches_policy
    assert all(p.grad is not None for p in policy.value_parameters())
    own = {id(p) for p in policy.value_parameters()}
    assert not own & {id(p) for p in policy.policy_parameters()}, "the penalty covers the policy alone"
    assert len(own) == (2 if critic == "shared" else 2 + len(list(policy.model.model.parameters())))


def test_a_separate_critic_moves_alone() -> None:
    policy = with_weights(policy_for(critic="separate"))
    before = copy.deepcopy(policy.model.state_dict())
    first = policy.score(mixed_batch(), temperature=1.0).logprobs
    with torch.no_grad():
        for p in policy.value_parameters():
            p.add_(0.1)
    assert torch.equal(policy.score(mixed_batch(), temperature=1.0).logprobs, first)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.model.state_dict().items())


def test_a_separate_critic_of_an_adapter_policy_trains_all_its_own_weights() -> None:
    policy = with_weights(policy_for(critic="separate", lora={"rank": 4}, dtype=torch.bfloat16))
    (values_of(policy) - 1).square().sum().backward()
    assert all(p.dtype == torch.float32 for p in policy.value_parameters())
    assert all(p.grad is not None for p in policy.value_parameters())
    assert all(p.grad is None for p in policy.model.parameters())


def test_values_without_a_head_are_refused() -> None:
    with pytest.raises(AssertionError, match="value head"):
        policy_for().score(mixed_batch(), temperature=1.0, values=True)

"""A policy in a checkpoint folder and back, bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import KINDS, byte_tokenizer
from tiny_policies import mixed_batch, move, policy_for
from torch import nn

from grpo_core.errors import CheckpointError
from grpo_core.models.policy import Policy
from grpo_core.models.reference import Reference
from grpo_core.models.saving import load_policy, save_policy


def modules_of(policy: Policy) -> list[nn.Module]:
    trunk = None if policy.value_trunk is None else policy.value_trunk.module
    return [m for m in (policy.model, policy.value_head, trunk) if m is not None]


def tensors_of(policy: Policy) -> dict[str, torch.Tensor]:
    return {f"{row}.{n}": t.clone() for row, m in enumerate(modules_of(policy)) for n, t in m.state_dict().items()}


def trained(policy: Policy) -> Policy:
    for row, module in enumerate(modules_of(policy)):
        move(module, seed=20 + row)
    return policy


def round_trip(folder: Path, **how: Any) -> tuple[Policy, Policy]:
    """(the policy that was saved, one of other weights that has loaded it)."""
    saved = trained(policy_for(**how))
    before = tensors_of(saved)
    save_policy(saved, byte_tokenizer(), folder)
    loaded = policy_for(**{**how, "trained": False})
    # the base of an adapter policy comes from the model folder and is equal; what trains is not
    move(loaded.model, seed=99, scale=0.5)
    assert any(not torch.equal(before[name], tensor) for name, tensor in tensors_of(loaded).items())
    load_policy(loaded, folder)
    assert tensors_of(saved).keys() == before.keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in tensors_of(saved).items()), "saving moves nothing"
    return saved, loaded


def assert_same(saved: Policy, loaded: Policy) -> None:
    left, right = tensors_of(saved), tensors_of(loaded)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        assert torch.equal(tensor, right[name]), name
    with torch.no_grad():
        first = saved.score(mixed_batch(), temperature=1.0).logprobs
        assert torch.equal(loaded.score(mixed_batch(), temperature=1.0).logprobs, first)


@pytest.mark.parametrize("kind", KINDS)
def test_full_weights_bit_for_bit(kind: str, tmp_path: Path) -> None:
    saved, loaded = round_trip(tmp_path, kind=kind)
    assert_same(saved, loaded)


def test_tied_embeddings_are_still_one_tensor(tmp_path: Path) -> None:
    _, loaded = round_trip(tmp_path, kind="llama")
    model = loaded.model
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    _, untied = round_trip(tmp_path / "untied", kind="qwen2")
    assert untied.model.get_input_embeddings().weight is not untied.model.get_output_embeddings().weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bf16_base_and_adapter_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    saved, loaded = round_trip(tmp_path, lora={"rank": 4}, dtype=dtype)
    assert_same(saved, loaded)
    assert all(p.dtype == torch.float32 for p in loaded.policy_parameters())
    assert (tmp_path / "model" / "adapter_model.safetensors").is_file()
    assert not list((tmp_path / "model").glob("model*.safetensors")), "the base is not written again"


@pytest.mark.parametrize("critic", ["shared", "separate"])
@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["full", "lora"])
def test_the_critic_comes_along(critic: str, lora: Any, tmp_path: Path) -> None:
    saved, loaded = round_trip(tmp_path, critic=critic, lora=lora)
    assert_same(saved, loaded)


def test_kf23_a_resumed_adapter_keeps_the_reference_it_started_from(tmp_path: Path) -> None:
    start = policy_for(lora={"rank": 4})
    save_policy(start, byte_tokenizer(), tmp_path / "start")
    how = {"lora": {"adapter": str(tmp_path / "start" / "model")}, "trained": False}
    saved, loaded = round_trip(tmp_path / "later", **how)
    references = [Reference(p).logprobs(mixed_batch(), temperature=1.0) for p in (start, saved, loaded)]
    with torch.no_grad():
        first = start.score(mixed_batch(), temperature=1.0).logprobs
    assert not torch.equal(references[0], first), "a fresh adapter's reference is the base"
    torch.testing.assert_close(references[1], first, atol=0, rtol=0)
    torch.testing.assert_close(references[2], first, atol=0, rtol=0)
    assert_same(saved, loaded)


def test_the_folder_is_one_that_transformers_can_load(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    saved = trained(policy_for("llama"))
    save_policy(saved, byte_tokenizer(), tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert all(torch.equal(t, model.state_dict()[n]) for n, t in saved.model.state_dict().items())
    assert AutoTokenizer.from_pretrained(tmp_path / "model").eos_token_id == 256


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"kind": "llama"}, {"kind": "qwen3"}),
        ({"lora": {"rank": 4}}, {"lora": {"rank": 8}}),
        ({"lora": {"rank": 4, "targets": ["q_proj"]}}, {"lora": {"rank": 4}}),
        ({"lora": {"rank": 4}}, {"lora": {"rank": 4, "targets": ["q_proj"]}}),
        ({"lora": {"rank": 4}}, {}),
        ({}, {"lora": {"rank": 4}}),
        ({}, {"critic": "shared"}),
        ({"critic": "shared"}, {"critic": "separate"}),
    ],
    ids=[
        "family",
        "rank",
        "fewer-targets",
        "more-targets",
        "adapter-as-model",
        "model-as-adapter",
        "no-critic",
        "no-trunk",
    ],
)
def test_kf28_weights_that_do_not_fit_are_refused(first: Any, second: Any, tmp_path: Path) -> None:
    save_policy(policy_for(**first), byte_tokenizer(), tmp_path)
    with pytest.raises(CheckpointError, match="do not fit"):
        load_policy(policy_for(**second), tmp_path)


def test_kf28_missing_files_are_refused(tmp_path: Path) -> None:
    for how in ({}, {"lora": {"rank": 4}}):
        save_policy(policy_for(**how), byte_tokenizer(), tmp_path)
        shutil.rmtree(tmp_path / "model")
        with pytest.raises(CheckpointError):
            load_policy(policy_for(**how), tmp_path)

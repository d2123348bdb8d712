"""Writing a policy into a checkpoint folder, reading it back bit for bit, and exporting it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from grpo_core.errors import CheckpointError
from grpo_core.models.policy import REFERENCE, Policy

MODEL = "model"
CRITIC = "critic.safetensors"


def save_policy(policy: Policy, tokenizer: Any, folder: Path) -> None:
    """`model/`: a transformers folder, or a peft adapter folder; with a critic also `critic.safetensors`."""
    target = folder / MODEL
    if policy.adapter is not None:
        policy.adapter.save_pretrained(target, selected_adapters=["default"])
    else:
        policy.model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    if policy.value_head is not None:
        save_file(_critic_tensors(policy), folder / CRITIC)


def load_policy(policy: Policy, folder: Path) -> None:
    """Copy a checkpoint's weights into the policy in place. Raises CheckpointError when they do not fit."""
    source = folder / MODEL
    try:
        if policy.adapter is not None:
            _load_adapter(policy, source)
        else:
            tensors: dict[str, torch.Tensor] = {}
            for file in sorted(source.glob("*.safetensors")):
                tensors |= load_file(file)
            missing, unexpected = policy.model.load_state_dict(tensors, strict=False)
            tied = set(getattr(policy.model, "all_tied_weights_keys", None) or ())
            if unexpected or set(missing) - tied - set(dict(policy.model.named_buffers())):
                raise KeyError(", ".join([*unexpected, *missing][:3]))
        if policy.value_head is not None:
            stored = load_file(folder / CRITIC)
            for name, tensor in _critic_tensors(policy).items():
                tensor.copy_(stored[name])
    except (KeyError, RuntimeError, OSError, ValueError) as error:
        raise CheckpointError(
            f"the weights in {source} do not fit this run's model: {error}",
            fix="resume with the configuration the run was started with",
        ) from error


def _load_adapter(policy: Policy, source: Path) -> None:
    from peft import set_peft_model_state_dict

    result: Any = set_peft_model_state_dict(policy.adapter, load_file(source / "adapter_model.safetensors"))
    absent = [key for key in result.missing_keys if "lora_" in key and f".{REFERENCE}." not in key]
    if result.unexpected_keys or absent:
        raise KeyError(", ".join([*result.unexpected_keys, *absent][:3]))


def _critic_tensors(policy: Policy) -> dict[str, torch.Tensor]:
    assert policy.value_head is not None
    tensors = {f"head.{k}": v for k, v in policy.value_head.state_dict().items()}
    if policy.value_trunk is not None:
        tensors |= {f"trunk.{k}": v for k, v in policy.value_trunk.module.state_dict().items()}
    return tensors

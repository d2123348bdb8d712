"""From `model:` in the config to a policy and its tokenizer."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from grpo_core.config.model import LoraConfig, ModelConfig
from grpo_core.errors import ModelError
from grpo_core.models.heads import check_head, language_head
from grpo_core.models.policy import REFERENCE
from grpo_core.models.sources import resolve
from grpo_core.models.tokens import eos_ids, load_chat_template

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A bare transformers model with adapters inside if configured, the PeftModel around it, and its tokenizer."""

    model: Any
    adapter: Any
    tokenizer: Any
    eos: frozenset[int]


def pick_device(name: str) -> torch.device:
    """`auto` takes CUDA, then MPS, then the CPU."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def load_tokenizer(config: ModelConfig) -> Any:
    """The tokenizer alone; raises ModelError naming model.path when there is none."""
    from transformers import AutoTokenizer

    where = resolve(config.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            where, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise _unloadable(config, "tokenizer", error) from error
    load_chat_template(tokenizer, config.chat_template)
    return tokenizer


def load_model(config: ModelConfig) -> LoadedModel:
    """The model, ready to train: right dtype and attention, dropout off, checkpointing set, adapters in place."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]  # the run has its own
    torch.set_float32_matmul_precision(config.matmul_precision)
    where = resolve(config.path)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            where,
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
            dtype=DTYPES[config.dtype],
            attn_implementation=config.attention,
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise _unloadable(config, "model", error) from error
    tokenizer = load_tokenizer(config)
    model.to(pick_device(config.device))
    return prepare(model, tokenizer, config)


def prepare(model: Any, tokenizer: Any, config: ModelConfig) -> LoadedModel:
    """Make a loaded transformers model trainable: the part of `load_model` that needs no files but the adapter's."""
    silence_dropout(model)
    eos = eos_ids(tokenizer, getattr(model, "generation_config", None), model.config)
    check_head(model, language_head(model))
    adapter = None
    if config.lora is not None:
        with warnings.catch_warnings():
            # peft asks transformers by an old name; the user can do nothing about it.
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
            adapter = add_adapters(model, config.lora)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    model.train(config.gradient_checkpointing)
    return LoadedModel(model=model, adapter=adapter, tokenizer=tokenizer, eos=eos)


def silence_dropout(model: nn.Module) -> None:
    """Dropout off for good: rollout, old, reference and current log-probs must be one function (KF24)."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def add_adapters(model: Any, lora: LoraConfig) -> Any:
    """Put LoRA adapters into the model's layers in float32, and freeze everything else.

    Starting from a saved adapter keeps a frozen copy of it, which is the reference (KF23).
    """
    from peft import LoraConfig as PeftLora
    from peft import PeftModel, get_peft_model

    if lora.adapter is not None:
        folder = Path(lora.adapter)
        if not (folder / "adapter_config.json").is_file():
            raise ModelError(f"model.lora.adapter: no adapter in {folder}", fix="name a folder saved by peft")
        adapter = PeftModel.from_pretrained(model, str(folder), is_trainable=True)
        adapter.load_adapter(str(folder), adapter_name=REFERENCE, is_trainable=False)
        adapter.set_adapter("default")
    else:
        targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
        alpha: Any = lora.alpha  # peft says int, and takes any number
        wanted = PeftLora(
            r=lora.rank, lora_alpha=alpha, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"
        )
        try:
            adapter = get_peft_model(model, wanted)
        except ValueError as error:
            raise ModelError(f"model.lora.targets: {error}", fix="use all-linear, or names of linear layers") from error
    silence_dropout(adapter)
    for name, parameter in adapter.named_parameters():
        trains = "lora_" in name and f".{REFERENCE}." not in name
        parameter.requires_grad_(trains)
        if trains and parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()
    return adapter


def _unloadable(config: ModelConfig, what: str, error: Exception) -> ModelError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "attention implementation" in reason or "flash" in reason.lower():
        return ModelError(
            f"model.attention: {config.path!r} does not run with {config.attention}: {reason[:160]}",
            fix="set model.attention: eager",
        )
    return ModelError(
        f"model.path: cannot load the {what} of {config.path!r}: {reason}",
        fix="check the name or folder; a hub name needs network access, and gated models need `hf auth login`",
    )

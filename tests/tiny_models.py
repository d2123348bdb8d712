"""Random models of a few thousand weights and a byte-level tokenizer, made on the fly: no download, no fixture file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

VOCAB = 384
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer(*, template: str | None = TEMPLATE, bos: bool = False) -> Any:
    """A byte-level tokenizer with chat markers; pad and EOS share the id of `<|end|>`, as in many real models."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={token: row for row, token in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    markers = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<s>"]
    inner.add_special_tokens(markers)
    if bos:
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", inner.token_to_id("<s>"))]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|end|>", pad_token="<|end|>", bos_token="<s>"
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_config(kind: str) -> Any:
    """A two-layer configuration of the named family."""
    from transformers import Gemma2Config, Gemma3TextConfig, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

    shape = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "bos_token_id": 260, "eos_token_id": 256, "pad_token_id": 256, "initializer_range": 0.2,
    }  # fmt: skip
    ids = {key: shape[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {
        "llama": lambda: LlamaConfig(**shape, tie_word_embeddings=True),
        "qwen2": lambda: Qwen2Config(**shape, tie_word_embeddings=False),
        "qwen3": lambda: Qwen3Config(**shape, head_dim=8),
        "gpt2": lambda: GPT2Config(
            vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=512, initializer_range=0.2, **ids
        ),
        "gemma2": lambda: Gemma2Config(**shape, head_dim=8, sliding_window=12, query_pre_attn_scalar=8),
        "gemma3": lambda: Gemma3TextConfig(**shape, head_dim=8, sliding_window=12, query_pre_attn_scalar=8),
    }[kind]()


KINDS = ["llama", "qwen2", "qwen3", "gpt2", "gemma2", "gemma3"]


def tiny_model(
    kind: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32, attention: str = "sdpa"
) -> Any:
    """A random model of the family, large enough spread in its weights that its choices are not ties."""
    from transformers import AutoModelForCausalLM

    attention = "eager" if kind == "gemma2" else attention  # the family has no fused kernel

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(kind), attn_implementation=attention).to(dtype)
    return model.eval()


def save_tiny(folder: Path, kind: str = "llama", *, seed: int = 0) -> Path:
    """The tiny model and the byte tokenizer as a folder that `model.path` can name."""
    tiny_model(kind, seed=seed).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder

"""Text to ids once, ids to text for people. One path for rollout and scoring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_core.errors import DataError, ModelError
from grpo_core.records import Prompt


def load_chat_template(tokenizer: Any, template: str | None) -> None:
    """Put a user's chat template (Jinja text, or the path of a file) on the tokenizer."""
    if template is not None:
        path = Path(template)
        is_file = len(template) < 1024 and "{" not in template
        if is_file and not path.is_file():
            raise ModelError(f"model.chat_template: no file {template!r}", fix="give a path or the template's text")
        tokenizer.chat_template = path.read_text(encoding="utf-8") if is_file else template


def encode_prompt(tokenizer: Any, prompt: Prompt) -> Prompt:
    """The prompt with its ids. A chat template prints its own special tokens, so none are added a second time.

    Raises ModelError for chat messages without a template, and DataError for a prompt of no tokens.
    """
    if prompt.text is not None:
        ids = list(tokenizer(prompt.text).input_ids)
        if ids and ids[-1] == tokenizer.eos_token_id and not prompt.text.endswith(tokenizer.eos_token or "\0"):
            ids = ids[:-1]
    else:
        if not tokenizer.chat_template:
            raise ModelError(
                "the prompts are chat messages, but the model's tokenizer has no chat template",
                fix="set model.chat_template, use an instruct model, or set data.chat: false for plain text",
            )
        messages = [{"role": m.role, "content": m.content} for m in prompt.messages]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = list(tokenizer(text, add_special_tokens=False).input_ids)
    if not ids:
        raise DataError(f"prompt {prompt.id} has no tokens", fix="remove the row or give it a prompt")
    return replace(prompt, token_ids=tuple(ids))


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Text of a completion without special tokens; for rewards and people, never for training."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True))


def eos_ids(tokenizer: Any, generation_config: Any, config: Any) -> frozenset[int]:
    """Every id that ends a completion: of the tokenizer, the generation config and the model config (KF12)."""
    found: set[int] = set()
    for value in (
        tokenizer.eos_token_id,
        getattr(generation_config, "eos_token_id", None),
        getattr(config, "eos_token_id", None),
    ):
        found |= set(_flat(value))
    if not found:
        raise ModelError(
            "no end-of-sequence id in tokenizer, generation config or model config",
            fix="set eos_token_id in the model's generation_config.json",
        )
    return frozenset(found)


def _flat(value: int | Iterable[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)

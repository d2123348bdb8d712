"""A reward model: a transformers sequence classifier with one output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from grpo_core.errors import RewardError
from grpo_core.records import Message, Rollout


class RewardModel:
    """Scores prompt and completion together. Batches are padded at the right: a score never depends on its neighbours.

    With a chat template of its own the conversation is rendered by it; otherwise prompt text and completion are joined.
    """

    def __init__(self, path: str, *, batch_size: int = 8, device: str = "auto") -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path, padding_side="right")
            model: Any = AutoModelForSequenceClassification.from_pretrained(path)
        except (OSError, ValueError) as error:
            raise RewardError(
                f"reward model {path!r} cannot be loaded: {str(error).splitlines()[0]}",
                fix="check the name or folder of the part with kind: model",
            ) from error
        if model.config.num_labels != 1:
            raise RewardError(
                f"reward model {path!r} has {model.config.num_labels} outputs", fix="use a model with one label"
            )
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        # The classifier reads the last token that is not this id; without it, it reads padding.
        model.config.pad_token_id = self._tokenizer.pad_token_id
        wanted = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self._model = model.eval().to(wanted)
        self._batch_size = batch_size

    @torch.no_grad()
    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        """One score for each rollout; the scale is the model's own."""
        texts = [self._text(rollout) for rollout in rollouts]
        special = not self._tokenizer.chat_template
        scores: list[float] = []
        for start in range(0, len(texts), self._batch_size):
            encoded = self._tokenizer(
                texts[start : start + self._batch_size], padding=True, return_tensors="pt", add_special_tokens=special
            ).to(self._model.device)
            scores += self._model(**encoded).logits[:, 0].float().tolist()
        return scores

    def _text(self, rollout: Rollout) -> str:
        prompt = rollout.prompt
        turns = list(prompt.messages) or [Message(role="user", content=prompt.plain)]
        if self._tokenizer.chat_template:
            said = [{"role": m.role, "content": m.content} for m in turns]
            said.append({"role": "assistant", "content": rollout.text})
            return str(self._tokenizer.apply_chat_template(said, tokenize=False))
        joined = prompt.text if prompt.text is not None else "\n".join(m.content for m in turns) + "\n"
        return joined + rollout.text

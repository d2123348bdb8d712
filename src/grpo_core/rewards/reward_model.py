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
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
            model, found = AutoModelForSequenceClassification.from_pretrained(path, output_loading_info=True)
        except (OSError, ValueError) as error:
            raise RewardError(
                f"reward model {path!r} cannot be loaded: {str(error).splitlines()[0]}",
                fix="check the name or folder of the part with kind: model",
            ) from error
        if model.config.num_labels != 1:
            raise RewardError(
                f"reward model {path!r} has {model.config.num_labels} outputs", fix="use a model with one label"
            )
        if found["missing_keys"]:
            raise RewardError(
                f"reward model {path!r} has no trained weights for {', '.join(sorted(found['missing_keys'])[:3])}",
                fix="use a model that was trained as a reward model; a plain language model has no score",
            )
        wanted = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self._model: Any = model.eval().to(wanted)
        self._pad: int | None = model.config.get_text_config().pad_token_id
        self._batch_size = batch_size

    @torch.no_grad()
    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        """One score for each rollout; the scale is the model's own."""
        special = not self._tokenizer.chat_template
        rows = [self._tokenizer(self._text(r), add_special_tokens=special)["input_ids"] for r in rollouts]
        starts = range(0, len(rows), self._batch_size)
        return [score for start in starts for score in self._scores(rows[start : start + self._batch_size])]

    def _scores(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """The classifier reads the last token that is not the pad id, so that id must not end a row.

        A model that comes without one gets an id that no row contains; EOS would hide the last token of a closed turn.
        """
        pad = self._pad
        if pad is None:
            used = {token for row in rows for token in row}
            pad = next(token for token in range(len(used) + 1) if token not in used)
            self._model.config.get_text_config().pad_token_id = pad
        width = max(map(len, rows))
        ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        device = self._model.device
        logits = self._model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
        return [float(score) for score in logits[:, 0].float().tolist()]

    def _text(self, rollout: Rollout) -> str:
        prompt = rollout.prompt
        turns = list(prompt.messages) or [Message(role="user", content=prompt.plain)]
        if self._tokenizer.chat_template:
            said = [{"role": m.role, "content": m.content} for m in turns]
            said.append({"role": "assistant", "content": rollout.text})
            return str(self._tokenizer.apply_chat_template(said, tokenize=False))
        joined = prompt.text if prompt.text is not None else "\n".join(m.content for m in turns) + "\n"
        return joined + rollout.text

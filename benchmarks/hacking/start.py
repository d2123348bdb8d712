"""The start that all arms of a task share: a tiny transformer, pretrained by maximum likelihood and saved.

Also what is measured against it: a completion's log-probability under the start, and the KL to it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

from grpo_core.records import Rollout

PROMPTS = "prompts.jsonl"
FACTS = "facts.json"
END = "<end>"
"""Needed by every tokenizer. It never occurs in the text, so all completions have the same length."""


def word_tokenizer(words: Sequence[str]) -> Any:
    """One token for each word; words are set apart by spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({word: row for row, word in enumerate([END, *words])}, unk_token=END))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )


def pretrain(
    folder: Path, words: Sequence[str], text: Sequence[Sequence[str]], *, width: int, steps: int, prompt_words: int
) -> float:
    """Fit a two-layer Llama to sentences of equal length and save it with its prompts: the sentences' first words.

    Returns the mean log-probability (nats) of a word at the end.
    """
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    tokenizer = word_tokenizer(words)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    ids = torch.tensor([tokenizer.convert_tokens_to_ids(list(sentence)) for sentence in text])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    recent: list[float] = []
    for _ in range(steps):
        batch = ids[torch.randint(len(ids), (64,))]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        recent = [*recent, float(loss.detach())][-50:]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    prompts = sorted({" ".join(sentence[:prompt_words]) for sentence in text})
    (folder / PROMPTS).write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return -sum(recent) / len(recent)


@cache
def _model(start: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(start).eval()


@lru_cache(maxsize=1)
@torch.no_grad()
def _logprobs(start: str, texts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]) -> list[float]:
    """Summed log-probability (nats) of each completion after its prompt; all have the same lengths."""
    prompts, completions = (torch.tensor(column) for column in zip(*texts, strict=True))
    logits = _model(start)(input_ids=torch.cat([prompts, completions], 1)).logits[:, prompts.shape[1] - 1 : -1]
    return logits.log_softmax(-1).gather(-1, completions[..., None]).sum((1, 2)).tolist()


def start_logprobs(rollouts: Sequence[Rollout], start: str) -> list[float]:
    """Each completion's log-probability (nats) under the policy that training began with."""
    return _logprobs(start, tuple((r.prompt.token_ids, r.completion.token_ids) for r in rollouts))


def start_kl(rollouts: Sequence[Rollout], start: str) -> list[float]:
    """A reward part to watch at weight 0: log pi - log pi_start of each completion, whose mean is the KL (nats)."""
    before = start_logprobs(rollouts, start)
    return [sum(r.completion.policy_logprobs) - b for r, b in zip(rollouts, before, strict=True)]

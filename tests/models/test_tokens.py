"""Text to ids, once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_models import TEMPLATE, byte_tokenizer
from tiny_policies import rollout_of

from grpo_core.algorithm.batch import collate
from grpo_core.errors import DataError, ModelError
from grpo_core.models.tokens import decode, encode_prompt, eos_ids, load_chat_template
from grpo_core.records import Message, Prompt

CHAT = Prompt(id="c", messages=(Message(role="system", content="be kind"), Message(role="user", content="2+3")))


def test_kf13_a_template_that_prints_bos_gives_exactly_one() -> None:
    tokenizer = byte_tokenizer(template="<s>" + TEMPLATE, bos=True)
    ids = encode_prompt(tokenizer, CHAT).token_ids
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id


def test_kf13_a_template_without_bos_gets_none_and_plain_text_gets_its_own() -> None:
    tokenizer = byte_tokenizer(bos=True)
    assert tokenizer.bos_token_id not in encode_prompt(tokenizer, CHAT).token_ids
    plain = encode_prompt(tokenizer, Prompt(id="t", text="hi")).token_ids
    assert plain == (
        tokenizer.bos_token_id,
        *encode_prompt(byte_tokenizer(), Prompt(id="t", text="hi")).token_ids,
    )
    assert len(plain) == 3


def test_a_chat_ends_where_the_assistant_begins() -> None:
    tokenizer = byte_tokenizer()
    ids = encode_prompt(tokenizer, CHAT).token_ids
    assert tokenizer.decode(list(ids)) == "<|system|>be kind<|end|><|user|>2+3<|end|><|assistant|>"


def test_kf16_chat_without_a_template_is_refused_and_plain_text_works() -> None:
    tokenizer = byte_tokenizer(template=None)
    with pytest.raises(ModelError, match="chat template") as caught:
        encode_prompt(tokenizer, CHAT)
    assert "model.chat_template" in str(caught.value)
    assert encode_prompt(tokenizer, Prompt(id="t", text="hi")).token_ids


def test_a_prompt_of_no_tokens_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="row-7"):
        encode_prompt(byte_tokenizer(), Prompt(id="row-7", text=""))


def test_an_eos_that_the_tokenizer_appends_to_a_prompt_is_dropped() -> None:
    tokenizer = byte_tokenizer()
    plain = encode_prompt(tokenizer, Prompt(id="t", text="hi")).token_ids

    class Appending:
        eos_token_id, eos_token, chat_template = 256, "<|end|>", None

        def __call__(self, text: str) -> Any:
            return SimpleNamespace(input_ids=[*tokenizer(text).input_ids, 256])

    assert encode_prompt(Appending(), Prompt(id="t", text="hi")).token_ids == plain
    written = encode_prompt(tokenizer, Prompt(id="t", text="hi<|end|>")).token_ids
    assert written == (*plain, 256), "one that is written in the text stays"


def test_templates_come_as_text_or_file(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(template=None)
    load_chat_template(tokenizer, None)
    assert tokenizer.chat_template is None
    load_chat_template(tokenizer, TEMPLATE)
    assert tokenizer.chat_template == TEMPLATE
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages[0]['content'] }}", encoding="utf-8")
    load_chat_template(tokenizer, str(file))
    assert (
        encode_prompt(tokenizer, CHAT).token_ids == encode_prompt(tokenizer, Prompt(id="t", text="be kind")).token_ids
    )
    with pytest.raises(ModelError, match=r"model\.chat_template"):
        load_chat_template(tokenizer, str(tmp_path / "missing.jinja"))


def test_kf12_eos_ids_are_collected_from_everywhere() -> None:
    def having(value: Any) -> Any:
        return SimpleNamespace(eos_token_id=value)

    assert eos_ids(having(2), having([2, 7]), having(9)) == {2, 7, 9}
    assert eos_ids(having(None), having(None), having([0])) == {0}
    assert eos_ids(having(1), None, having(None)) == {1}
    with pytest.raises(ModelError, match="end-of-sequence"):
        eos_ids(having(None), None, having(None))


def test_kf15_the_trained_ids_are_the_sampled_ids() -> None:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    pieces = {"h": 0, "e": 1, "l": 2, "o": 3, "he": 4, "ll": 5, "llo": 6, "hello": 7, "<e>": 8}
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    inner = Tokenizer(models.BPE(vocab=pieces, merges=merges))
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<e>")
    sampled = (4, 6, 8)
    text = decode(tokenizer, sampled)
    assert text == "hello"
    assert tokenizer(text).input_ids == [7], "encoding the text again gives other ids"
    batch = collate([rollout_of([0], sampled)])
    assert tuple(batch.response_ids[0][batch.loss_mask[0]].tolist()) == sampled

"""A reward model gives a completion the same score alone and in a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from made_rollouts import reward_of, rollout, values
from tiny_models import byte_tokenizer, tiny_config

from grpo_core.errors import RewardError


def save_classifier(folder: Path, *, labels: int = 1, template: bool = True) -> Path:
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    config = tiny_config("llama")
    config.num_labels, config.pad_token_id = labels, None
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    byte_tokenizer(
        template="{% for m in messages %}{{ m['content'] }}|{% endfor %}" if template else None
    ).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("template", [True, False])
def test_scores_do_not_depend_on_their_neighbours(template: bool, tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, template=template)
    rows = [rollout("a"), rollout("a much longer completion than the first"), rollout("of middle length")]
    together = values(reward_of({"kind": "model", "path": str(folder), "batch_size": 3}), rows)
    alone = values(reward_of({"kind": "model", "path": str(folder), "batch_size": 1}), rows)
    assert together == pytest.approx(alone, abs=1e-5)
    assert len({round(value, 4) for value in together}) == 3


def test_the_score_is_the_models_own(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    folder = save_classifier(tmp_path)
    score = values(reward_of({"kind": "model", "path": str(folder)}), [rollout("done")])[0]
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = torch.tensor([byte_tokenizer()("ask|done|").input_ids])
    hidden = model.model(ids).last_hidden_state[0, -1]
    assert score == pytest.approx(model.score(hidden).item(), abs=1e-5)


def test_a_classifier_of_two_labels_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    save_classifier(tmp_path / "two", labels=2)
    with pytest.raises(RewardError, match="2 outputs"):
        reward_of({"kind": "model", "path": str(tmp_path / "two")})
    with pytest.raises(RewardError, match="cannot be loaded"):
        reward_of({"kind": "model", "path": str(tmp_path / "none")})


def test_a_closed_turn_is_read_at_its_last_token_alone_and_in_a_batch(tmp_path: Path) -> None:
    """Padding with EOS would make the classifier take the closing EOS for padding."""
    from transformers import AutoModelForSequenceClassification

    folder = save_classifier(tmp_path)
    closed = byte_tokenizer(template="{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}")
    closed.pad_token = closed.eos_token
    closed.save_pretrained(folder)
    rows = [rollout("done"), rollout("a much longer completion")]
    together = values(reward_of({"kind": "model", "path": str(folder)}), rows)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for row, got in zip(rows, together, strict=True):
        ids = closed(f"ask{closed.eos_token}{row.text}{closed.eos_token}", add_special_tokens=False).input_ids
        assert ids[-1] == closed.eos_token_id
        with torch.no_grad():
            hidden = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
        assert got == pytest.approx(model.score(hidden).item(), abs=1e-5)


def test_a_model_without_a_trained_score_is_refused(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    config = tiny_config("llama")
    config.num_labels = 1
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    byte_tokenizer(template=None).save_pretrained(tmp_path)
    with pytest.raises(RewardError, match=r"no trained weights for score\.weight"):
        reward_of({"kind": "model", "path": str(tmp_path)})

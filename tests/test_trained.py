"""What a run leaves behind can be sampled from, exported, and loaded by plain transformers and peft."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny_models import save_tiny
from typer.testing import CliRunner

from grpo_core.cli import app
from grpo_core.errors import CheckpointError, ConfigError, ModelError
from grpo_core.records import Message, Prompt, Sampling
from grpo_core.trained import export, find_trained, generate, load_trained

GREEDY = Sampling(max_new_tokens=8, temperature=0)
ASKED = [Prompt(id="a", messages=(Message(role="user", content="What is 3 + 4?"),))]


@pytest.fixture(scope="module", params=["full", "lora"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A run of three steps through the command line."""
    folder = tmp_path_factory.mktemp(request.param)
    config: dict[str, Any] = {
        "model": {"path": str(save_tiny(folder / "model"))}
        | ({"lora": {"rank": 4}} if request.param == "lora" else {}),
        "data": {"kind": "arithmetic", "size": 40},
        "reward": {"kind": "function", "path": str(folder / "rewards.py") + ":even"},
        "train": {"batch_size": 8, "seq_length": 128, "steps": 3, "learning_rate": 1e-2},
        "rollout": {"group_size": 4, "max_new_tokens": 8},
        "evaluation": {"prompts": 4},
        "run": {"folder": str(folder / "run"), "checkpoint_every": 1},
    }
    (folder / "rewards.py").write_text(
        "def even(completion):\n    return sum(ord(c) % 2 == 0 for c in completion) / 9\n"
    )
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    result = CliRunner().invoke(app, ["train", str(folder / "config.yaml")])
    assert result.exit_code == 0, result.output
    return request.param, folder / "run"


def ids(target: str | Path) -> tuple[int, ...]:
    return generate(load_trained(target), ASKED, GREEDY)[0][0].token_ids


def test_the_run_folder_holds_what_a_person_looks_for(trained: tuple[str, Path]) -> None:
    _, run = trained
    for name in ("config.yaml", "metrics.jsonl", "summary.md", "plots/reward.png", "plots/overview.png"):
        assert (run / name).stat().st_size > 0, name
    assert len(list((run / "rollouts").glob("*.parquet"))) == 3
    assert list((run / "tensorboard").iterdir())
    assert (run / "plots/reward.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_a_checkpoint_and_its_model_folder_are_the_same_model(trained: tuple[str, Path]) -> None:
    kind, run = trained
    newest = run / "checkpoints" / "step-000003"
    assert ids(run) == ids(newest) == ids(newest / "model")
    assert find_trained(run.parent / "model") is None
    before = ids(run.parent / "model")
    assert len(before) > 0
    if kind == "full":
        assert ids(run) != before, "three steps at this rate change the answer"


def test_export_loads_in_plain_transformers_with_the_same_tokens(trained: tuple[str, Path], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _, run = trained
    out = export(run, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(out)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 3 + 4?"}], add_generation_prompt=True, tokenize=False
    )
    encoded = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    theirs = model.generate(**encoded, max_new_tokens=8, do_sample=False)[0, encoded.input_ids.shape[1] :]
    assert tuple(theirs.tolist()) == ids(run)
    with pytest.raises(ConfigError, match="not empty"):
        export(run, out)


def test_adapter_export_is_for_peft_and_only_for_lora(trained: tuple[str, Path], tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    kind, run = trained
    if kind == "full":
        with pytest.raises(ModelError, match="there is no adapter"):
            export(run, tmp_path / "out", merge=False)
        return
    out = export(run, tmp_path / "out", merge=False)
    base = AutoModelForCausalLM.from_pretrained(run.parent / "model", dtype=torch.float32)
    ours = load_trained(run)
    theirs = PeftModel.from_pretrained(base, out)
    row = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(theirs(row).logits, ours.model(row).logits, rtol=1e-5, atol=1e-5)


def test_generate_by_command_from_a_prompt_and_from_a_file(trained: tuple[str, Path], tmp_path: Path) -> None:
    _, run = trained
    said = CliRunner().invoke(app, ["generate", str(run), "-p", "What is 3 + 4?", "--max-new-tokens", "4"])
    assert said.exit_code == 0, said.output
    assert "What is 3 + 4?" in said.output
    asked, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    asked.write_text('{"prompt": "1 + 1 =", "answer": 2}\n{"prompt": "2 + 2 =", "answer": 4}\n')
    command = ["generate", str(run), "-f", str(asked), "-o", str(out), "-n", "2", "--temperature", "1"]
    assert CliRunner().invoke(app, [*command, "--max-new-tokens", "4"]).exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["answer"] for row in rows] == ["2", "2", "4", "4"]
    assert {"prompt", "completion", "finish_reason"} <= rows[0].keys()


def test_a_run_is_never_overwritten_and_a_stranger_never_resumed(trained: tuple[str, Path], tmp_path: Path) -> None:
    _, run = trained
    again = CliRunner().invoke(app, ["train", str(run.parent / "config.yaml")])
    assert isinstance(again.exception, CheckpointError)
    assert "--resume" in again.exception.fix
    stranger = CliRunner().invoke(app, ["train", "--resume", str(tmp_path)])
    assert isinstance(stranger.exception, CheckpointError)


def test_a_damaged_checkpoint_is_never_used(trained: tuple[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(trained[1], tmp_path / "run")
    weights = next((copy / "checkpoints" / "step-000003" / "model").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0\0")
    with pytest.raises(CheckpointError, match=r"safetensors is missing or damaged"):
        find_trained(copy)


def test_a_finished_run_goes_on_with_more_steps(trained: tuple[str, Path]) -> None:
    _, run = trained
    more = CliRunner().invoke(app, ["train", "--resume", str(run), "--set", "train.steps=4", "--quiet"])
    assert more.exit_code == 0, more.output
    assert (run / "checkpoints" / "step-000004" / "manifest.json").is_file()
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2, 3, 4]

"""Every example runs: the same files a user starts, on a tiny random model and with small sizes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from tiny_models import save_tiny
from typer.testing import CliRunner

from grpo_core.api import train
from grpo_core.cli import app
from grpo_core.config.data import FileData
from grpo_core.config.load import load_config
from grpo_core.data.prompts import load_prompts

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
YAML_FILES = sorted([*(ROOT / "configs").glob("*.yaml"), *EXAMPLES.glob("*.yaml")])
pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are not beside the tests")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


def small(model: Path, folder: Path) -> list[str]:
    """Overrides that make any run a matter of a second or two."""
    return [
        f"model.path={model}", "train.steps=2", "train.batch_size=8", "train.seq_length=300",
        "train.gradient_accumulation=2", "rollout.group_size=4", "rollout.max_new_tokens=5", "evaluation.prompts=4",
        "evaluation.every=0", f"run.folder={folder}", "run.tensorboard=false",
    ]  # fmt: skip


def load(name: str) -> ModuleType:
    """A script of examples/ as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("file", YAML_FILES, ids=lambda file: file.stem)
def test_a_yaml_example_trains(file: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    folder = tmp_path / "run"
    sets = [word for override in small(model, folder) for word in ("--set", override)]
    result = CliRunner().invoke(app, ["train", str(file), "--quiet", *sets], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert [row["step"] for row in rows(folder)] == [0, 1, 2]
    assert (folder / "summary.md").is_file() and (folder / "checkpoints" / "step-000002").is_dir()


def test_the_custom_reward_is_the_one_that_is_used(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    rewards = load("rewards")
    assert rewards.closeness("7\n12", "8") == 0.5 and rewards.closeness("none", "8") == 0
    assert rewards.brevity(["", "x" * 10, "x" * 90], limit=40) == [1, 0.75, 0]
    train(EXAMPLES / "custom_reward.yaml", overrides=small(model, tmp_path / "run"), quiet=True)
    step = rows(tmp_path / "run")[1]
    parts = step["reward/part/closeness"], step["reward/part/brevity"]
    assert 0 < parts[1] < 1
    assert step["reward/mean"] == pytest.approx(parts[0] + 0.1 * parts[1], abs=1e-6)


def test_the_custom_dataset_trains_in_under_twenty_lines(model: Path, tmp_path: Path) -> None:
    example = load("custom_dataset")
    text = (EXAMPLES / "custom_dataset.py").read_text(encoding="utf-8")
    assert len([line for line in text.splitlines()[1:] if line.strip()]) < 20
    overrides = small(model, tmp_path / "run")
    outcome = train(example.CONFIG, data=example.rows(), reward=example.reward, overrides=overrides, quiet=True)
    assert outcome.steps == 2 and outcome.held_out is not None


def test_every_example_is_tested_here() -> None:
    scripts = {file.stem for file in EXAMPLES.glob("*.py")}
    assert scripts == {"custom_dataset", "grpo_in_one_file", "rewards"}


def test_the_questions_to_try_the_quickstart_on_are_its_held_out_ones() -> None:
    quickstart = load_config(ROOT / "configs" / "quickstart.yaml")
    held_out = load_prompts(quickstart.data, held_out=quickstart.evaluation.prompts).held_out
    asked = load_prompts(FileData(path=str(ROOT / "examples" / "next_number.jsonl")), held_out=0).train
    assert [(p.messages, p.answer) for p in asked] == [(p.messages, p.answer) for p in held_out[:4]]

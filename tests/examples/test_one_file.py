"""examples/grpo_in_one_file.py and the library are two writings of one algorithm: same losses, same gradients."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tiny_models import byte_tokenizer, tiny_model

from grpo_core.api import train

FILE = Path(__file__).resolve().parents[2] / "examples" / "grpo_in_one_file.py"
pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="the examples are not beside the tests")


def even_share(completion: str) -> float:
    """Varies within every group of a random model: the share of characters with an even code."""
    return sum(ord(letter) % 2 == 0 for letter in completion) / max(1, len(completion))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that ends about every fifth token: with completions of one length every loss would be 0."""
    folder = tmp_path_factory.mktemp("model")
    random, tokenizer = tiny_model("qwen3"), byte_tokenizer()
    with torch.no_grad():
        random.lm_head.weight[tokenizer.eos_token_id] *= 6
    random.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example with a reward that a random model can earn."""
    spec = importlib.util.spec_from_file_location("grpo_in_one_file", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "reward", lambda text, answer: even_share(text))
    return module


def library(model: Path, folder: Path, rate: float, strength: float) -> tuple[list[float], list[float]]:
    """(losses, norms of the finished gradient) of five steps with the settings the example spells out."""
    config = {
        "model": {"path": str(model), "device": "cpu"},
        "data": {"kind": "arithmetic", "task": "larger", "digits": 2, "worked_examples": 1},
        "reward": {"kind": "number", "take": "first_line"},
        "algorithm": {"name": "grpo", "penalty": "finite_difference"},
        "train": {"steps": 5, "batch_size": 16, "seq_length": 300, "learning_rate": rate, "lambda": strength},
        "rollout": {"group_size": 4, "max_new_tokens": 8},
        "evaluation": {"prompts": 0},
        "run": {"folder": str(folder), "tensorboard": False, "save_rollouts_every": 0},
    }
    train(config, reward=even_share, quiet=True)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(row["loss/total"] == row["loss/policy"] for row in rows)
    return [row["loss/total"] for row in rows], [row["optim/grad_norm"] for row in rows]


def one_file(
    example: ModuleType, model: Path, rate: float, strength: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[float], list[float]]:
    """The same from the example; the norms are read where it clips."""
    clip, norms = torch.nn.utils.clip_grad_norm_, []

    def noted(*args: object) -> torch.Tensor:
        norms.append(float(clip(*args)))
        return torch.tensor(norms[-1])

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", noted)
    monkeypatch.setattr(example, "LEARNING_RATE", rate)
    monkeypatch.setattr(example, "STRENGTH", strength)
    return example.main(str(model), steps=5), norms


@pytest.mark.parametrize("rate", [1e-5, 1e-3])
def test_the_first_five_losses_are_the_librarys(
    rate: float, example: ModuleType, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, norms = library(model, tmp_path / "run", rate, 0.2)
    own_losses, own_norms = one_file(example, model, rate, 0.2, monkeypatch)
    assert len(losses) == 5 and all(abs(loss) > 1e-4 for loss in losses)
    assert own_losses == pytest.approx(losses, rel=1e-5, abs=1e-7)
    assert own_norms == pytest.approx(norms, rel=5e-3), "the gradient that reaches the weights, penalty included"


def test_the_losses_depend_on_the_penalty(model: Path, tmp_path: Path) -> None:
    """Else the comparison above would hold whatever the updates did."""
    losses, norms = library(model, tmp_path / "a", 1e-3, 0.2)
    without, without_norms = library(model, tmp_path / "b", 1e-3, 0.0)
    assert losses[0] == without[0], "the first batch is sampled before any update"
    assert losses[1:] != without[1:]
    assert norms[0] != pytest.approx(without_norms[0], rel=1e-2)


def test_the_whole_method_fits_on_a_few_screens() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 150

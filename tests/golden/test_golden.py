"""Ten steps of every algorithm against figures written down earlier: silent drift of the numbers shows here.

Where a change is meant to move them, write them again with `python tests/golden/test_golden.py` and say why in the
commit. The model is float64; rewards, advantages and old log-probs are float32, where another processor may round the
other way: 1.4e-7 was seen in the loss, a sum of terms of size 1 that nearly cancel, so figures near 0 are held to 1e-6.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parent / "training")]

from tiny_runs import tiny_run  # noqa: E402

from grpo_core.training.loop import train  # noqa: E402

FILE = HERE / "golden.json"
NAMES = ["grpo", "ppo", "group_relative", "rloo", "dr_grpo", "reinforce"]
FIGURES = [
    "reward/mean",
    "loss/total",
    "optim/grad_norm",
    "penalty/ratio",
    "penalty/cosine",
    "policy/entropy",
    "kl/coef",
]


def ten_steps(name: str, folder: Path) -> list[dict[str, float]]:
    run = tiny_run(
        folder, dtype=torch.float64, kind="gpt2", algorithm=name, train={"steps": 10}, evaluation={"prompts": 0}
    )
    train(run)
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return [{key: row[key] for key in FIGURES if key in row} for row in map(json.loads, lines)]


@pytest.mark.parametrize("name", NAMES)
def test_ten_steps_are_those_written_down(name: str, tmp_path: Path) -> None:
    expected = json.loads(FILE.read_text())[name]
    got = ten_steps(name, tmp_path)
    assert len(got) == len(expected) == 10
    for step, (row, golden) in enumerate(zip(got, expected, strict=True), 1):
        assert row == pytest.approx(golden, rel=1e-5, abs=1e-6), f"step {step}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as aside:
        FILE.write_text(json.dumps({name: ten_steps(name, Path(aside) / name) for name in NAMES}, indent=0) + "\n")

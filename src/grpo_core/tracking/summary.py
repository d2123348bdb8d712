"""`summary.md`: what a run did and how to go on, for a person who comes back to its folder."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_core.records import StepReport
from grpo_core.tracking.writer import read_metrics

_HELD_OUT = "held_out/reward"
_PEAKS = (("memory/peak_gb", "process"), ("memory/device_peak_gb", "device"))


def write_summary(
    folder: Path,
    *,
    title: str,
    facts: Mapping[str, str],
    seconds: float,
    ended: str,
    warnings: Sequence[str] = (),
    checkpoint: Path | None = None,
) -> Path:
    """Write `summary.md` into the run's folder, from its metrics and what the caller knows.

    `facts` say what ran (model, data, algorithm, ...), `ended` why it stopped ("finished"), `warnings` all
    that were shown. `seconds` is the time of the whole run. `checkpoint` is the one to use: the best or the
    last. Returns the path.
    """
    reports = read_metrics(folder)
    sections = [
        f"# {title}",
        "\n".join(f"- {name}: {value}" for name, value in facts.items()),
        f"{ended.capitalize()} after {reports[-1].step if reports else 0} steps and {_time(seconds)}.",
        "## Reward",
        _reward(reports),
        "## Cost",
        _cost(reports, seconds),
        "## Warnings",
        "\n".join(f"- {line}" for line in _folded(warnings)) or "None.",
        "## Go on",
        _next(folder, checkpoint),
    ]
    path = folder / "summary.md"
    aside = folder / "summary.md.writing"
    aside.write_text("\n\n".join(section for section in sections if section) + "\n", encoding="utf-8")
    os.replace(aside, path)
    return path


def _reward(reports: Sequence[StepReport]) -> str:
    """Held-out reward before, after and at its best; training reward of the first and last tenth."""
    held = [(r.step, r.metrics[_HELD_OUT]) for r in reports if _HELD_OUT in r.metrics]
    train = [r.metrics["reward/mean"] for r in reports if math.isfinite(r.metrics.get("reward/mean", math.nan))]
    rows = ["| | before | after | best |", "| --- | --- | --- | --- |"]
    if held:
        finite = [(value, -step) for step, value in held if math.isfinite(value)]
        best = "–" if not finite else f"{max(finite)[0]:.4g} (step {-max(finite)[1]})"
        rows.append(f"| held-out | {held[0][1]:.4g} | {held[-1][1]:.4g} | {best} |")
    if train:
        tenth = max(1, len(train) // 10)
        first, last = sum(train[:tenth]) / tenth, sum(train[-tenth:]) / tenth
        rows.append(f"| training (mean of {tenth} steps) | {first:.4g} | {last:.4g} | |")
    return "\n".join(rows) if len(rows) > 2 else "No reward was recorded."


def _cost(reports: Sequence[StepReport], seconds: float) -> str:
    lines = [f"- time: {_time(seconds)}"]
    tokens = sum(r.metrics.get("rollout/tokens", 0.0) for r in reports)
    if tokens and seconds > 0:
        lines.append(f"- sampled: {tokens:,.0f} tokens, {tokens / seconds:,.0f} per second of the whole run")
    for name, what in _PEAKS:
        values = [r.metrics[name] for r in reports if name in r.metrics]
        if values:
            lines.append(f"- most memory of the {what}: {max(values):.2f} GiB")
    skipped = sum(r.metrics.get("optim/skipped", 0.0) for r in reports)
    if skipped:
        lines.append(f"- optimizer steps skipped because they were not finite: {skipped:g}")
    return "\n".join(lines)


def _folded(warnings: Sequence[str]) -> list[str]:
    """Each warning once, with its fix on the same line."""
    return list(dict.fromkeys(" ".join(text.split()) for text in warnings))


def _next(folder: Path, checkpoint: Path | None) -> str:
    """Where the checkpoint is, and the commands to use it."""
    if checkpoint is None:
        return f"There is no checkpoint. Start again with more steps, or look at `{folder}/metrics.jsonl`."
    return (
        f"The checkpoint is `{checkpoint}`.\n\n"
        "```bash\n"
        f'grpo generate {folder} -p "..."      # try it\n'
        f"grpo export {folder} --out my-model  # write it as an ordinary model folder\n"
        f"grpo train --resume {folder}  # train on\n"
        "```"
    )


def _time(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60:02d} min" if hours else f"{rest // 60} min {rest % 60:02d} s"

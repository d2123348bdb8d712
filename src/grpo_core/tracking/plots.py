"""Pictures of a run from its `metrics.jsonl`: an overview, and the reward large enough for a README."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_core.records import StepReport
from grpo_core.tracking.names import describe
from grpo_core.tracking.writer import read_metrics

_STYLE: dict[Any, Any] = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e8eb",
    "axes.axisbelow": True, "axes.edgecolor": "#9aa1a9", "axes.labelcolor": "#3b4148",
    "axes.titlelocation": "left", "axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlepad": 10,
    "text.color": "#22262a", "xtick.color": "#5c646d", "ytick.color": "#5c646d", "font.size": 10,
    "legend.frameon": False, "lines.linewidth": 2, "lines.solid_capstyle": "round",
}  # fmt: skip
_BLUE, _ORANGE, _GREEN, _RED, _GREY = "#2f6db5", "#d9822b", "#2e8b57", "#c23b3b", "#9aa1a9"
_SMOOTHED_FROM = 30
"""Steps from which a running mean is drawn over the single values."""


def plot_run(folder: Path) -> list[Path]:
    """Draw `plots/overview.png` and `plots/reward.png` in a run's folder; none where nothing is recorded.

    Metrics that the run lacks are left out; values that are not finite are gaps. Returns the files.
    """
    reports = read_metrics(folder)
    if not reports:
        return []
    import matplotlib
    from matplotlib.figure import Figure

    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    paths = [plots / "overview.png", plots / "reward.png"]
    with matplotlib.rc_context(_STYLE):
        overview = Figure(figsize=(12, 7.6), layout="constrained")
        axes = overview.subplots(2, 2, gridspec_kw={"hspace": 0.09, "wspace": 0.05}).ravel()
        _reward(axes[0], reports)
        _pair(axes[1], reports, "Gradient", "optim/grad_norm", "penalty/ratio")
        _pair(axes[2], reports, "Policy", _kl(reports), "policy/entropy")
        _pair(axes[3], reports, "Completions", "rollout/length_mean", "rollout/truncated")
        overview.savefig(paths[0], dpi=130)
        reward = Figure(figsize=(9, 4.8), layout="constrained")
        _reward(reward.subplots(), reports)
        reward.savefig(paths[1], dpi=160)
    return paths


_LABELS = {
    "optim/grad_norm": "gradient norm",
    "penalty/ratio": "penalty / loss gradient",
    "kl/reference": "KL to the reference",
    "policy/kl_rollout": "KL to the sampling policy",
    "policy/entropy": "entropy",
    "rollout/length_mean": "length",
    "rollout/truncated": "truncated",
}


def _label(name: str) -> str:
    """What the axis shows, with its unit."""
    known = describe(name)
    unit = known.unit if known else ""
    return _LABELS[name] if unit in ("", "ratio", _LABELS[name]) else f"{_LABELS[name]} ({unit})"


def _kl(reports: Sequence[StepReport]) -> str:
    """KL to the reference where the run has one, else to the policy that sampled."""
    return "kl/reference" if any("kl/reference" in r.metrics for r in reports) else "policy/kl_rollout"


def _series(reports: Sequence[StepReport], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of a metric; NaN where a value is not finite, nothing where the step lacks it."""
    points = [(r.step, r.metrics[name]) for r in reports if name in r.metrics]
    return [step for step, _ in points], [v if math.isfinite(v) else math.nan for _, v in points]


def _draw(axis: Any, reports: Sequence[StepReport], name: str, color: str) -> int:
    """One curve, faint under its running mean where there are many steps; returns the mean's width, or 0."""
    steps, values = _series(reports, name)
    if all(map(math.isnan, values)):
        return 0
    if len(values) < _SMOOTHED_FROM:
        axis.plot(steps, values, color=color, marker="o", markersize=4)
        return 1
    window = len(values) // 20 * 2 + 1
    axis.plot(steps, values, color=color, alpha=0.22, linewidth=1)
    axis.plot(steps, _running_mean(values, window), color=color)
    return window


def _running_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of the finite values around each place; a gap stays a gap."""
    half, means = window // 2, []
    for place, value in enumerate(values):
        near = [v for v in values[max(0, place - half) : place + half + 1] if not math.isnan(v)]
        means.append(math.nan if math.isnan(value) else sum(near) / len(near))
    return means


def _reward(axis: Any, reports: Sequence[StepReport]) -> None:
    """The training reward, and the held-out reward with its first and last value written out."""
    from matplotlib.patheffects import withStroke

    axis.set_title("Reward")
    window = _draw(axis, reports, "reward/mean", _BLUE)
    if window:
        axis.get_lines()[-1].set_label(f"training (mean of {window} steps)" if window > 1 else "training")
    steps, values = _series(reports, "held_out/reward")
    if not all(map(math.isnan, values)):
        axis.plot(steps, values, "o--", color=_ORANGE, markersize=7, linewidth=1.3, label="held-out", zorder=5)
    for place in {0, len(steps) - 1} if steps else ():
        if not math.isnan(values[place]):
            axis.annotate(
                f"{values[place]:.2f}", (steps[place], values[place]), xytext=(0, 10), ha="center", zorder=6,
                textcoords="offset points", color=_ORANGE, fontweight="bold", fontsize=11,
                path_effects=[withStroke(linewidth=3, foreground="white")],
            )  # fmt: skip
    if axis.get_lines():
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)
    _finish(axis, reports, "reward")


def _pair(axis: Any, reports: Sequence[StepReport], title: str, left: str, right: str) -> None:
    """Two metrics over the same steps, each on the scale in its colour; a missing one leaves no trace."""
    axis.set_title(title)
    first = left if _draw(axis, reports, left, _GREEN) else None
    other = axis if first is None else axis.twinx()
    if _draw(other, reports, right, _RED) and first:
        other.grid(False)
        other.spines["right"].set_visible(True)
        other.set_ylabel(_label(right), color=_RED, fontweight="bold")
        _from_zero(other)
    elif first:
        other.set_axis_off()
    _finish(axis, reports, _label(first or right), _GREEN if first else _RED)
    _from_zero(axis)


def _from_zero(axis: Any) -> None:
    """Let the scale of a metric that is never negative start at 0."""
    if axis.get_lines() and axis.dataLim.ymin >= 0:
        axis.set_ylim(bottom=0, top=None if axis.dataLim.ymax > 0 else 1)


def _finish(axis: Any, reports: Sequence[StepReport], label: str, color: str | None = None) -> None:
    """Labels and whole steps; a word where there is nothing to draw."""
    if not axis.get_lines():
        axis.text(0.5, 0.5, "not recorded", transform=axis.transAxes, ha="center", color=_GREY)
        axis.set_xticks([])
        axis.set_yticks([])
        return
    axis.set_xlabel("training step")
    axis.set_ylabel(label, **({"color": color, "fontweight": "bold"} if color else {}))
    axis.xaxis.get_major_locator().set_params(integer=True)
    if reports[0].step == reports[-1].step:
        axis.set_xlim(reports[0].step - 1, reports[0].step + 1)

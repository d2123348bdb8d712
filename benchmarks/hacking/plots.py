"""Proxy and true score over the steps, and one against the other, for a few arms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hacking.arms import DRAWN
from hacking.figures import SMOOTHED, Curves, resolved, smoothed
from hacking.tasks import Task

COLORS = dict(zip(DRAWN, ("#22262a", "#d9822b", "#8a5fb0", "#2e8b57", "#2f6db5", "#c23b3b"), strict=True))


def plot(task: Task, found: Curves, results: Mapping[str, Mapping[str, Any]], path: Path) -> Path:
    """In the third panel a slower arm follows the path of the others, and a better one lies above it.

    A task whose true score is the proxy has one panel.
    """
    both = task.proxy != task.true
    figure = Figure(figsize=(15 if both else 6.5, 4.8), layout="constrained")
    figure.suptitle(f"{task.name} (running mean of {SMOOTHED} steps; band: lowest to highest seed)")
    axes = figure.subplots(1, 3 if both else 1, squeeze=False)[0]
    for name in DRAWN:
        if arm := resolved(name, results):
            color, label = COLORS[name], name if name == arm else f"{name} ({arm})"
            proxy, true = smoothed(found[arm]["proxy"]), smoothed(found[arm]["true"])
            for axis, values in zip(axes, (proxy, true), strict=False):
                steps = np.arange(values.shape[1]) + 1 + SMOOTHED // 2
                axis.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.1, linewidth=0)
                axis.plot(steps, values.mean(0), color=color, linewidth=2, label=label)
            if both:
                axes[2].plot(proxy.T, true.T, color=color, linewidth=1, alpha=0.7)
    titles = ("Proxy: trained on", "True score: only watched", "True score at equal proxy, each seed")
    for axis, title in zip(axes, titles if both else ("Reward",), strict=True):
        axis.set_title(title, loc="left")
        axis.set_xlabel("proxy" if "equal" in title else "training step")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#e6e8eb")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=140)
    return path

"""What a person sees while a run goes on: a live panel in a terminal, one line per step in a log."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from statistics import median
from types import TracebackType

from rich.console import Console as Terminal
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from grpo_core.records import StepReport
from grpo_core.tracking.names import describe

_BLOCKS = "▁▂▃▄▅▆▇█"
_RECENT = 20
"""Steps whose median time gives the time left."""
_FIGURES: tuple[tuple[str, str, str], ...] = (
    ("reward", "reward/mean", "{:.3f}"),
    ("held-out", "held_out/reward", "{:.3f}"),
    ("grad", "optim/grad_norm", "{:.3g}"),
    ("penalty", "penalty/ratio", "{:.2f}"),
    ("kl", "kl/reference", "{:.3g}"),
    ("entropy", "policy/entropy", "{:.3g}"),
    ("length", "rollout/length_mean", "{:.0f}"),
    ("tok/s", "speed/tokens_per_second", "{:,.0f}"),
    ("GiB", "memory/device_gb", "{:.1f}"),
    ("RAM GiB", "memory/rss_gb", "{:.1f}"),
)
"""(label, metric, format) of what is shown, in this order, where the step has it."""


class Console:
    """Shows steps `start` + 1 to `total_steps`. A context manager, so that the terminal is given back."""

    def __init__(self, total_steps: int, start: int = 0, *, terminal: Terminal | None = None) -> None:
        self._total = total_steps
        self._terminal = terminal or Terminal()
        self._report = StepReport(step=start, metrics={})
        self._rewards: list[float] = []
        self._times: list[float] = []
        self._clock = time.monotonic()
        self._live: Live | None = None
        if self._terminal.is_terminal:
            self._live = Live(console=self._terminal, get_renderable=self._panel, refresh_per_second=2)
            self._live.start()

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, report: StepReport) -> None:
        """Show a finished step."""
        now = time.monotonic()
        if report.step > self._report.step:
            self._times.append(report.metrics.get("time/step", now - self._clock))
        self._clock = now
        self._report = report
        if "reward/mean" in report.metrics:
            self._rewards.append(report.metrics["reward/mean"])
        if self._live:
            self._live.refresh()
        else:
            self._print(Text(self._line()))

    def note(self, text: str) -> None:
        """Say something that stays on the screen."""
        self._print(Text(text))

    def warn(self, text: str) -> None:
        """Say something that must not be overlooked."""
        self._print(Text.assemble((" WARNING ", "bold black on yellow"), (f" {text}", "yellow")))

    def close(self) -> None:
        """Leave the last state on the screen and give the terminal back. May be called twice."""
        if self._live:
            self._live.stop()
            self._live = None

    def seconds_left(self) -> float | None:
        """Steps to go times the median time of the recent ones; None before the first."""
        if not self._times:
            return None
        return median(self._times[-_RECENT:]) * max(0, self._total - self._report.step)

    def _print(self, text: Text) -> None:
        self._terminal.print(text, soft_wrap=True)

    def _figures(self) -> list[tuple[str, str]]:
        metrics = self._report.metrics
        shown = [(label, form.format(metrics[name])) for label, name, form in _FIGURES if name in metrics]
        if skipped := metrics.get("optim/skipped", 0):
            shown.append(("SKIPPED (not finite)", f"{skipped:g}"))
        return shown

    def _timing(self) -> str:
        left = self.seconds_left()
        return "" if left is None else f"{_duration(self._times[-1])}/step  {_duration(left)} left"

    def _line(self) -> str:
        figures = "  ".join(f"{label} {value}" for label, value in self._figures())
        return f"step {self._report.step}/{self._total}  {figures}  {self._timing()}".rstrip()

    def _panel(self) -> RenderableType:
        done = self._report.step
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(f"step {done}/{self._total}", style="bold"),
            ProgressBar(total=max(1, self._total), completed=done, width=30),
            Text(self._timing() or "first step"),
            Text(f"this step {_duration(time.monotonic() - self._clock)}", style="dim"),
        )
        figures = Text("  ").join(
            Text.assemble((f"{label} ", "dim"), (value, "bold red" if "SKIPPED" in label else "bold"))
            for label, value in self._figures()
        )
        trend = Text.assemble(("reward ", "dim"), (sparkline(self._rewards, width=60), "cyan"))
        return Group(head, figures, trend) if self._rewards else head


def sparkline(values: list[float], width: int) -> str:
    """Small bars, each the mean of neighbours where there are more than `width`; `?` if not finite."""
    size = max(1, math.ceil(len(values) / width))
    means = [sum(chunk) / len(chunk) for at in range(0, len(values), size) if (chunk := values[at : at + size])]
    finite = [value for value in means if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    span = (high - low) or 1.0
    return "".join(_BLOCKS[round((v - low) / span * 7)] if math.isfinite(v) else "?" for v in means)


def summary_table(before: Mapping[str, float], after: Mapping[str, float], *, title: str = "Held-out") -> Table:
    """Metrics before and after side by side, with the change in the colour of its better direction."""
    table = Table(title=title)
    for column in ("metric", "before", "after", "change"):
        table.add_column(column, justify="left" if column == "metric" else "right")
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        change = Text("")
        if old is not None and new is not None:
            better = getattr(describe(name), "better", None)
            gain = (new - old) * {"up": 1, "down": -1, None: 0}[better]
            change = Text(f"{new - old:+.4g}", style="green" if gain > 0 else "red" if gain < 0 else "")
        table.add_row(name, *("–" if value is None else f"{value:.4g}" for value in (old, new)), change)
    return table


def _duration(seconds: float) -> str:
    """3.2s, 4m10s or 2h05m."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"

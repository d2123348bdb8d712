"""`RunTracker`: one door for the loop to everything that records and shows a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_core.config.run import RunSection
from grpo_core.records import Rollout, StepReport
from grpo_core.tracking.console import Console, summary_table
from grpo_core.tracking.plots import plot_run
from grpo_core.tracking.summary import write_summary
from grpo_core.tracking.watch import Watch
from grpo_core.tracking.writer import MetricsWriter, RolloutWriter, read_metrics

ENDINGS = {
    "steps": "finished",
    "interrupt": "interrupted",
    "time": "stopped by run.max_minutes",
    "reward": "stopped by run.stop_at_reward",
    "watch": "stopped by run.watch",
}
COMPARED = ("held_out/reward", "held_out/length_mean", "held_out/truncated")


class RunTracker:
    """Writes metrics, rollouts, plots and the summary; shows steps; watches for wasted runs."""

    def __init__(
        self,
        folder: Path,
        settings: RunSection,
        *,
        total_steps: int,
        facts: Mapping[str, str],
        groups: bool = True,
        quiet: bool = False,
    ) -> None:
        self._folder = folder
        self._facts = facts
        self._metrics = MetricsWriter(folder, tensorboard=settings.tensorboard)
        self._rollouts = RolloutWriter(folder)
        self._watch = None if settings.watch == "off" else Watch(groups=groups)
        self._warnings: list[str] = []
        self._total = total_steps
        self._quiet = quiet
        self._console: Console | None = None

    def log(self, report: StepReport) -> list[str]:
        """Record and show a step; returns the keys of the warnings it raised."""
        self._metrics.write(report)
        alarms = self._watch.feed(report) if self._watch and report.step else []
        if not self._quiet:
            self._screen(report.step - 1).step(report)
        for alarm in alarms:
            self._warnings.append(f"step {report.step}: {alarm}")
            if not self._quiet:
                self._screen(report.step).warn(str(alarm))
        return [alarm.key for alarm in alarms]

    def save_rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Write a step's completions to Parquet."""
        self._rollouts.write(step, rollouts)

    def note(self, text: str) -> None:
        """Say something that stays on the screen."""
        if not self._quiet:
            self._screen(0).note(text)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must carry so that warnings go on as they were."""
        return {"watch": self._watch.state() if self._watch else None, "warnings": self._warnings}

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Go on after `step`: what was recorded for later steps is dropped and done again."""
        self._metrics.truncate_after(step)
        self._rollouts.truncate_after(step)
        self._warnings = list(state.get("warnings", []))
        if self._watch and state.get("watch"):
            self._watch.restore(state["watch"])

    def finish(self, ended: str, seconds: float, checkpoint: Path | None) -> None:
        """Draw the plots, write the summary, and show a table with the files a person wants next."""
        plots = plot_run(self._folder)
        summary = write_summary(
            self._folder,
            title=self._folder.name,
            facts=self._facts,
            seconds=seconds,
            ended=ENDINGS.get(ended, ended),
            warnings=self._warnings,
            checkpoint=checkpoint,
        )
        if self._console:
            self._console.close()
        if not self._quiet:
            self._show_end(ended, [summary, *plots])

    def close(self) -> None:
        """Close files and give the terminal back. May be called twice."""
        self._metrics.close()
        if self._console:
            self._console.close()

    def _screen(self, start: int) -> Console:
        if self._console is None:
            self._console = Console(self._total, max(0, start))
        return self._console

    def _show_end(self, ended: str, files: Sequence[Path]) -> None:
        from rich.console import Console as Terminal

        terminal = Terminal()
        held = [r.metrics for r in read_metrics(self._folder) if COMPARED[0] in r.metrics]
        if len(held) > 1:
            before, after = ({name: row[name] for name in COMPARED if name in row} for row in (held[0], held[-1]))
            terminal.print(summary_table(before, after))
        terminal.print(f"{ENDINGS.get(ended, ended)}; everything is in {self._folder}", soft_wrap=True)
        for path in files:
            terminal.print(f"  {path}", soft_wrap=True)
        if ended != "steps":
            terminal.print(f"go on with: grpo train --resume {self._folder}", soft_wrap=True)

"""`Watch` looks at every step for a run that wastes its time, and says what it saw and which key to turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from grpo_core.records import StepReport

AGAIN_AFTER = 10
"""Steps before a warning is repeated."""
_EARLY = 5
"""First readings that say what is normal for this run."""
_KEPT = 5
_KL = ("kl/reference", "policy/kl_rollout")
_FINITE = ("loss/total", "optim/grad_norm", "reward/mean")
_WATCHED = (
    "rollout/truncated", "rollout/tokens", "rollout/length_mean", "groups/zero_spread", "reward/std",
    "reward/failed", "policy/entropy", "optim/skipped", *_KL, *_FINITE,
)  # fmt: skip

Rows = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class Alarm:
    """A warning: `key` names its kind, `message` carries the evidence, `remedy` the settings to change."""

    key: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.remedy}"


class Watch:
    """Feed it every StepReport; it returns the warnings that are due, each kind at most every 10 steps.

    `groups=False` for methods that do not compare the completions of one prompt: groups without spread are
    then no loss.
    """

    def __init__(self, *, groups: bool = True) -> None:
        self._groups = groups
        self._recent: list[dict[str, float]] = []
        self._early: dict[str, list[float]] = {}
        self._told: dict[str, int] = {}

    def feed(self, report: StepReport) -> list[Alarm]:
        """Take in one step; returns the warnings to show now."""
        row = {name: float(report.metrics[name]) for name in _WATCHED if name in report.metrics}
        self._recent = [*self._recent, row][-_KEPT:]
        for name in ("policy/entropy", *_KL):
            readings = self._early.setdefault(name, [])
            if math.isfinite(row.get(name, math.nan)) and len(readings) < _EARLY:
                readings.append(row[name])
        due = []
        for alarm in self._alarms():
            last = self._told.get(alarm.key)
            if last is None or report.step - last >= AGAIN_AFTER:
                self._told[alarm.key] = report.step
                due.append(alarm)
        return due

    def state(self) -> dict[str, Any]:
        """What it remembers, as JSON can hold it (values that are not finite as text)."""
        recent = [{name: str(value) for name, value in row.items()} for row in self._recent]
        return {"recent": recent, "early": self._early, "told": self._told}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""
        self._recent = [{name: float(value) for name, value in row.items()} for row in state["recent"]]
        self._early = {name: list(readings) for name, readings in state["early"].items()}
        self._told = dict(state["told"])

    def _alarms(self) -> list[Alarm]:
        rules: list[Callable[[Rows], Alarm | None]] = [_nonfinite, _truncated, _constant_reward, _failures]
        if self._groups:
            rules.append(_no_spread)
        found = [rule(self._recent) for rule in rules]
        found += [self._runaway_kl(name) for name in _KL]
        return [alarm for alarm in [*found, self._collapse()] if alarm]

    def _runaway_kl(self, name: str) -> Alarm | None:
        """Above 1 nat, 10 times its early median, and half as much again within 5 steps: no steady drift."""
        early, last = self._early[name], _last(self._recent, name, 5)
        if len(early) < _EARLY or not last:
            return None
        usual = median(early)
        if min(last[-3:]) <= max(1.0, 10 * usual) or last[-1] <= last[-3] or last[-1] < 1.5 * last[0]:
            return None
        slower = "lower train.learning_rate"
        remedy = (
            f"{slower}, or raise rl.init_kl_coef (algorithm.kl: reward or loss) or train.lambda"
            if name == "kl/reference"
            else f"{slower} or train.epochs, or lower rl.target_kl, which ends the updates on a rollout early"
        )
        return Alarm(name, f"{name} runs away: {last[-1]:.3g} nats per sequence, {usual:.3g} at the start", remedy)

    def _collapse(self) -> Alarm | None:
        early, last = self._early["policy/entropy"], _last(self._recent, "policy/entropy", 3)
        if len(early) < 3 or not last or max(last) >= 0.1 * median(early[:3]):
            return None
        return Alarm(
            "entropy",
            f"entropy fell to {last[-1]:.3g} nats per token from {median(early[:3]):.3g}: samples are alike",
            "lower train.learning_rate or train.lambda, or raise algorithm.entropy_coef; with the reward as "
            "high as it can be, it is no fault",
        )


def _last(rows: Rows, name: str, count: int) -> list[float]:
    """The last `count` readings of a metric; nothing when one is missing or not finite."""
    values = [row.get(name, math.nan) for row in rows[-count:]]
    return values if len(values) == count and all(map(math.isfinite, values)) else []


def _nonfinite(rows: Rows) -> Alarm | None:
    row = rows[-1]
    skipped = row.get("optim/skipped", 0.0)
    names = [name for name in _FINITE if not math.isfinite(row.get(name, 0.0))]
    if not skipped > 0 and not names:
        return None
    what = [f"{skipped:g} optimizer step(s) skipped"] if skipped > 0 else []
    return Alarm(
        "nonfinite",
        f"not finite: {', '.join([*what, *names])}; the weights were left as they were",
        "lower train.learning_rate or train.lambda, set train.grad_clip, or set train.autocast: off",
    )


def _truncated(rows: Rows) -> Alarm | None:
    last = _last(rows, "rollout/truncated", 3)
    if not last or min(last) < 0.9:
        return None
    return Alarm(
        "truncated",
        f"{last[-1]:.0%} of the completions hit the length limit, {min(last):.0%} or more for 3 steps",
        "raise rollout.max_new_tokens, or ask for short answers (data.system)",
    )


def _no_spread(rows: Rows) -> Alarm | None:
    last = _last(rows, "groups/zero_spread", 3)
    if not last or min(last) < 0.9:
        return None
    return Alarm(
        "no_spread",
        f"in {last[-1]:.0%} of the groups all rewards are equal, {min(last):.0%} or more for 3 steps: "
        "almost nothing is learnt",
        "choose prompts that are solved sometimes (data), raise rollout.group_size or rollout.temperature, "
        "or give a finer reward (reward.parts)",
    )


def _constant_reward(rows: Rows) -> Alarm | None:
    means, spreads = _last(rows, "reward/mean", 5), _last(rows, "reward/std", 5)
    if not means or not spreads or any(spreads) or len(set(means)) > 1:
        return None
    return Alarm(
        "constant_reward",
        f"every completion of the last 5 steps has the reward {means[-1]:g}",
        "check reward.parts and data.columns.answer on a saved rollout; at the highest reward there is, stop "
        "with run.stop_at_reward",
    )


def _failures(rows: Rows) -> Alarm | None:
    failed, tokens = _last(rows, "reward/failed", 3), _last(rows, "rollout/tokens", 3)
    lengths = _last(rows, "rollout/length_mean", 3)
    if not failed or not tokens or not lengths or min(lengths) <= 0:
        return None
    completions = sum(total / length for total, length in zip(tokens, lengths, strict=True))
    share = sum(failed) / completions
    if share < 0.1:
        return None
    return Alarm(
        "failures",
        f"{share:.0%} of the last 3 steps' completions have no reward ({sum(failed):g} of {completions:.0f})",
        "mend reward.parts (a saved rollout has the reasons); reward.max_failure_rate is the limit",
    )

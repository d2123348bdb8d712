"""What a run leaves behind: `metrics.jsonl` (with TensorBoard events beside it) and rollouts as Parquet."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_core.errors import DataError
from grpo_core.records import Rollout, StepReport
from grpo_core.tracking.events import Events

METRICS_FILE = "metrics.jsonl"
ROLLOUTS = "rollouts"


class MetricsWriter:
    """Appends one JSON object per report; each is flushed, so a crash tears at most the last line."""

    def __init__(self, folder: Path, *, tensorboard: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / METRICS_FILE
        _drop_torn_line(self._path)
        self._stream = self._path.open("a", encoding="utf-8")
        self._events = Events(folder / "tensorboard") if tensorboard else None

    def write(self, report: StepReport) -> None:
        """Add a report. A second one for the same step is merged with the first by `read_metrics`."""
        self._stream.write(_to_line(report) + "\n")
        self._stream.flush()
        if self._events:
            self._events.scalars(report.step, report.metrics)

    def truncate_after(self, step: int) -> None:
        """Forget what was written for later steps: a resumed run does them again.

        The file is written aside and renamed, so a crash leaves the old one or the new one.
        """
        self._stream.close()
        kept = [json.dumps(row) for row in _rows(self._path) if row["step"] <= step]
        aside = self._path.with_suffix(".jsonl.writing")
        aside.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        os.replace(aside, self._path)
        self._stream = self._path.open("a", encoding="utf-8")
        if self._events:
            self._events.restart_at(step + 1)

    def close(self) -> None:
        """Close the files."""
        self._stream.close()
        if self._events:
            self._events.close()


def read_metrics(folder: Path) -> list[StepReport]:
    """The reports of a run by step, those of one step merged; none where there is no file.

    A value that was not finite comes back as NaN or infinity. A torn last line is left out. Raises DataError
    naming the line for damage anywhere else.
    """
    by_step: dict[int, dict[str, float]] = {}
    for row in _rows(folder / METRICS_FILE):
        metrics = by_step.setdefault(row.pop("step"), {})
        unusual = row.pop("nonfinite", {})
        metrics |= {name: float(unusual.get(name, "nan") if v is None else v) for name, v in row.items()}
    return [StepReport(step=step, metrics=by_step[step]) for step in sorted(by_step)]


def _rows(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line or "null")
        except ValueError:
            row = None
        if isinstance(row, dict) and "step" in row:
            rows.append(row)
        elif line and number < len(lines):
            raise DataError(f"{path}:{number}: not a row of metrics", fix="delete the line")
    return rows


def _to_line(report: StepReport) -> str:
    """JSON has no NaN: such a value is null, and `nonfinite` says which it was. Nothing is averaged away."""
    values = {name: float(value) for name, value in report.metrics.items()}
    unusual = {name: str(value) for name, value in values.items() if not math.isfinite(value)}
    row: dict[str, Any] = {"step": report.step} | values | dict.fromkeys(unusual)
    return json.dumps(row | ({"nonfinite": unusual} if unusual else {}), allow_nan=False)


def _drop_torn_line(path: Path) -> None:
    """Cut off what a crash left after the last line break, so that the next line starts clean."""
    if path.is_file() and (data := path.read_bytes()) and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


class RolloutWriter:
    """Writes the rollouts of a step to `rollouts/step-000012.parquet`, one row per completion."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / ROLLOUTS

    def write(self, step: int, rollouts: Sequence[Rollout]) -> Path:
        """Write the file aside and rename it; returns its path."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._folder.mkdir(parents=True, exist_ok=True)
        final = self._folder / f"step-{step:06d}.parquet"
        aside = final.with_suffix(".writing")
        parts = sorted({name for rollout in rollouts if rollout.score for name in rollout.score.parts})
        types = {
            "step": pa.int64(), "prompt_id": pa.string(), "group_id": pa.int64(), "prompt": pa.string(),
            "completion": pa.string(), "answer": pa.string(), "score": pa.float64(), "failure": pa.string(),
            "finish_reason": pa.string(), "policy_version": pa.int64(), "token_ids": pa.list_(pa.int32()),
            "logprobs": pa.list_(pa.float32()), "policy_logprobs": pa.list_(pa.float32()),
        }  # fmt: skip
        schema = pa.schema([*types.items(), *((f"part/{name}", pa.float64()) for name in parts)])
        rows = [_rollout_row(step, rollout) for rollout in rollouts]
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), aside)
        os.replace(aside, final)
        return final

    def truncate_after(self, step: int) -> None:
        """Delete the rollouts of later steps."""
        for path in self._folder.glob("step-*.parquet"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()


def _rollout_row(step: int, rollout: Rollout) -> dict[str, Any]:
    """One completion; a failed score has a reason and no number."""
    score, completion = rollout.score, rollout.completion
    failed = score is None or score.failure is not None
    return {
        "step": step,
        "prompt_id": rollout.prompt.id,
        "group_id": rollout.group_id,
        "prompt": rollout.prompt.plain,
        "completion": rollout.text,
        "answer": rollout.prompt.answer,
        "score": None if score is None or failed else score.value,
        "failure": score.failure if score else None,
        "finish_reason": completion.finish_reason,
        "policy_version": rollout.policy_version,
        "token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "policy_logprobs": completion.policy_logprobs,
        **{f"part/{name}": value for name, value in (score.parts if score else {}).items()},
    }

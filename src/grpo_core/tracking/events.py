"""TensorBoard events through TensorBoard's own package."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path


class Events:
    """One event file with one scalar curve per metric."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._file = EventFileWriter(str(folder))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to every curve; NaN and infinities are written as they are."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._file.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=points)))
        self._file.flush()

    def restart_at(self, step: int) -> None:
        """Tell TensorBoard to hide what earlier files hold from `step` on."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        start = SessionLog(status=SessionLog.START)
        self._file.add_event(Event(wall_time=time.time(), step=step, session_log=start))
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

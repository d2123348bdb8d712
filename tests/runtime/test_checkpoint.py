"""Checkpoints are complete or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_core.errors import CheckpointError
from grpo_core.runtime.checkpoint import checkpoints, prune, verify, write_checkpoint


def saver(text: str, *, fail: bool = False) -> object:
    def save(folder: Path) -> None:
        (folder / "first.bin").write_text(text)
        if fail:
            raise OSError("disk full")
        (folder / "sub").mkdir()
        (folder / "sub" / "second.bin").write_text(text * 2)

    return save


def test_a_checkpoint_is_verified_by_its_checksums(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 7, saver("a"))  # type: ignore[arg-type]
    assert path.name == "step-000007"
    assert verify(path) == 7
    (path / "sub" / "second.bin").write_text("aA")
    with pytest.raises(CheckpointError, match=r"second\.bin is missing or damaged"):
        verify(path)


def test_kf28_a_crash_while_writing_leaves_the_older_checkpoint_as_the_newest(tmp_path: Path) -> None:
    good = write_checkpoint(tmp_path, 1, saver("a"))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="disk full"):
        write_checkpoint(tmp_path, 2, saver("b", fail=True))  # type: ignore[arg-type]
    assert checkpoints(tmp_path) == [good]
    assert verify(good) == 1
    again = write_checkpoint(tmp_path, 2, saver("c"))  # type: ignore[arg-type]
    assert checkpoints(tmp_path) == [good, again]
    assert (again / "first.bin").read_text() == "c"


def test_a_checkpoint_without_manifest_is_none(tmp_path: Path) -> None:
    (tmp_path / "step-000003").mkdir()
    assert checkpoints(tmp_path) == []
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        verify(tmp_path / "step-000003")


def test_prune_keeps_the_newest_and_the_protected(tmp_path: Path) -> None:
    for step in range(1, 6):
        write_checkpoint(tmp_path, step, saver(str(step)))  # type: ignore[arg-type]
    prune(tmp_path, 2, {"step-000002"})
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000002", "step-000004", "step-000005"]

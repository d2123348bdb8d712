"""Checkpoints that are either complete or not there: written aside, checksummed, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from grpo_core.errors import CheckpointError

MANIFEST = "manifest.json"
PREFIX = "step-"


def write_checkpoint(folder: Path, step: int, save: Callable[[Path], None]) -> Path:
    """Call `save` on a folder aside, write the checksums, flush, and rename it to `step-NNNNNN`.

    A crash at any point leaves the older checkpoints as they were, and no half-written one under a real name.
    """
    final = folder / f"{PREFIX}{step:06d}"
    aside = folder / f".writing-{final.name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save(aside)
    files = sorted(path for path in aside.rglob("*") if path.is_file())
    sums = {str(path.relative_to(aside)): _digest(path) for path in files}
    (aside / MANIFEST).write_text(json.dumps({"step": step, "sha256": sums}, indent=1))
    for path in [*files, aside / MANIFEST]:
        _flush(path)
    if final.exists():
        shutil.rmtree(final)
    os.replace(aside, final)
    _flush(folder)
    return final


def verify(checkpoint: Path) -> int:
    """The checkpoint's step, after checking every file against its checksum.

    Raises CheckpointError naming the missing or damaged file.
    """
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text())
    except (OSError, ValueError):
        raise CheckpointError(
            f"{checkpoint} is not a complete checkpoint (no readable {MANIFEST})", fix="resume from an older one"
        ) from None
    for name, digest in manifest["sha256"].items():
        path = checkpoint / name
        if not path.is_file() or _digest(path) != digest:
            raise CheckpointError(
                f"{path} is missing or damaged", fix=f"delete {checkpoint.name} and resume: an older one is used"
            )
    return int(manifest["step"])


def checkpoints(folder: Path) -> list[Path]:
    """All complete checkpoints, oldest first; folders written aside are not among them."""
    return sorted(path for path in folder.glob(f"{PREFIX}*") if (path / MANIFEST).is_file())


def prune(folder: Path, keep: int, protect: Collection[str] = ()) -> None:
    """Delete all but the newest `keep` checkpoints and the protected names."""
    for path in checkpoints(folder)[:-keep]:
        if path.name not in protect:
            shutil.rmtree(path)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

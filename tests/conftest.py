"""Shared fixtures: tiny random models made on the fly, a byte tokenizer, and the optional folder of shared cases."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(os.environ.get("GRPO_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def cases(name: str) -> list[dict[str, Any]]:
    """Rows of a case file, or none where the folder is absent (the tests then skip, see `need_cases`)."""
    file = SHARED / "cases" / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def case_params(name: str, **only: Any) -> list[Any]:
    """Rows as pytest parameters; one skipped parameter with a reason where the folder is absent."""
    rows = [row for row in cases(name) if all(row.get(key) == value for key, value in only.items())]
    if not rows:
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"no {name} under {SHARED}; set GRPO_SHARED"))]
    return [pytest.param(row, id=f"{name.split('.')[0]}-{row['id']}") for row in rows]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny models run many times faster on one thread than on two."""
    import torch

    torch.set_num_threads(1)

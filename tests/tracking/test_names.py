"""The table of metrics is complete, unique, and the source of the page in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import grpo_core
from grpo_core.tracking.names import METRICS, describe, metrics_markdown

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = sorted({metric.name.split("/")[0] for metric in METRICS})


def test_names_are_unique_and_documented() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"[a-z_]+(/[a-z_]+)+(/<name>)?", metric.name)
        assert metric.unit
        assert metric.meaning.endswith(".")


def test_describe_knows_single_metrics_and_families() -> None:
    reward, part = describe("reward/mean"), describe("reward/part/format")
    assert reward is not None
    assert part is not None
    assert (reward.better, part.name) == ("up", "reward/part/<name>")
    assert describe("reward/part/") is None
    assert describe("reward/nonsense") is None


def test_every_metric_the_code_writes_is_in_the_table() -> None:
    literal = re.compile(rf'"((?:{"|".join(FAMILIES)})/[a-z_/]+)"')
    files = Path(grpo_core.__file__).parent.rglob("*.py")
    written = {name for file in files for name in literal.findall(file.read_text(encoding="utf-8"))}
    assert len(written) > 30
    assert not sorted(name for name in written if not describe(name) and not describe(name + "x"))


def test_the_page_is_the_table() -> None:
    page = ROOT / "docs" / "metrics.md"
    if not page.is_file():
        pytest.skip("the docs are not beside the tests")
    assert page.read_text(encoding="utf-8") == metrics_markdown(), (
        "run: python -c \"from grpo_core.tracking.names import metrics_markdown as m; print(m(), end='')\" > docs/metrics.md"
    )

"""What docs/data.md shows is what works."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.config.data import DataConfig
from grpo_core.config.reward import RewardConfig

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="the docs are not beside the tests")


def blocks(language: str) -> list[str]:
    return (
        re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL) if PAGE.is_file() else []
    )


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_examples_are_valid(text: str) -> None:
    from pydantic import TypeAdapter

    sections: dict[str, Any] = yaml.safe_load(text)
    TypeAdapter(DataConfig).validate_python(sections["data"])
    if "reward" in sections:
        RewardConfig.model_validate(sections["reward"])


def test_the_python_example_runs_in_under_twenty_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    database = sqlite3.connect("school.db")
    database.execute("CREATE TABLE questions (text, answer, level)")
    database.executemany("INSERT INTO questions VALUES (?, ?, ?)", [(f"{n} + 1?", n + 1, 1) for n in range(100)])
    database.commit()
    (example,) = blocks("python")
    assert len(example.splitlines()) < 20
    exec(example, {})
    assert capsys.readouterr().out == "36 to train on, 64 held out\n"

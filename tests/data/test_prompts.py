"""Good data of every kind becomes the prompts one expects."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.data import FileData, HubData, ReasoningGymData
from grpo_core.data.prompts import from_iterable, load_prompts
from grpo_core.errors import DataError

ROWS: list[dict[str, Any]] = [{"prompt": f"{n} + 1 =", "answer": n + 1, "level": "easy"} for n in range(10)]


def written(folder: Path, name: str) -> Path:
    path = folder / name
    lines = "\n".join(json.dumps(row) for row in ROWS)
    if name.endswith(".parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif name.endswith(".csv"):
        path.write_bytes(
            b"\xef\xbb\xbfprompt,answer,level\r\n" + "".join(f"{n} + 1 =,{n + 1},easy\r\n" for n in range(10)).encode()
        )
    else:
        path.write_text(lines if name.endswith(".jsonl") else json.dumps(ROWS))
    return path


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz", "r.json", "r.csv", "r.parquet"])
def test_every_format_gives_the_same_prompts(tmp_path: Path, name: str) -> None:
    sets = load_prompts(FileData(path=str(written(tmp_path, name)), system="Be brief."), held_out=3)
    assert [p.id for p in sets.train] == [f"train:{n}" for n in range(1, 8)]
    assert [p.id for p in sets.held_out] == ["held_out:8", "held_out:9", "held_out:10"]
    first = sets.train[0]
    assert [(m.role, m.content) for m in first.messages] == [("system", "Be brief."), ("user", "0 + 1 =")]
    assert (first.answer, first.columns, first.text, sets.notes) == ("1", {"level": "easy"}, None, ())


def test_plain_text_columns_ids_and_limit(tmp_path: Path) -> None:
    rows = [{"id": f"q{n}", "question": f"line {n}", "gold": 1.0, "answer": "kept"} for n in range(6)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    columns = {"prompt": "question", "answer": "gold"}
    config = FileData.model_validate({"path": str(tmp_path / "a.jsonl"), "columns": columns, "chat": False, "limit": 2})
    sets = load_prompts(config, held_out=1)
    assert [(p.id, p.text, p.messages, p.answer) for p in sets.train] == [
        ("train:q0", "line 0", (), "1.0"), ("train:q1", "line 1", (), "1.0"),
    ]  # fmt: skip
    assert sets.held_out[0].id == "held_out:q5", "the limit does not move the held-out rows"
    assert sets.train[0].columns == {"id": "q0", "answer": "kept"}


def test_held_out_file_and_a_remark_on_leaks(tmp_path: Path) -> None:
    path = written(tmp_path, "r.jsonl")
    (tmp_path / "h.jsonl").write_text('{"prompt": "3 + 1 ="}\n{"prompt": "new"}\n{"prompt": "newer"}\n')
    sets = load_prompts(FileData(path=str(path), held_out=str(tmp_path / "h.jsonl")), held_out=2)
    assert (len(sets.train), len(sets.held_out)) == (10, 2)
    assert sets.notes == ("1 of 2 held-out prompts are also trained on, e.g. held_out:1",)
    assert not load_prompts(FileData(path=str(path), held_out=str(tmp_path / "h.jsonl")), held_out=0).held_out


def test_chat_messages_keep_their_own_system_message() -> None:
    turns = [{"role": "system", "content": "Own."}, {"role": "user", "content": "Hi", "name": "ann"}]
    prompt = from_iterable([{"prompt": turns}], system="Other.").train[0]
    assert [(m.role, m.content) for m in prompt.messages] == [("system", "Own."), ("user", "Hi")]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (5, "5"),
        (5.0, "5.0"),
        ("5", "5"),
        (True, "true"),
        (None, None),
        (float("nan"), None),
        (" ", None),
        (-0.5, "-0.5"),
    ],
)
def test_answers_become_text(answer: Any, text: str | None) -> None:
    assert from_iterable([{"prompt": "x", "answer": answer}]).train[0].answer == text


def test_numpy_answers_and_message_arrays() -> None:
    import numpy as np

    row = {"prompt": np.array([{"role": "user", "content": "x"}]), "answer": np.int64(7)}
    prompt = from_iterable([row]).train[0]
    assert (prompt.answer, prompt.plain) == ("7", "x")


def test_kf20_the_same_prompt_with_different_answers_stays_two_prompts() -> None:
    sets = from_iterable([{"prompt": "same", "answer": "a"}, {"prompt": "same", "answer": "b"}])
    assert [(p.id, p.answer) for p in sets.train] == [("train:1", "a"), ("train:2", "b")]


def test_from_iterable_takes_text_generators_and_names_the_row() -> None:
    sets = from_iterable((f"question {n}" for n in range(5)), held_out=2)
    assert [p.plain for p in sets.held_out] == ["question 3", "question 4"]
    with pytest.raises(DataError, match=r"row 2: no column 'prompt'; there are q"):
        from_iterable([{"prompt": "x"}, {"q": "y"}])
    with pytest.raises(DataError, match=r"row 1: a int is no row"):
        from_iterable([3])  # type: ignore[list-item]
    with pytest.raises(DataError, match="gave no rows"):
        from_iterable([])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import datasets

    folder = tmp_path_factory.mktemp("hub") / "saved"
    one = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": one, "test": one.select([0, 1])}).save_to_disk(str(folder))
    one.save_to_disk(str(folder.parent / "single"))
    return folder


def test_hub_folder_made_by_save_to_disk(saved: Path) -> None:
    sets = load_prompts(HubData(name=str(saved), held_out_split="test", limit=4), held_out=5)
    assert (len(sets.train), len(sets.held_out), sets.train[1].answer) == (4, 2, "2")
    assert len(sets.notes) == 1
    sets = load_prompts(HubData(name=str(saved.parent / "single")), held_out=4)
    assert [p.id for p in sets.held_out] == [f"held_out:{n}" for n in range(7, 11)]
    with pytest.raises(DataError, match=r"no split 'tran'; there are train, test\n.*data\.split: train"):
        load_prompts(HubData(name=str(saved), split="tran"), held_out=0)
    with pytest.raises(DataError, match=r"row 1: no column 'prompt'|saved\[train\]: row 1: no column 'q'"):
        load_prompts(HubData.model_validate({"name": str(saved), "columns": {"prompt": "q"}}), held_out=0)


def test_hub_folder_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "rows").mkdir()
    written(tmp_path / "rows", "train.jsonl")
    sets = load_prompts(HubData(name=str(tmp_path / "rows")), held_out=2)
    assert (len(sets.train), len(sets.held_out)) == (8, 2)
    with pytest.raises(DataError, match=r"cannot be loaded: .*tran"):
        load_prompts(HubData(name=str(tmp_path / "rows"), split="tran"), held_out=0)


gym = pytest.importorskip("reasoning_gym")


def test_reasoning_gym_keeps_held_out_questions_apart() -> None:
    config = ReasoningGymData(task="chain_sum", size=40, suffix=" Just the number.", system="Be brief.", seed=3)
    sets = load_prompts(config, held_out=20)
    assert (len(sets.train), len(sets.held_out), sets.notes) == (40, 20, ())
    first = sets.train[0]
    assert first.columns["reasoning_gym_task"] == "chain_sum"
    assert first.columns["reasoning_gym_entry"]["answer"] == first.answer
    assert [m.role for m in first.messages] == ["system", "user"]
    assert first.plain.endswith(" Just the number.")
    assert load_prompts(config, held_out=20) == sets, "seeded"


def test_reasoning_gym_with_few_questions_moves_a_fifth_out_of_training() -> None:
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    sets = load_prompts(ReasoningGymData(task="chain_sum", size=1000, options=options), held_out=64)
    trained, held = {p.plain for p in sets.train}, {p.plain for p in sets.held_out}
    assert not trained & held
    assert len(held) == len(sets.held_out) > 30
    assert "left out" in sets.notes[0]


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("chian_sum", {}, r"no task 'chian_sum'\n.*did you mean chain_sum"),
        ("chain_sum", {"terms": 2}, r"data\.options: chain_sum refuses .*'terms'"),
        ("chain_sum", {"min_terms": -1}, r"data\.options: chain_sum refuses .*min_terms must be positive"),
    ],
)
def test_reasoning_gym_refuses(task: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_prompts(ReasoningGymData(task=task, options=options), held_out=4)


def test_rooms_load_no_torch() -> None:
    code = (
        "import sys, grpo_core.data.prompts, grpo_core.data.arithmetic, grpo_core.data.order, grpo_core.tracking.writer, "
        "grpo_core.tracking.console, grpo_core.tracking.plots, grpo_core.tracking.summary, grpo_core.tracking.watch; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

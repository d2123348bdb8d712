"""Every kind of bad data is refused quickly, by file, line or row, with a remedy."""

from __future__ import annotations

import gzip
import json
import re
import time
from pathlib import Path

import pytest

from grpo_core.config.data import FileData
from grpo_core.data.prompts import load_prompts
from grpo_core.errors import DataError

GOOD = '{"prompt": "2 + 3 =", "answer": "5"}\n'


def row(prompt: object, **more: object) -> bytes:
    return (GOOD + json.dumps({"prompt": prompt, **more}) + "\n").encode()


def turns(*pairs: tuple[object, object]) -> bytes:
    return row([{"role": role, "content": content} for role, content in pairs])


BAD = {
    "broken-json": ("a.jsonl", GOOD.encode() + b'{"prompt": "x"\n', r"a\.jsonl:2: not valid JSON .*column 15"),
    "single-quotes": ("a.jsonl", b"{'prompt': 'x'}\n", r"a\.jsonl:1: not valid JSON"),
    "blank-lines-count": ("a.jsonl", b"\n\n" + b"{oops\n", r"a\.jsonl:3: not valid JSON"),
    "deep": ("a.jsonl", b"[" * 100_000, r"a\.jsonl:1: not valid JSON"),
    "not-an-object": ("a.jsonl", GOOD.encode() + b'["x", "y"]\n', r"a\.jsonl:2: the row is .*not an object"),
    "bare-string": ("a.jsonl", b'"What is 2 + 2?"\n', r"a\.jsonl:1: the row is .*not an object"),
    "no-prompt": ("a.jsonl", GOOD.encode() + b'{"answer": "5"}\n', r"a\.jsonl:2: no column 'prompt'; there are answer"),
    "misspelt": ("a.jsonl", b'{"promt": "x"}\n', r"a\.jsonl:1: no column 'prompt'.*\n.*data\.columns\.prompt: promt"),
    "other-name": ("a.jsonl", b'{"id": 1, "question": "x"}\n', r"there are id, question\n.*data\.columns\.prompt: question"),
    "prompt-null": ("a.jsonl", row(None), r"a\.jsonl:2: 'prompt' is missing \(null\)"),
    "prompt-empty": ("a.jsonl", row(""), r"a\.jsonl:2: 'prompt' is empty"),
    "prompt-blank": ("a.jsonl", row(" \n\t"), r"a\.jsonl:2: 'prompt' is empty"),
    "prompt-number": ("a.jsonl", row(5), r"a\.jsonl:2: 'prompt' is a number"),
    "prompt-object": ("a.jsonl", row({"role": "user", "content": "x"}), r"a\.jsonl:2: 'prompt' is an object"),
    "no-messages": ("a.jsonl", row([]), r"a\.jsonl:2: 'prompt' has no messages"),
    "message-text": ("a.jsonl", row(["hi"]), r"a\.jsonl:2: 'prompt', message 1 is text"),
    "no-role": ("a.jsonl", row([{"content": "hi"}]), r"a\.jsonl:2: 'prompt', message 1 has no role"),
    "unknown-role": ("a.jsonl", turns(("user", "x"), ("human", "y")), r"a\.jsonl:2: .*message 2 has the unknown role 'human'"),
    "content-null": ("a.jsonl", turns(("user", None)), r"a\.jsonl:2: .*the content is missing \(null\)"),
    "content-parts": ("a.jsonl", turns(("user", [{"type": "image"}])), r"a\.jsonl:2: .*the content is a list"),
    "assistant-last": ("a.jsonl", turns(("user", "x"), ("assistant", "y")), r"a\.jsonl:2: .*ends with an assistant message"),
    "system-only": ("a.jsonl", turns(("system", "x")), r"a\.jsonl:2: .*ends with a system message"),
    "last-empty": ("a.jsonl", turns(("user", "  ")), r"a\.jsonl:2: .*the last message is empty"),
    "answer-list": ("a.jsonl", row("x", answer=["5"]), r"a\.jsonl:2: the answer in 'answer' is a list"),
    "twin-ids": ("a.jsonl", b'{"id": 7, "prompt": "x"}\n{"id": "7", "prompt": "y"}\n', r"a\.jsonl:2: the id '7' was already used at .*a\.jsonl:1"),
    "id-list": ("a.jsonl", b'{"id": [7], "prompt": "x"}\n', r"a\.jsonl:1: the id is a list"),
    "latin-1": ("a.jsonl", GOOD.encode() + '{"prompt": "caf\u00e9"}\n'.encode("latin-1"), r"a\.jsonl:2: byte 0xe9 is not UTF-8"),
    "utf-16": ("a.jsonl", GOOD.encode("utf-16"), r"a\.jsonl:1: byte 0x.. is not UTF-8"),
    "zero-bytes": ("a.jsonl", b"", r"a\.jsonl is empty"),
    "only-blank": ("a.jsonl", b"\n \n", r"a\.jsonl has no rows"),
    "not-gzip": ("a.jsonl.gz", GOOD.encode(), r"a\.jsonl\.gz is not a whole gzip file"),
    "cut-gzip": ("a.jsonl.gz", gzip.compress(GOOD.encode() * 99)[:-20], r"a\.jsonl\.gz is not a whole gzip file"),
    "json-lines-in-json": ("a.json", GOOD.encode() * 2, r"a\.json:2: not valid JSON .*\n.*rename it to \.jsonl"),
    "json-object": ("a.json", b'{"data": []}', r"a\.json holds one JSON value, not a list"),
    "json-empty-list": ("a.json", b"[]", r"a\.json has no rows"),
    "json-row": ("a.json", b'[{"prompt": "x"}, 5]', r"a\.json: row 2: the row is 5, not an object"),
    "ragged": ("a.csv", b"prompt,answer\nx,1\ny,2,3\n", r"a\.csv:3: 3 cells, but the header has 2"),
    "ragged-after-break": ("a.csv", b'prompt,answer\n"x\nx",1\ny\n', r"a\.csv:4: 1 cells, but the header has 2"),
    "open-quote": ("a.csv", b'prompt,answer\nx,1\n"y,2\n', r"a\.csv:3: not valid CSV"),
    "header-only": ("a.csv", b"prompt,answer\n", r"a\.csv has no rows"),
    "twin-columns": ("a.csv", b"prompt,prompt\nx,y\n", r"a\.csv:1: the column 'prompt' occurs twice"),
    "semicolons": ("a.csv", b"prompt;answer\nx;1\n", r"a\.csv:2: no column 'prompt'; there are prompt;answer"),
    "empty-cell": ("a.csv", b"prompt,answer\nx,1\n,2\n", r"a\.csv:3: 'prompt' is empty"),
    "fake-parquet": ("a.parquet", b"PAR1 but not really", r"a\.parquet is not a readable Parquet file"),
    "unknown-ending": ("a.txt", b"hello", r"a\.txt: the ending '\.txt' names no known format\n.*\.jsonl"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), BAD.values(), ids=BAD)
def test_bad_file_is_refused_by_place_with_a_remedy(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    began = time.process_time()
    with pytest.raises(DataError, match=message) as caught:
        load_prompts(FileData(path=str(tmp_path / name)), held_out=0)
    assert time.process_time() - began < 2
    assert str(tmp_path / name) in caught.value.problem, "the file is named in full"
    assert caught.value.fix


def test_a_folder_and_an_absent_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a folder\n.*kind: hub"):
        load_prompts(FileData(path=str(tmp_path)), held_out=0)
    (tmp_path / "rows.jsonl").write_text(GOOD)
    with pytest.raises(DataError, match=r"row\.jsonl does not exist\n.*there is rows\.jsonl beside it"):
        load_prompts(FileData(path=str(tmp_path / "row.jsonl")), held_out=0)
    with pytest.raises(DataError, match="does not exist"):
        load_prompts(FileData(path=str(tmp_path / "no" / "row.jsonl")), held_out=0)


def test_messages_without_chat_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(turns(("user", "x")))
    with pytest.raises(DataError, match=r"a\.jsonl:2: 'prompt' holds chat messages, and data\.chat is false"):
        load_prompts(FileData(path=str(tmp_path / "a.jsonl"), chat=False), held_out=0)


def test_too_few_rows_to_keep_some_aside(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(GOOD * 4)
    expected = re.escape("a.jsonl has 4 rows, and 4 are to be kept aside: none is left to train on")
    with pytest.raises(DataError, match=expected + r"\n.*evaluation\.prompts \(0 to 3"):
        load_prompts(FileData(path=str(tmp_path / "a.jsonl")), held_out=4)


def test_an_answer_column_asked_for_by_name_must_exist(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "x", "solution": "5"}\n')
    columns = {"answer": "soluton"}
    with pytest.raises(DataError, match=r"no row: no column 'soluton'; .*\n.*data\.columns\.answer: solution"):
        load_prompts(FileData.model_validate({"path": str(tmp_path / "a.jsonl"), "columns": columns}), held_out=0)

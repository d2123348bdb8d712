"""Rows of JSONL, JSON, CSV and Parquet files. Every row keeps its line for complaints."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from grpo_core.data.rows import Row, nearest
from grpo_core.errors import DataError


def read_rows(path: Path) -> list[Row]:
    """All rows of a file; the ending names the format.

    Raises DataError for a file that is absent, a folder, of an unknown format, damaged, or without rows.
    """
    name = path.name.lower()
    reader = next((reader for ending, reader in _READERS.items() if name.endswith(ending)), None)
    if path.is_dir():
        raise DataError(
            f"{path} is a folder",
            fix=f"name a file in it, or read it whole with data: {{kind: hub, name: {path}}}",
        )
    if reader is None:
        raise DataError(
            f"{path}: the ending {path.suffix!r} names no known format",
            fix=f"use one of {', '.join(_READERS)}",
        )
    if not path.is_file():
        neighbour = nearest(path.name, [other.name for other in path.parent.glob("*")])
        hint = f"there is {neighbour} beside it" if neighbour else "it is read from the folder you start in"
        raise DataError(f"{path} does not exist", fix=f"check data.path: {hint}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes)", fix="write at least one row")
    rows = list(reader(path))
    if not rows:
        raise DataError(f"{path} has no rows", fix="write at least one row")
    return rows


def _text(path: Path) -> str:
    """The decoded file, unpacked when it ends in .gz, without a byte order mark."""
    data = path.read_bytes()
    if path.suffix.lower() == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{path} is not a whole gzip file ({error})", fix="pack it again, or name the unpacked file"
            ) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise DataError(f"{path}:{line}: byte 0x{byte:02x} is not UTF-8", fix="save the file as UTF-8") from None


def _jsonl(path: Path) -> Iterator[Row]:
    number = 0
    for line, text in enumerate(_text(path).split("\n"), 1):
        if not text.strip():
            continue
        number += 1
        try:
            value = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(
                f"{path}:{line}: not valid JSON ({_why(error)})",
                fix="write one JSON object per line, in double quotes",
            ) from None
        yield _object(f"{path}:{line}", number, value)


def _json(path: Path) -> Iterator[Row]:
    try:
        items = json.loads(_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        at = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        several = "Extra data" in str(error)
        fix = "one object per line is JSON Lines: rename it to .jsonl" if several else "mend the file"
        raise DataError(f"{path}{at}: not valid JSON ({_why(error)})", fix=fix) from None
    if not isinstance(items, list):
        raise DataError(f"{path} holds one JSON value, not a list of rows", fix="write [{...}, {...}]")
    for number, value in enumerate(items, 1):
        yield _object(f"{path}: row {number}", number, value)


def _why(error: json.JSONDecodeError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, column {error.colno}"
    return "nested too deep"


def _object(place: str, number: int, value: object) -> Row:
    if not isinstance(value, dict):
        raise DataError(
            f"{place}: the row is {json.dumps(value)[:40]}, not an object",
            fix='write {"prompt": ..., "answer": ...}',
        )
    return Row(place, number, value)


def _csv(path: Path) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    header: list[str] | None = None
    number, line = 0, 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise DataError(
                f"{path}:{line}: not valid CSV ({error})",
                fix="close every quote, and double quotes inside a cell",
            ) from None
        if cells is None:
            return
        if header is None:
            header = _header(f"{path}:{line}", cells)
        elif cells:
            number += 1
            if len(cells) != len(header):
                raise DataError(
                    f"{path}:{line}: {len(cells)} cells, but the header has {len(header)} columns",
                    fix="put cells that contain a comma or a line break in double quotes",
                )
            yield Row(f"{path}:{line}", number, dict(zip(header, cells, strict=True)))
        line = reader.line_num + 1


def _header(place: str, names: list[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{place}: the column {twice[0]!r} occurs twice", fix="give every column its own name")
    return names


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} is not a readable Parquet file ({reason})", fix="write it again") from None
    for number, values in enumerate(table.to_pylist(), 1):
        yield Row(f"{path}: row {number}", number, values)


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _jsonl,
    ".jsonl.gz": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}

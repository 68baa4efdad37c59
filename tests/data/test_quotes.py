"""Quoted csv, as pandas and others write it: read alike in memory and by `shoal prepare`."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.config.schema import DataSection
from shoal.data.loading.load import load_dataset
from shoal.data.prepared.folder import PrepareJob
from shoal.data.prepared.preparation import prepare
from shoal.data.sources import text
from shoal.data.sources.csv import CellFormat, read_cells
from shoal.data.sources.text import Lines

FIELDS = {"user": "User-ID", "item": "ISBN", "rating": "Book-Rating"}
HEAD = '"User-ID";"ISBN";"Book-Rating"'
GOOD = [f'"u{n % 7}";"i{n % 5}";"{n % 10}"' for n in range(60)]


@pytest.mark.parametrize("seed", range(30))
def test_polars_reads_quotes_only_where_it_reads_what_csv_reads(seed: int) -> None:
    """Whatever stands in a text: where Polars reads it, cells and lines are those of csv."""
    random = np.random.default_rng(seed)
    num_read = 0
    for _ in range(400):
        body = "".join(random.choice(list('"";;ab\n'), random.integers(1, 14)))
        row_lines = CellFormat(";").row_lines(body.encode(), 2)
        if row_lines is None or "\n\n" in body or body[0] == "\n" or body[-1] == "\n":
            continue
        reader = csv.reader(io.StringIO(body, newline=""), delimiter=";", strict=True)
        rows, lines = [], []
        first = 0
        for row in reader:
            rows.append([cell or None for cell in row])
            lines.append(first)
            first = reader.line_num
        frame, numbers, skipped = read_cells(
            body.encode(), ["x", "y"], CellFormat(";"), ["x", "y"], Lines("text", 0)
        )
        assert [list(row) for row in frame.rows()] == rows, body
        assert row_lines.tolist() == lines, body
        assert numbers is None or numbers.tolist() == lines, body
        assert skipped == 0
        num_read += 1
    assert num_read


@pytest.mark.parametrize("title", ['"a, b"', '"a ""b"" c"', '"a\nb"', '""'])
def test_sound_quotes_are_read_at_once(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Separators, quotes and ends of lines within a cell need no line by line reading."""
    monkeypatch.setattr(CellFormat, "rows", lambda *arguments: pytest.fail("line by line"))
    body = f"1,{title},x\n2,c,x".encode()
    names = ["id", "title", "last"]
    frame, numbers, _ = read_cells(body, names, CellFormat(","), names, Lines("text", 2))
    expected = next(csv.reader(io.StringIO(title, newline="")))[0]
    assert frame["title"].to_list() == [expected or None, "c"]
    assert numbers is None or numbers.tolist() == [2, 4]


def write(folder: Path, rows: list[str], encoding: str = "latin-1") -> Path:
    path = folder / "BX.csv"
    path.write_bytes("\r\n".join([HEAD, *rows, ""]).encode(encoding))
    return path


def section(path: Path, **more: Any) -> DataSection:
    given = {"path": str(path.parent), "fields": FIELDS, "cache": False, "encoding": "latin-1"}
    return DataSection.model_validate({**given, "split": {"order": "file"}, **more})


def in_memory(path: Path, **more: Any) -> Any:
    return load_dataset(section(path, files={"inter": path.name}, **more), 1)


def prepared(path: Path, **more: Any) -> Any:
    config = section(path, **more)
    prepare(PrepareJob([str(path)], path.parent / "made", config))
    return load_dataset(config.model_copy(update={"path": str(path.parent / "made")}), 1)


@pytest.mark.parametrize("read", [in_memory, prepared])
@pytest.mark.parametrize("rows", ["plain", "odd"])
def test_quoted_cells(read: Any, rows: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(text, "TEXT_BYTES", 1 << 16)
    odd = ['"u1";"a;b";"3"', '"ü";"say ""it""";"4"'] if rows == "odd" else []
    given = [*GOOD * 300, *odd, '"u9";"last";"7"']
    data = read(write(tmp_path, given))
    assert data.num_inter == len(given) and data.vocab["ISBN"][-1] == "last"
    assert {"a;b", 'say "it"'} <= set(data.vocab["ISBN"]) or rows == "plain"
    assert ("ü" in data.vocab["User-ID"]) == (rows == "odd")
    assert data.inter["Book-Rating"][-1] == 7.0


@pytest.mark.parametrize("read", [in_memory, prepared])
def test_an_escape_character(read: Any, tmp_path: Path) -> None:
    path = write(tmp_path, [*GOOD, r'"u1";"0 7336\"5 X";"3"', r'"u1";"a\\b";"3"'])
    with pytest.raises(ValueError, match=r"BX\.csv, line 62: .*data\.escape, such as \\"):
        read(path)
    assert {'0 7336"5 X', "a\\b"} <= set(read(path, escape="\\").vocab["ISBN"])


BAD = {
    "escaped": r'"u1";"\"b";"3"',
    "never closed": '"u1";"b;3',
    "never closed at the end of a cell": 'u1;b;"3',
    "too many": '"u1";"b";"3";"4"',
    "a word": '"u1";"b";"three"',
    "empty": '"";"b";"3"',
}


@pytest.mark.parametrize("read", [in_memory, prepared])
@pytest.mark.parametrize("kind", BAD)
def test_bad_rows_are_left_out_and_counted_one_by_one(read: Any, kind: str, tmp_path: Path) -> None:
    """A row that is badly quoted costs itself, not those behind it."""
    path = write(tmp_path, [*GOOD[:20], BAD[kind], *GOOD[20:], BAD[kind]])
    with pytest.raises(ValueError, match=r"BX\.csv, line 22: .*"):
        read(path)
    data = read(path, bad_rows="skip")
    assert data.num_inter == 60 and data.left_out == {"data.bad_rows": 2}


@pytest.mark.parametrize("read", [in_memory, prepared])
def test_nothing_quotes(read: Any, tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    named = {"user": '"User-ID"', "item": '"ISBN"', "rating": "none"}
    assert '"i3"' in read(path, quote=None, fields=named).vocab['"ISBN"']


def test_the_first_of_only_bad_rows_is_shown(tmp_path: Path) -> None:
    path = write(tmp_path, [row.replace('"', "") + ";x" for row in GOOD])
    with pytest.raises(
        ValueError, match=r"all 60 are bad.*BX\.csv, line 2: 4 cells where"
    ) as caught:
        in_memory(path, bad_rows="skip")
    assert "bad_rows=skip" not in str(caught.value)


def test_a_cell_over_two_lines(tmp_path: Path) -> None:
    path = write(tmp_path, [*GOOD, '"u1";"two\nlines";"3"'])
    assert "two\nlines" in in_memory(path).vocab["ISBN"]
    with pytest.raises(ValueError, match=r"line 62: a cell goes over the end of its line"):
        prepared(path)


def test_an_encoding_without_lines_is_not_prepared(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "utf-16")
    assert in_memory(path, encoding="utf-16").num_inter == 60
    with pytest.raises(ValueError, match="cannot be read some lines at a time"):
        prepared(path, encoding="utf-16")

"""Formats of click logs: what a line means, and what is said about one that means nothing."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.clicks.layout import Layout
from shoal.clicks.lines import LineBlock
from shoal.clicks.log import ClickLog, make_layout, pick_format
from shoal.clicks.samples import Samples, join
from shoal.clicks.slots import native_parser, plain_parser
from shoal.clicks.stream import load
from shoal.config.schema import ClicksSection, DataSection
from shoal.data.batch import Jagged
from shoal.data.sources.files import find_files
from shoal.kernels.core import has_core

SMALL = Layout(("1", "2", "x"), ("d", "d"), "click")
native = pytest.mark.skipif(not has_core(), reason="no native core was built")
PARSERS = [plain_parser, pytest.param(native_parser, marks=native)]


def parse(parser, text: bytes, layout: Layout = SMALL) -> Samples:
    block = LineBlock(text, parser(layout), "log.txt", 1)
    return block.samples(slice(None))


def real(folder: str) -> Path:
    root = os.environ.get("SHOAL_TEST_DATA")
    if root is None or not (Path(root) / folder).is_dir():
        pytest.skip(f"SHOAL_TEST_DATA names no folder with {folder}/ in it")
    return Path(root) / folder


def read(tmp_path: Path, text: str | bytes, form: str, **section) -> Samples:
    file = tmp_path / f"log.{form}"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    layout = make_layout(ClicksSection(**section), form)
    return load(ClickLog([file], form, layout))


# ---- lines of slots ---------------------------------------------------------------------------


@pytest.mark.parametrize("parser", PARSERS)
def test_a_line_of_slots(parser) -> None:
    text = b"click:0 d:0.5 d:-2e1 1:7 2:-3 x:9223372036854775807\n\n"
    text += b"x:5 click:1 d:.25 d:3.\r\nclick:1 d:0 d:1e-3 2:0008"  # no newline at the end
    found = parse(parser, text)
    assert found.labels.tolist() == [0, 1, 1]
    assert found.dense.tolist() == [[0.5, -20.0], [0.25, 3.0], [0.0, float(np.float32(1e-3))]]
    assert found.ids.tolist() == [[7, -3, 2**63 - 1], [0, 0, 5], [0, 8, 0]]
    assert found.labels.dtype == np.float32 and found.ids.dtype == np.int64


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("end", [" ", "  ", "\t", " \r", "\r\r", " \t \r"])
def test_white_space_at_the_end_of_a_line_is_passed_over(parser, end: str) -> None:
    """Also where the last token is a number or a key that is passed over."""
    text = f"click:1 d:1 d:2 x:4{end}\nx:5 click:0 d:1 d:2.5{end}\n1:6 1:7 d:3 d:4 click:1{end}"
    found = parse(parser, text.encode())
    assert found.labels.tolist() == [1, 0, 1]
    assert found.dense.tolist() == [[1, 2], [1, 2.5], [3, 4]]
    assert found.ids.tolist() == [0, 0, 4, 0, 0, 5, 6, 7, 0, 0]


@pytest.mark.parametrize("parser", PARSERS)
def test_a_slot_with_several_ids_becomes_lists(parser) -> None:
    found = parse(parser, b"click:0 d:1 d:2 x:4 1:7 1:8 1:7\nclick:1 d:3 d:4 2:5\n")
    batch = found.batch()
    slots = batch.ids["slots"]
    assert isinstance(slots, Jagged)
    assert slots.values.tolist() == [7, 8, 7, 0, 4, 0, 5, 0]
    assert slots.offsets.tolist() == [0, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("click:2 d:1 d:2", "click is '2'; a label is 0 or 1"),
        ("d:1 d:2 1:5", "has no click"),
        ("click:0 click:1 d:1 d:2", "click comes twice"),
        ("click:0 d:1", "d comes 1 times, not 2"),
        ("click:0 d:1 d:2 d:3", "d comes 3 times, not 2"),
        ("click:0 d:1 d:nan", "d is 'nan'; it must be a finite number"),
        ("click:0 d:1 d:1e39", "d is '1e39'; it must be a finite number"),
        ("click:0 d:1 d:1_0", "d is '1_0'; it must be a finite number"),
        ("click:0 d:1 d:", "d is ''; it must be a finite number"),
        ("click:0 d:1 d:2 1:9223372036854775808", "does not fit 64 bits"),
        ("click:0 d:1 d:2 1:-9223372036854775809", "does not fit 64 bits"),
        ("click:0 d:1 d:2 1:5.0", "slot 1 holds '5.0'; an id is a whole number"),
        ("click:0 d:1 d:2 1:", "slot 1 holds ''; an id is a whole number"),
        ("click:0  d:1 d:2", "a space too many"),
        (" click:0 d:1 d:2", "a space too many"),
        (" \t", "a space too many"),
        ("click:0 d:1 d:2 7", "found '7'; tokens are KEY:VALUE"),
        ("click:0 d:1 d:2 :7", "found ':7'; tokens are KEY:VALUE"),
        ("clack:0 d:1 d:2", "the others; did you mean click?"),
    ],
)
def test_a_bad_line_is_named(parser, line: str, said: str) -> None:
    text = "click:0 d:1 d:2\n\nclick:1 d:1 d:2 1:4\n" + line + "\nclick:7\n"
    with pytest.raises(ValueError) as caught:
        parse(parser, text.encode())
    assert str(caught.value).startswith("log.txt, line 4: ") and said in str(caught.value)


@pytest.mark.parametrize("parser", PARSERS)
def test_keys_that_are_not_named_can_be_passed_over(parser) -> None:
    layout = Layout(("2",), (), "click", others=True)
    assert parse(parser, b"click:0 1:5 2:6 d:x\n", layout).ids.tolist() == [[6]]


NUMBERS = st.one_of(
    st.floats(allow_nan=False, width=32).map(repr),
    st.from_regex(r"[+-]?[0-9]{0,25}\.?[0-9]{0,25}(e[+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(["inf", "nan", "-", "1e", "0x1p3", ".", "1e400", "-1e-400"]),
)
IDS = st.one_of(st.integers(-(2**64), 2**64).map(str), st.sampled_from(["", "-", "1 ", "+1", "a"]))
TOKENS = st.one_of(
    st.tuples(st.sampled_from(["1", "2", "x"]), IDS),
    st.tuples(st.sampled_from(["d"]), NUMBERS),
    st.tuples(st.sampled_from(["click", "12", ""]), st.sampled_from(["0", "1", "2"])),
).map(":".join)
LINES = st.lists(TOKENS, max_size=5).map(lambda more: " ".join(["click:1 d:1 d:2", *more]))
ENDS = st.sampled_from(["", "", " ", "\t", "\r", " \t ", "\t \t", " \x0b", "\t 1:5"])
SOUND = st.tuples(NUMBERS, NUMBERS, IDS).map(lambda t: f"click:0 d:{t[0]} d:{t[1]} 2:{t[2]}")


@native
@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.one_of(LINES, SOUND), ENDS).map("".join), min_size=1, max_size=4))
def test_the_core_and_the_reference_agree(lines: list[str]) -> None:
    results: list[object] = []
    for parser in (plain_parser, native_parser):
        try:
            found = parse(parser, "\n".join(lines).encode())
        except ValueError as error:
            results.append(str(error))
        else:
            offsets = None if found.offsets is None else found.offsets.tolist()
            bits = found.dense.view(np.int32).tolist()
            results.append((found.labels.tolist(), bits, found.ids.tolist(), offsets))
    assert results[0] == results[1]


def test_the_real_slots_file() -> None:
    """Against a plain reading of every line."""
    file = real("slots") / "criteo_slots_80.txt"
    found = load(ClickLog([file], "slots", make_layout(ClicksSection(), "slots")))
    lines = file.read_text().split("\n")
    tokens = [[token.split(":") for token in line.split()] for line in lines if line]
    assert len(found) == 80
    assert found.labels.tolist() == [float(one[0][1]) for one in tokens]
    assert found.ids.tolist() == [[int(value) for _, value in one[14:]] for one in tokens]
    dense = [[float(value) for _, value in one[1:14]] for one in tokens]
    np.testing.assert_array_equal(found.dense, np.array(dense, np.float32))


# ---- Criteo, csv, Parquet ---------------------------------------------------------------------


def criteo_line(label: str = "0", dense: str = "", word: str = "") -> str:
    return "\t".join([label, *[dense] * 13, *[word] * 26])


def test_criteo(tmp_path: Path) -> None:
    text = "\n".join([criteo_line("1", "5", "68fd1e64"), criteo_line("0", "-3"), criteo_line()])
    found = read(tmp_path, text, "criteo")
    assert found.labels.tolist() == [1, 0, 0]
    assert found.dense[0].tolist() == [float(np.float32(math.log(6)))] * 13
    assert not found.dense[1:].any()
    assert len(set(found.ids[0].tolist())) == 26 and (found.ids[0] > 0).all()
    assert not found.ids[1:].any()  # missing is the id 0
    named = "\t".join(["label", *[f"I{k}" for k in range(13)], *[f"C{k}" for k in range(26)]])
    headed = read(tmp_path, named + "\n" + text, "criteo")
    assert headed.ids.tolist() == found.ids.tolist()
    folded = read(tmp_path, text, "criteo", rows=50)
    assert folded.ids[0].min() >= 1 and folded.ids[0].max() < 50 and not folded.ids[1:].any()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (criteo_line("2"), "label is '2'; a label is 0 or 1"),
        (criteo_line("1", "1.5"), "I1 is '1.5'; it must be a whole number"),
        (criteo_line("") + "\t", "has 41 cells, not 40"),
        (criteo_line(""), "label is ''"),
    ],
)
def test_bad_criteo(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"log\.criteo, line 3: ") as caught:
        read(tmp_path, criteo_line() + "\n\n" + line + "\n", "criteo")
    assert said in str(caught.value)


def test_the_real_criteo_sample() -> None:
    file = real("criteo") / "criteo_train.csv"
    assert pick_format(DataSection(clicks=ClicksSection(train=str(file)))) == "criteo"
    found = load(ClickLog([file], "criteo", make_layout(ClicksSection(), "criteo")))
    rows = [line.split("\t") for line in file.read_text().split("\n") if line]
    assert len(found) == 7200
    assert found.labels.tolist() == [float(row[0]) for row in rows]
    dense = [[math.log1p(max(float(cell or 0), 0)) for cell in row[1:14]] for row in rows]
    np.testing.assert_allclose(found.dense, dense, rtol=1e-6)
    words = [(k, cell) for row in rows for k, cell in enumerate(row[14:])]
    ids = found.ids.reshape(-1).tolist()
    assert all((i == 0) == (word[1] == "") for i, word in zip(ids, words))
    # No two (column, string) share an id, and each has one.
    distinct = {word for word in words if word[1]}
    assert len(dict(zip(words, ids))) == len(set(zip(words, ids)))
    assert len(set(ids) - {0}) == len(distinct)


CSV = "label,site,age,C2\n1,abc,0.5,77\n0,,,abc\n1,averylongtokenindeed,-1e2,-5\n"
CSV_COLUMNS = {"slots": ["site", "C2"], "dense": ["age"]}


def test_csv(tmp_path: Path) -> None:
    found = read(tmp_path, CSV, "csv", **CSV_COLUMNS)
    assert found.labels.tolist() == [1, 0, 1]
    assert found.dense.tolist() == [[0.5], [0.0], [-100.0]]
    assert found.ids[:, 1].tolist()[::2] == [77, -5]
    assert found.ids[1, 0] == 0 and found.ids[0, 0] > 0
    assert found.ids[1, 1] != found.ids[0, 0]  # the same word in another slot
    again = read(tmp_path, CSV.replace(",", "\t"), "csv", **CSV_COLUMNS)
    assert again.ids.tolist() == found.ids.tolist()
    changed = CSV.replace("averylongtokenindeed", "averylongtokenindeeD")
    assert read(tmp_path, changed, "csv", **CSV_COLUMNS).ids[2, 0] != found.ids[2, 0]


def test_csv_without_dense_values(tmp_path: Path) -> None:
    found = read(tmp_path, CSV, "csv", slots=["site"], dense=0)
    assert found.dense.shape == (3, 0) and found.take(np.array([2, 0])).labels.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("text", "section", "said"),
    [
        (CSV, {"slots": ["sites"]}, "no column 'sites' (data.clicks.slots); its columns are label"),
        (CSV, {"slots": ["site"], "label": "clicked"}, "no column 'clicked' (data.clicks.label)"),
        (CSV + '1,"a",1,2\n', CSV_COLUMNS, "line 5: quoted cells are not read"),
        (CSV + "1,a,x,2\n", CSV_COLUMNS, "line 5: age is 'x'; it must be a finite number"),
        (CSV + "1,a,.,2\n", CSV_COLUMNS, "line 5: age is '.'; it must be a finite number"),
        (CSV + "1,a,inf,2\n", CSV_COLUMNS, "line 5: age is 'inf'"),
        (CSV + "0.5,a,1,2\n", CSV_COLUMNS, "line 5: label is '0.5'; a label is 0 or 1"),
        (CSV + "1,a,1\n", CSV_COLUMNS, "line 5: has 3 cells, not 4"),
        ("label,a,a\n", {"slots": ["a"]}, "two columns are named 'a'"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, section: dict, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(tmp_path, text, "csv", **section)
    assert said in str(caught.value) and "log.csv" in str(caught.value)


def test_parquet(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        {
            "label": [1, 0, 1],
            "site": ["abc", None, "averylongtokenindeed"],
            "age": [0.5, None, -100.0],
            "C2": [[1, 2], [], [3]],
        }
    )
    frame.write_parquet(tmp_path / "log.parquet")
    layout = make_layout(ClicksSection(**CSV_COLUMNS), "parquet")
    found = load(ClickLog([tmp_path / "log.parquet"], "parquet", layout))
    text = read(tmp_path, CSV, "csv", **CSV_COLUMNS)
    assert found.labels.tolist() == [1, 0, 1] and found.dense.tolist() == text.dense.tolist()
    assert found.offsets.tolist() == [0, 1, 3, 4, 5, 6, 7]
    site = text.ids[:, 0].tolist()  # the same words have the same ids in both formats
    assert found.ids.tolist() == [site[0], 1, 2, site[1], 0, site[2], 3]
    frame.with_columns(label=pl.Series([1, 0, 3])).write_parquet(tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match=r"bad\.parquet, row 3: label is 3"):
        load(ClickLog([tmp_path / "bad.parquet"], "parquet", layout))
    (tmp_path / "no.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        load(ClickLog([tmp_path / "no.parquet"], "parquet", layout))


# ---- columns, files, formats ------------------------------------------------------------------


def test_folding_keeps_what_fits_and_never_makes_a_zero() -> None:
    layout = Layout(("1",), (), "click", rows=10)
    ids = np.array([0, 1, 9, 10, 18, 19, -1, -9, 2**63 - 1, -(2**63)])
    found = layout.fold(ids).tolist()
    assert found == [i if 0 <= i < 10 else 1 + (i - 1) % 9 for i in ids.tolist()]
    assert Layout(("1",), (), "click", rows=1).fold(np.array([5, 0])).tolist() == [0, 0]


def test_taking_slicing_and_joining_lists() -> None:
    text = b"click:0 d:1 d:2 1:1 1:2\nclick:1 d:3 d:4 2:3 x:4 x:5\nclick:0 d:5 d:6\n"
    found = parse(plain_parser, text)
    lists = [[[1, 2], [0], [0]], [[0], [3], [4, 5]], [[0], [0], [0]]]

    def as_lists(samples: Samples) -> list[list[list[int]]]:
        ids, offsets = samples.ids.tolist(), samples.offsets.tolist()
        flat = [ids[a:b] for a, b in pairwise(offsets)]
        return [flat[k : k + 3] for k in range(0, len(flat), 3)]

    assert as_lists(found) == lists
    assert as_lists(found.take(np.array([2, 0, 1, 0]))) == [lists[k] for k in (2, 0, 1, 0)]
    assert as_lists(found.cut(1, 3)) == lists[1:]
    plain = parse(plain_parser, b"click:1 d:7 d:8 1:9\n")
    both = join([plain, found.cut(0, 1)])
    assert as_lists(both) == [[[9], [0], [0]], lists[0]]
    assert both.dense.tolist() == [[7, 8], [1, 2]] and both.labels.tolist() == [1, 0]


def test_finding_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", ".hidden", "c.csv"):
        (tmp_path / name).touch()
    root = str(tmp_path)
    assert [f.name for f in find_files(".", root, "data.clicks.train")] == [
        "a.txt",
        "b.txt",
        "c.csv",
    ]
    assert [f.name for f in find_files("*.txt", root, "data.clicks.train")] == ["a.txt", "b.txt"]
    assert find_files("c.csv", root, "data.clicks.train") == [tmp_path / "c.csv"]
    assert find_files(str(tmp_path / "c.csv"), "elsewhere", "data.clicks.train") == [
        tmp_path / "c.csv"
    ]
    with pytest.raises(ValueError, match=r"data\.clicks\.valid: .*no\* is neither a file"):
        find_files("no*", root, "data.clicks.valid")


def test_the_format_of_a_file(tmp_path: Path) -> None:
    def picked(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return pick_format(DataSection(path=str(tmp_path), clicks=ClicksSection(train=name)))

    assert picked("log", "click:0 1:5\n") == "slots"
    assert picked("log.csv", CSV) == "csv"
    assert picked("log.csv", criteo_line() + "\n") == "criteo"
    with pytest.raises(ValueError, match=r"set data\.format"):
        picked("log", "what is this\n")
    with pytest.raises(ValueError, match="has no clicks"):
        pick_format(DataSection(format="atomic"))


@pytest.mark.parametrize(
    ("section", "form", "said"),
    [
        ({"slots": ["1", "1"]}, "slots", "'1' is named twice"),
        ({"slots": 0, "dense": 0}, "slots", "neither slots nor dense"),
        ({}, "csv", "data.clicks.slots must name the columns"),
        ({"slots": 3}, "criteo", "raw Criteo has 26"),
    ],
)
def test_impossible_columns(section: dict, form: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_layout(ClicksSection(**section), form)

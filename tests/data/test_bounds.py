"""Files that would fill memory or the stack: one error each, before they are read."""

from __future__ import annotations

import gzip
import io
import json
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shoal.clicks.layout import Layout
from shoal.clicks.log import ClickLog
from shoal.clicks.stream import load as load_clicks
from shoal.config.schema import DataSection
from shoal.data import arrow_counts, bounded_files, parquet_counts
from shoal.data.bounded_files import (
    LONGEST_LINE,
    MOST_COLUMNS,
    MOST_DEPTH,
    MOST_LOADED,
    most_bytes,
)
from shoal.data.dataset import Dataset
from shoal.data.loading.load import load_dataset
from shoal.data.prepared.folder import PrepareJob
from shoal.data.prepared.preparation import prepare
from shoal.data.sources.columnar import check_text
from shoal.data.sources.jsonl import SCHEMA_BYTES, infer_schema
from shoal.data.sources.roles import roles_of
from shoal.data.sources.tables import columns_of
from shoal.data.sources.text import Lines

MIB = 1 << 20
ROWS = 12_000_000  # of two columns: 192 MB of numbers
REMEDY = r"200 times the file or 64 MiB.*data\.load\.inter.*csv"


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bombs")
    same = np.zeros(ROWS, np.int32)
    frame = pl.DataFrame({"user_id": same, "item_id": same})
    frame.write_parquet(folder / "rows.parquet")
    frame.write_ipc(folder / "rows.arrow", compression="zstd")
    frame.write_ipc_stream(folder / "stream.arrow", compression="zstd")
    text = pl.DataFrame({"user_id": ["x" * 60_000] * 2_000, "item_id": np.zeros(2_000, np.int32)})
    text.write_parquet(folder / "text.parquet")
    lists = pl.DataFrame({"user_id": [1], "item_id": [1], "more": [same]})
    lists.write_parquet(folder / "lists.parquet")
    return folder


def trained(path: Path) -> Dataset:
    section = {"path": str(path.parent), "files": {"inter": path.name}, "cache": False}
    return load_dataset(DataSection.model_validate(section), 1)


def prepared(path: Path) -> object:
    everything = DataSection(load={"inter": ["*"]})
    return prepare(PrepareJob([str(path)], path.parent / "made", everything))


def clicked(path: Path) -> object:
    layout = Layout(("user_id",), (), "item_id", None, True)
    return load_clicks(ClickLog([path], "parquet", layout))


def grown(work: Callable[[], object]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10


@pytest.mark.parametrize("read", [trained, prepared])
@pytest.mark.parametrize(
    "name", ["rows.parquet", "rows.arrow", "stream.arrow", "text.parquet", "lists.parquet"]
)
def test_a_small_file_that_becomes_large(
    read: Callable[[Path], object], name: str, bombs: Path
) -> None:
    path = bombs / name
    assert path.stat().st_size < MIB // 2

    def work() -> None:
        with pytest.raises(ValueError, match=REMEDY):
            read(path)

    assert grown(work) < 100 * MIB


@pytest.mark.parametrize("name", ["rows.parquet", "text.parquet"])
def test_a_click_log_that_becomes_large(name: str, bombs: Path) -> None:
    with pytest.raises(ValueError, match=REMEDY):
        clicked(bombs / name)


def test_columns_that_are_not_read_do_not_count(bombs: Path) -> None:
    config = {"path": str(bombs), "files": {"inter": "lists.parquet"}, "cache": False}
    config["load"] = {"inter": ["user_id", "item_id"]}
    config["split"] = {"ratio": [1, 0, 0]}
    assert load_dataset(DataSection.model_validate(config), 1).num_inter == 1


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_many_real_rows_are_read(form: str, tmp_path: Path) -> None:
    """What a file holds is bounded by its size, never by a number of rows."""
    draw = np.random.default_rng(1)
    rows = 5_000_000
    users = np.sort(draw.integers(0, 100_000, rows)).astype(np.int32)
    frame = pl.DataFrame({"user_id": users, "item_id": draw.integers(0, 5_000, rows)})
    frame = frame.with_columns(event=pl.lit("view"), weight=pl.lit(1.0), time=pl.lit(7))
    path = tmp_path / f"a.{form}"
    frame.write_parquet(path) if form == "parquet" else frame.write_ipc(path, compression="zstd")
    assert rows * 8 * 5 > 64 * MIB  # else any file may become so much
    if form == "parquet":
        parquet_counts.check_content(path)
    else:
        arrow_counts.check_content(path)
    assert most_bytes(path.stat().st_size) > 4 * rows * 8 * 5


@pytest.mark.parametrize("form", ["parquet", "arrow", "stream", "csv", "jsonl"])
def test_too_many_columns(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_COLUMNS == 65_536
    for module in (bounded_files, parquet_counts, arrow_counts):
        monkeypatch.setattr(module, "MOST_COLUMNS", 100)
    frame = pl.DataFrame({"user_id": [1], "item_id": [1]})
    frame = frame.with_columns(**{f"c{k}": pl.lit(k) for k in range(99)})
    path = tmp_path / f"wide.{form.replace('stream', 'arrow')}"
    writers = {"parquet": "write_parquet", "arrow": "write_ipc", "stream": "write_ipc_stream"}
    writers |= {"csv": "write_csv", "jsonl": "write_ndjson"}
    getattr(frame, writers[form])(path)
    with pytest.raises(ValueError, match=r"wide\.\w+ has 101 columns; at most 100 are read"):
        trained(path)


def test_objects_with_different_keys(tmp_path: Path) -> None:
    lines = [json.dumps({"user_id": 1, "item_id": 2, f"k{n}": 1}) for n in range(4_000)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"4,000 rows of 4,002 columns"):
        trained(tmp_path / "a.jsonl")


@pytest.mark.parametrize("packed", [False, True])
def test_keys_that_fill_more_than_a_block_of_the_file(packed: bool, tmp_path: Path) -> None:
    """The first object is read whole, however long: its keys are the columns."""
    wide = {f"k{n}": 1 for n in range(60_000)}
    lines = [json.dumps({**wide, "user_id": n % 9, "item_id": n % 7}) for n in range(20)]
    text = "\n".join(lines).encode()
    path = tmp_path / ("a.jsonl.gz" if packed else "a.jsonl")
    path.write_bytes(gzip.compress(text) if packed else text)
    columns = columns_of(path, DataSection())
    assert len(columns) == 60_002 and columns[-2:] == ["user_id", "item_id"]
    assert roles_of(columns) == {"user": "user_id", "item": "item_id"}


def test_keys_of_later_lines_are_counted_before_they_are_read(tmp_path: Path) -> None:
    """Every object has keys of its own: Polars alone would take hours to find all of them."""
    lines = [f'{{"user_id": {n % 99}, "item_id": {n % 7}, "k{n}": 1}}' for n in range(300_000)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"a\.jsonl has 6\d,\d+ columns; at most 65,536 are read"):
        trained(tmp_path / "a.jsonl")


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_too_many_columns_to_read(form: str, tmp_path: Path) -> None:
    """Every column that is read becomes files: the error comes before the rows are read."""
    assert MOST_LOADED == 8_192
    frame = pl.DataFrame({"user_id": [1, 2, 3], "item_id": [1, 2, 3]})
    frame = frame.with_columns(pl.lit(k).alias(f"c{k}") for k in range(MOST_LOADED - 1))
    path = tmp_path / f"wide.{form}"
    frame.write_csv(path) if form == "csv" else frame.write_ndjson(path)
    with pytest.raises(ValueError, match=r"8,193 columns would be read.*\(data\.load\.inter\)"):
        trained(path)
    files = {"inter": path.name}
    load = {"inter": ["user_id", "item_id"]}
    section = {"path": str(tmp_path), "files": files, "cache": False, "load": load}
    section["split"] = {"ratio": [1, 0, 0]}
    assert load_dataset(DataSection.model_validate(section), 1).num_inter == 3


def test_a_line_without_an_end(tmp_path: Path) -> None:
    short = '{"user_id": 1, "item_id": 2}\n'
    line = f'{{"user_id": 1, "item_id": 2, "x": "{"x" * LONGEST_LINE}"}}\n'
    (tmp_path / "a.jsonl").write_text(short * 3000 + line)
    with pytest.raises(ValueError, match=r"a\.jsonl: a line has more than 16777216 bytes"):
        trained(tmp_path / "a.jsonl")


def test_long_lines_are_sampled_whole(tmp_path: Path) -> None:
    """A line may be longer than a place of the sample that shows how columns are read."""
    row = {"user_id": 1, "item_id": 2, "x": "x" * 60_000, "y": "y" * 60_000, "z": "z" * 60_000}
    lines = [json.dumps({**row, "user_id": n}) for n in range(20)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert trained(tmp_path / "a.jsonl").num_inter == 20


@pytest.mark.parametrize(
    "values", [(1, 1.5), (1, "a"), (None, [1]), ([], ["a"]), ([1], [1.5]), ({"a": 1}, {"b": 2})]
)
def test_types_of_blocks_agree(values: tuple[object, object]) -> None:
    """A key's type is that of all lines, in whichever blocks they are."""
    texts = [json.dumps({"user_id": 1, "x": value}) for value in values]
    body = "\n".join([texts[0]] * 4_000 + [texts[1]] * 4_000).encode()
    assert len(body) > 2 * SCHEMA_BYTES
    schema, _ = infer_schema(body, ["user_id", "x"], Lines("a.jsonl", 1))
    whole = pl.scan_ndjson(io.BytesIO(body), infer_schema_length=None).collect_schema()
    assert schema == whole


@pytest.mark.parametrize("depth", [MOST_DEPTH + 1, 100_000])
@pytest.mark.parametrize("closed", [True, False])
def test_lines_that_are_nested_deep(depth: int, closed: bool, tmp_path: Path) -> None:
    sound = '{"user_id": 1, "item_id": 2, "note": "[[[["}\n' * 50
    deep = "[" * (depth - 1) + "]" * (depth - 1) * closed
    (tmp_path / "a.jsonl").write_text(sound + '{"user_id": 1, "item_id": ' + deep + "}\n")
    with pytest.raises(ValueError, match=rf"a\.jsonl, line 51 holds .*{depth:,} levels deep"):
        trained(tmp_path / "a.jsonl")


def test_brackets_in_texts_are_no_levels(tmp_path: Path) -> None:
    row = {"user_id": 1, "item_id": 2, "note": '[{"' * 100}
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for _ in range(5)))
    assert trained(tmp_path / "a.jsonl").num_inter == 5


def test_columns_that_are_nested_deep(tmp_path: Path) -> None:
    dtype: pl.DataType = pl.List(pl.Int8)
    for _ in range(MOST_DEPTH):
        dtype = pl.List(dtype)
    frame = pl.DataFrame({"user_id": [1], "item_id": [1], "deep": pl.Series([None], dtype=dtype)})
    frame.write_ipc(tmp_path / "a.arrow")
    with pytest.raises(ValueError, match=r"levels deep; at most 64"):
        trained(tmp_path / "a.arrow")


@pytest.mark.parametrize("place", [0.01, 0.1, 0.4, 0.6, 0.8, 0.9, 0.97, 0.99])
@pytest.mark.parametrize("stream", [True, False])
def test_damaged_arrow_is_one_error(place: float, stream: bool, tmp_path: Path) -> None:
    frame = pl.DataFrame({"user_id": [f"u{k}" for k in range(500)], "item_id": list(range(500))})
    path = tmp_path / "a.arrow"
    frame.write_ipc_stream(path) if stream else frame.write_ipc(path, compression="lz4")
    data = bytearray(path.read_bytes())
    for k in range(8):
        data[int(place * (len(data) - 8)) + k] ^= 0xFF
    path.write_bytes(data)
    try:
        trained(path)
    except ValueError as error:
        assert "a.arrow" in str(error)


def test_words_of_a_dictionary_count_in_every_row(tmp_path: Path) -> None:
    """Words of 60 kB that 80,000 rows name become 4.8 GB of text, more than 32 bits count."""
    import polars as pl

    words = [f"{number}{'x' * 60_000}" for number in range(20)]
    frame = pl.DataFrame({"item": pl.Series(words, dtype=pl.Categorical).gather([0] * 80_000)})
    file = tmp_path / "inter.arrow"
    file.write_bytes(b"x")
    with pytest.raises(ValueError, match=r"would become 4,800,080,000 in memory"):
        check_text(file, frame)

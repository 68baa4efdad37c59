"""Tables of one's own: csv, Parquet, Arrow, JSON lines, packed or not, and what is wrong."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import shoal
from shoal.config.schema import DataSection
from shoal.data.dataset import Dataset
from shoal.data.dates import AmbiguousDates, shown_time
from shoal.data.loading.load import load_dataset
from shoal.data.sources.frames import to_polars
from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.runs.run import resolve

random = np.random.default_rng(3)
ROWS = 600
INTER = pl.DataFrame(
    {
        "user_id": [f"u{u}" for u in random.integers(0, 40, ROWS)],
        "item_id": random.integers(100, 130, ROWS),
        "timestamp": np.arange(ROWS) + 1_000_000,
        "label": random.integers(0, 2, ROWS),
        "device": random.choice(["phone", 'a, "b"', "desk"], ROWS),
        "price": np.round(random.random(ROWS), 3),
    }
)
ITEMS = pl.DataFrame(
    {
        "item_id": np.arange(100, 130),
        "genre": [[["war", "noir", "jazz"][k] for k in range(i % 3)] for i in range(30)],
        "year": np.arange(1970, 2000),
    }
)
FEATURES = {
    "user_id": {"kind": "id"},
    "item_id": {"kind": "id"},
    "device": {"kind": "id"},
    "price": {"kind": "number"},
    "genre": {"kind": "ids"},
    "year": {"kind": "number", "buckets": 4},
}


def flat(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("genre").list.join(" ")) if "genre" in frame else frame


def csv(frame: pl.DataFrame, path: Path, **how: Any) -> None:
    path.write_bytes(flat(frame).write_csv(**how).encode())


def atomic(frame: pl.DataFrame, path: Path) -> None:
    types = {"genre": "token_seq", "user_id": "token", "item_id": "token", "device": "token"}
    text = flat(frame).write_csv(separator="\t", quote_style="never")
    head, _, rest = text.partition("\n")
    named = [f"{name}:{types.get(name, 'float')}" for name in head.split("\t")]
    path.write_text("\t".join(named) + "\n" + rest)


WRITERS: dict[str, tuple[str, Callable[[pl.DataFrame, Path], Any]]] = {
    "csv": ("csv", csv),
    "semicolons": ("csv", lambda f, p: csv(f, p, separator=";")),
    "quoted": ("csv", lambda f, p: csv(f, p, quote_style="always")),
    "other quotes": ("csv", lambda f, p: csv(f, p, quote_char="'", quote_style="always")),
    "latin-1": ("csv", lambda f, p: p.write_bytes(flat(f).write_csv().encode("latin-1"))),
    "gzip": ("csv.gz", lambda f, p: p.write_bytes(gzip.compress(flat(f).write_csv().encode()))),
    "parquet": ("parquet", lambda f, p: f.write_parquet(p)),
    "arrow": ("arrow", lambda f, p: f.write_ipc(p)),
    "stream": ("arrow", lambda f, p: f.write_ipc_stream(p)),
    "jsonl": ("jsonl", lambda f, p: f.write_ndjson(p)),
}


def config(path: Path, **more: Any):
    given = {key.replace("__", "."): value for key, value in more.items()}
    values = {
        "model": "DNN",
        "model.layers": [8],
        "data.path": str(path),
        "data.name": "shop",
        "data.cache": False,
        "data.features": FEATURES,
        "train.batch_size": 64,
        **given,
    }
    return resolve(values=values).config


def losses(path: Path, **more: Any) -> list[float]:
    parts = build(config(path, **more), World())
    parts.model.train()
    return [float(parts.strategy.train_step(batch)) for batch in parts.reader.batches(0)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    folder = tmp_path_factory.mktemp("atomic") / "shop"
    folder.mkdir()
    atomic(INTER, folder / "shop.inter")
    atomic(ITEMS, folder / "shop.item")
    found = losses(folder.parent, data__load={"inter": ["*"], "item": ["*"]})
    assert len(found) == 8 and len(set(found)) == 8
    return found


@pytest.mark.parametrize("form", WRITERS)
def test_every_format_gives_the_same_losses(
    form: str, expected: list[float], tmp_path: Path
) -> None:
    ending, write = WRITERS[form]
    write(INTER[:400], tmp_path / f"inter-1.{ending}")
    write(INTER[400:], tmp_path / f"inter-2.{ending}")
    write(ITEMS, tmp_path / f"items.{ending}")
    more: dict[str, Any] = {"latin-1": {"data__encoding": "latin-1"}}.get(form, {})
    more |= {"data__quote": "'"} if form == "other quotes" else {}
    files = {"inter": "inter-*", "item": f"items.{ending}"}
    assert losses(tmp_path, data__files=files, **more) == expected


def test_files_beside_each_other_need_no_names(expected: list[float], tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    INTER.write_parquet(tmp_path / "shop" / "inter.parquet")
    ITEMS.write_parquet(tmp_path / "shop" / "item.parquet")
    assert losses(tmp_path) == expected


def test_a_frame_gives_the_same_losses(expected: list[float], tmp_path: Path) -> None:
    more = {"data.features": FEATURES, "train.batch_size": 64, "train.epochs": 1}
    more |= {"model.layers": [8], "train.eval_every": 0, "run.progress": False}
    more |= {"run.output": str(tmp_path / "run")}
    found = shoal.fit("DNN", INTER, time="timestamp", items=ITEMS, **more)
    assert found.curves["loss"] == [pytest.approx(np.mean(expected), rel=1e-6)]


def test_zstd(expected: list[float], tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    packed = zstandard.compress(INTER.write_csv().encode())
    (tmp_path / "inter.csv.zst").write_bytes(packed)
    csv(ITEMS, tmp_path / "item.csv")
    files = {"inter": "inter.csv.zst", "item": "item.csv"}
    assert losses(tmp_path, data__files=files) == expected
    (tmp_path / "inter.csv.zst").write_bytes(packed[:-30])
    with pytest.raises(
        ValueError, match=r"inter.csv.zst cannot be unpacked: .*damaged or not whole"
    ):
        losses(tmp_path, data__files=files)


def test_remote_paths(
    expected: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    memory.pipe({"/shop/a/inter.csv": INTER.write_csv().encode()})
    memory.pipe({"/shop/item.csv": flat(ITEMS).write_csv().encode()})
    files = {"inter": "memory://shop/a", "item": "memory://shop/it*.csv"}
    assert losses(tmp_path, data__files=files) == expected
    assert losses(tmp_path, data__files=files) == expected  # from the copies
    with pytest.raises(ValueError, match="files of reference:// are not read; allowed: s3"):
        losses(tmp_path, data__files={**files, "inter": "reference://shop/b"})
    with pytest.raises(ValueError, match=r"data.files.inter: memory://shop/b names no files"):
        losses(tmp_path, data__files={**files, "inter": "memory://shop/b"})


def load(folder: Path, name: str, text: str | bytes, **more: Any) -> Dataset:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return load_dataset(
        DataSection(path=str(folder), files={"inter": name}, cache=False, **more), 1
    )


@pytest.mark.parametrize(
    ("typed", "found"),
    [("./a.csv", "here"), ("a.csv", "below"), ("b.csv", "here"), ("../cwd/a.csv", "here")],
)
def test_paths_are_as_typed(
    typed: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below data.path; with ./ before them as typed, and so where nobody set data.path."""
    (tmp_path / "cwd" / "dataset").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "cwd")
    for place, name in (("here", "a"), ("here", "b"), ("below", "dataset/a")):
        Path(f"{name}.csv").write_text("user_id,item_id\n" + f"{place},1\n" * 3)
    data = load_dataset(DataSection(files={"inter": typed}, cache=False), 1)
    assert data.vocab["user_id"][1] == found
    with pytest.raises(ValueError, match=r"c\.csv is neither .*dataset/c\.csv and c\.csv"):
        load_dataset(DataSection(files={"inter": "c.csv"}, cache=False), 1)
    Path("set").mkdir()
    with pytest.raises(ValueError, match=r"a\.csv is neither .*; looked for set/a\.csv \("):
        load_dataset(DataSection(path="set", files={"inter": "a.csv"}, cache=False), 1)


HEAD = "user_id,item_id,rating,timestamp\n"
GOOD = HEAD + "".join(f"{k % 3},{k},4,{k}\n" for k in range(20))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv.gz", gzip.compress(GOOD.encode())[:-9], "a.csv.gz cannot be unpacked"),
        ("a.csv", GOOD.replace("item_id", "itemid"), "a.csv has no column 'item_id'; .*itemid"),
        ("a.csv", GOOD + "1,2,3\n", "a.csv, line 22: 3 cells where the header names 4"),
        ("a.csv", GOOD + "1,2,3,4,5\n", "a.csv, line 22: 5 cells where the header names 4"),
        ("a.csv", GOOD + "1,2,five,4\n", "a.csv, line 22: 'five' in 'rating' is not a number"),
        ("a.csv", GOOD + ",2,5,4\n", "a.csv, line 22: 'user_id' is empty"),
        (
            "a.csv",
            GOOD + '1,"2,5,4\n',
            "a.csv, line 22: unexpected end of data; cells are quoted by",
        ),
        ("a.csv", GOOD.encode() + b"1,\xff,5,4\n", "a.csv, line 22: byte 0xff is not utf-8"),
        ("a.csv", "", "a.csv is empty"),
        ("a.csv", HEAD, "a.csv holds no rows"),
        ("a.parquet", b"PAR1 and no more", "a.parquet cannot be read as Parquet|is damaged"),
        ("a.arrow", b"ARROW1 and no more", "a.arrow cannot be read as Arrow|is damaged"),
        (
            "a.jsonl",
            '{"user_id": 1, "item_id": 2}\n{"user_id": 1',
            "a.jsonl, line 2: not an object",
        ),
        ("a.xyz", GOOD, "a.xyz does not say what it is; set data.format"),
    ],
)
def test_bad_input_is_one_clear_error(
    tmp_path: Path, name: str, text: str | bytes, said: str
) -> None:
    with pytest.raises(ValueError) as caught:
        load(tmp_path, name, text)
    assert re.search(said, str(caught.value)), caught.value


def test_mixed_types(tmp_path: Path) -> None:
    rows = "".join(f"{k % 3},{k},{k if k != 17 else 'old'}\n" for k in range(40))
    with pytest.raises(
        ValueError, match=r"a.csv, line 19: column 'age' has mixed types: 'old'"
    ) as e:
        load(tmp_path, "a.csv", "user_id,item_id,age\n" + rows)
    assert "leave the column out with '--data.unload.inter=[age]'" in str(e.value)
    load(tmp_path, "a.csv", "user_id,item_id,age\n" + rows, unload={"inter": ["age"]})
    one = pl.DataFrame({"user_id": [1], "item_id": [2], "age": [3.0]})
    (tmp_path / "p").mkdir()
    one.write_parquet(tmp_path / "p" / "1.parquet")
    one.with_columns(age=pl.lit("x")).write_parquet(tmp_path / "p" / "2.parquet")
    with pytest.raises(
        ValueError, match=r"column 'age' has mixed types: Float64 in .*1.parquet, St"
    ):
        load_dataset(DataSection(path=str(tmp_path), files={"inter": "p"}, cache=False), 1)


@pytest.mark.parametrize(
    "word", ["n/a", "N/A", "NA", "null", "None", "nan", " - ", "–", "?", "\\N"]
)
def test_words_for_missing_values(word: str, tmp_path: Path) -> None:
    """Empty in numbers and dates; a name in ids."""
    head = "user_id,item_id,timestamp,seconds,country\n"
    rows = "".join(f"{k % 3},{k},2025-01-{k + 10},{k},de\n" for k in range(5))
    rows += f"NA,NA,2025-01-20,{word},NA\n" * 5
    found = load(tmp_path, "a.csv", head + rows)
    assert found.types["seconds"] == "float" and found.missing["inter"]["seconds"] == 5
    assert found.types["country"] == "token"
    assert all("NA" in found.vocab[name] for name in ("user_id", "item_id", "country"))
    rows += f"1,2,{word},7,de\n"
    with pytest.raises(ValueError, match=r"a.csv, line 12: 'timestamp' is empty"):
        load(tmp_path, "a.csv", head + rows)
    assert load(tmp_path, "a.csv", head + rows, bad_rows="skip").num_inter == 10


def test_bad_rows_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = GOOD + "1,2\n1,2,five,4\n,2,5,4\n\n1,99,5,4\n"
    with caplog.at_level("WARNING"):
        found = load(tmp_path, "a.csv", text, bad_rows="skip")
    assert found.num_inter == 21 and "99" in found.vocab["item_id"]
    told = [record.getMessage() for record in caplog.records]
    assert [re.findall(r"(\d) bad rows", line) for line in told] == [["3"]]
    assert "; 'user_id' is empty: 1, 'rating' is not a number" in told[0]
    assert told[0].endswith(": 1, the line cannot be read: 1)")
    assert found.left_out == {"data.bad_rows": 3}
    lines = [json.dumps({"user_id": k % 3, "item_id": k}) for k in range(9)] + ["{"]
    assert load(tmp_path, "a.jsonl", "\n".join(lines), bad_rows="skip").num_inter == 9


DAYS = [None if k == 7 else datetime(2024, 1, 1) + timedelta(hours=k) for k in range(20)]
TIMES: dict[str, Callable[[], Any]] = {  # a column of times whose eighth is missing
    "datetimes": lambda: DAYS,
    "dates": lambda: pl.Series([day and day.date() for day in DAYS]),
    "zones": lambda: pl.Series(DAYS).dt.replace_time_zone("Europe/Berlin"),
    "text": lambda: [day and str(day) for day in DAYS],
    "numbers": lambda: [math.nan if day is None else day.timestamp() for day in DAYS],
    "seconds of numpy": lambda: np.array(DAYS, "datetime64[s]"),
    "objects of numpy": lambda: np.array([np.datetime64(day) for day in DAYS], object),
    "pandas": lambda: pandas().to_datetime(pandas().Series(DAYS)),
    "pandas, a zone": lambda: pandas().to_datetime(pandas().Series(DAYS), utc=True),
    "pandas, objects": lambda: pandas().Series(DAYS, dtype=object).where(lambda x: x.notna()),
    "NaT of pandas": lambda: [pandas().NaT if day is None else day for day in DAYS],
}


def pandas() -> Any:
    return pytest.importorskip("pandas")


FORMS = ("columns", "rows", "pandas", "polars", "arrow")
MISSING = [("time", kind, form) for kind in TIMES for form in FORMS]
MISSING += [(column, "numbers", "polars") for column in ("label", "weight")]


@pytest.mark.parametrize(("column", "kind", "form"), MISSING)
def test_missing_times_and_labels_of_frames_are_refused(
    column: str, kind: str, form: str, tmp_path: Path
) -> None:
    columns = {"u": [k % 3 for k in range(20)], "i": list(range(20))}
    columns[column] = TIMES[kind]()
    frame: Any = columns
    if form == "rows":
        frame = (dict(zip(columns, row)) for row in zip(*map(list, columns.values())))
    elif form == "pandas":
        frame = pandas().DataFrame({name: list(one) for name, one in columns.items()})
    elif form == "polars":
        frame = to_polars(columns)
    elif form == "arrow":
        frame = pytest.importorskip("pyarrow").table(to_polars(columns))
    to_polars(frame).write_parquet(tmp_path / "a.parquet")
    section = {"path": str(tmp_path), "files": {"inter": "a.parquet"}, "cache": False}
    fields = {"user": "u", "item": "i"}
    if column == "weight":
        section["sample_weight"] = column
    else:
        fields[column] = column
    with pytest.raises(ValueError, match=rf"a\.parquet, row 8: '{column}' is empty"):
        load_dataset(DataSection.model_validate({**section, "fields": fields}), 1)


def test_types_are_guessed(tmp_path: Path) -> None:
    head = "user_id,item_id,timestamp,shop_id,colour,price,count\n"
    rows = "".join(f"{k},{k},2020-01-0{k + 1} 10:00:00,{k},red,{k}.5,{k}\n" for k in range(9))
    found = load(tmp_path, "a.csv", head + rows)
    assert found.types == {
        "user_id": "token",
        "item_id": "token",
        "timestamp": "float",
        "shop_id": "token",
        "colour": "token",
        "price": "float",
        "count": "float",
    }
    assert np.asarray(found.inter["timestamp"])[0] == 1577872800.0


def test_ambiguous_dates_are_an_error_that_names_the_key(tmp_path: Path) -> None:
    head = "user_id,item_id,timestamp\n"
    rows = "".join(f"{k},{k},0{k + 1}/02/2025\n" for k in range(9))
    with pytest.raises(AmbiguousDates) as caught:
        load(tmp_path, "a.csv", head + rows, bad_rows="skip")
    assert "a.csv, column 'timestamp': '01/02/2025' may have the day or" in str(caught.value)
    assert "'--data.cells.timestamp.order=month'" in str(caught.value)
    for order, first in (("day", "2025-02-01"), ("month", "2025-01-02")):
        cells = {"timestamp": {"order": order}}
        found = load(tmp_path, "a.csv", head + rows, cells=cells)
        assert shown_time(found.flat("timestamp")[0]) == f"{first} 00:00:00"
    found = load(tmp_path, "a.csv", head + rows + "1,2,13/02/2025\n")
    assert shown_time(found.flat("timestamp")[0]) == "2025-02-01 00:00:00"
    with pytest.raises(ValueError, match=r"line 12: 'soon' in 'timestamp' is no time that can be"):
        load(tmp_path, "a.csv", head + rows + "1,2,13/02/2025\n1,2,soon\n")


def test_parts_that_are_split_already(tmp_path: Path) -> None:
    for part, rows in {"train": INTER[:500], "valid": INTER[500:550], "test": INTER[550:]}.items():
        rows.write_parquet(tmp_path / f"{part}.parquet")
    names = {part: f"{part}.parquet" for part in ("train", "valid", "test")}
    found = load_dataset(DataSection(path=str(tmp_path), files=names, cache=False), 1)
    assert [len(found.splits[part]) for part in names] == [500, 50, 50]
    with pytest.raises(ValueError, match=r"name inter, or train, test and perhaps valid"):
        load_dataset(DataSection(path=str(tmp_path), files={"train": "train.parquet"}), 1)


def test_labels_in_words_are_named(tmp_path: Path) -> None:
    file = tmp_path / "shown.csv"
    file.write_text("user,item,bought\nu1,i1,yes\nu2,i2,no\n")
    config = DataSection(
        files={"inter": str(file)}, fields={"user": "user", "item": "item", "label": "bought"}
    )
    with pytest.raises(ValueError, match=r"line 2: 'yes' in 'bought' is not a number: write label"):
        load_dataset(config, 0)

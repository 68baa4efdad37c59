"""How cells are read: found by a sample of values, the same on every path to a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli import quickstart as quickstart_command
from shoal.cli.main import app
from shoal.clicks.log import ClickLog, read_layout
from shoal.clicks.stream import load as load_clicks
from shoal.config.schema import DataSection
from shoal.data.dataset import Dataset, Ragged
from shoal.data.dates import AmbiguousDates, shown_time
from shoal.data.loading.load import load_dataset
from shoal.data.prepared.folder import PrepareJob
from shoal.data.prepared.preparation import prepare
from shoal.data.reading import ColumnReading, find_reading, lists_of, numbers_of, times_of
from shoal.data.sources import typed
from shoal.data.statistics import describe

# Values of a column, what they are read as, and what the first becomes.
EXAMPLES: dict[str, tuple[str, list[str], str, Any]] = {
    "bars": ("genres", ["a|b|c", "b", "c|a"], "lists, split at '|'", ["a", "b", "c"]),
    "semicolons": ("tags", ["a; b", "b", "c;a;b"], "lists, split at ';'", ["a", "b"]),
    "commas": ("tags", ["a, b", "b", "a,c,b", "c"], "lists, split at ','", ["a", "b"]),
    "spaces": (
        "genre",
        ["war noir", "war", "noir", "jazz", "war jazz", "noir jazz", "war noir jazz"] * 3,
        "lists, split at ' '",
        ["war", "noir"],
    ),
    "ids with spaces": ("seen", ["7 8 9", "8", "9 7"], "lists, split at ' '", ["7", "8", "9"]),
    "python": ("tags", ["['a', 'b, c']", "[]"], "lists in brackets", ["a", "b, c"]),
    "json": ("tags", ['["a", "it\'s"]', "[]"], "lists in brackets", ["a", "it's"]),
    "vectors": ("vec", ["[0.1, 2]", "[.3 4]"], "lists of numbers in brackets", ["0.1", "2"]),
    "dollars": ("price", ["$1,234.50", "$7", "-"], "numbers, '$' and ',' taken away", 1234.5),
    "euros": (
        "price",
        ["1.234,50 €", "7,00 €"],
        "numbers, '€' and '.' taken away, ',' as the decimal sign",
        1234.5,
    ),
    "pounds below zero": ("x", ["-£5.00", "£3"], "numbers, '£' taken away", -5.0),
    "yen": ("x", ["¥1,000", "¥20"], "numbers, '¥' and ',' taken away", 1000.0),
    "decimal commas": ("x", ["12,5", "7,25"], "numbers, ',' as the decimal sign", 12.5),
    "thousands": ("x", ["1,234", "999"], "numbers, ',' taken away", 1234.0),
    "spaces between": ("x", ["1\u00a0234,5", "2"], "numbers, ' ' taken away, ',' as the", 1234.5),
    "per cent": ("x", ["12.5 %", "7%"], "numbers, '%' taken away", 12.5),
    "plain": ("x", ["12.5", "1e3", "n/a"], "", 12.5),
    "an id with a comma": ("shop_id", ["1,234", "999"], "", "1,234"),
    "zip codes": ("zip", ["02134", "90210"], "", "02134"),
    "titles": ("title", ["The Good, the Bad", "Alien; Director's Cut", "Heat"], "", None),
    "places": ("city", ["nyc, new york, usa", "la, california, usa"], "", None),
    "names of two words": ("colour", ["dark blue", "blue", "light red", "red"], "", None),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_cells_are_read_by_their_values(example: str) -> None:
    name, values, shown, first = EXAMPLES[example]
    text = pl.Series(name, values)
    found = find_reading(text)
    assert found.shown().startswith(shown) and bool(found.shown()) == bool(shown), found
    if found.kind.endswith("_seq"):
        assert lists_of(text, found).to_list()[0] == first
    elif found.kind == "float":
        assert numbers_of(text, found).to_list()[0] == first
    else:
        assert first is None or values[0] == first


FIFTH = "2024-01-05 00:00:00"
DATES = {
    "2024-01-05": FIFTH,
    "2024/01/05": FIFTH,
    "05.01.2024": FIFTH,
    "5.1.24": FIFTH,
    "5 Jan 2024": FIFTH,
    "Jan 5, 2024": FIFTH,
    "January 5th, 2024": FIFTH,
    "1704412800": FIFTH,
    "2024-01-05T02:00:00+02:00": FIFTH,
    "2024-01-04 19:00:00.000-0500": FIFTH,
    "2024-01-05T10:00:00Z": "2024-01-05 10:00:00",
    "05.01.2024 10:00": "2024-01-05 10:00:00",
    "Fri, 05 Jan 2024 10:00:00 GMT": "2024-01-05 10:00:00",
    "Fri Jan 05 10:00:00 2024": "2024-01-05 10:00:00",
    "Jan 5, 2024 3:04 PM": "2024-01-05 15:04:00",
    "2024-02-30": None,
    "05/06/2024": None,  # without an order nobody knows
    "13/01/2024": "2024-01-13 00:00:00",
    "soon": None,
}


def test_every_date_is_read_by_itself() -> None:
    reading = ColumnReading("float", unit="s")
    text = pl.Series("day", list(DATES))
    together = times_of(text, reading).to_list()
    assert [one and shown_time(one) for one in together] == list(DATES.values())
    for number, value in enumerate(DATES):
        assert times_of(pl.Series("day", [value]), reading).to_list() == [together[number]]


@pytest.mark.parametrize(("factor", "unit"), [(1, ""), (1000, "milli"), (10**6, "micro")])
def test_units_of_times(factor: int, unit: str) -> None:
    times = pl.Series("ts", np.arange(1_700_000_000, 1_700_000_050) * factor)
    for values in (times, times.cast(pl.Float64), times.cast(pl.String)):
        assert find_reading(values, None, True).shown().startswith(unit)


# ---- the same in every path ---------------------------------------------------------------------

HEAD = "user_id,item_id,timestamp,genres,price,zip"
MIXED = ["2024-01-05", "05.01.2024", "Jan 5, 2024", "31/01/2024", "1704412800"]


def rows(count: int = 60) -> list[str]:
    genres = ["war|noir|jazz", "noir", "jazz|war", "NULL"]
    prices = ['"$1,234.50"', "$7", "n/a"]
    made = []
    for n in range(count):
        day = MIXED[n % 5]
        day = f'"{day}"' if "," in day else day
        cells = [f"00{n % 7}", f"i{n % 11}", day, genres[n % 4], prices[n % 3], f"0{n % 9}134"]
        made.append(",".join(cells))
    return made


def write(folder: Path, lines: list[str] | None = None) -> Path:
    path = folder / "shop.csv"
    path.write_text("\n".join([HEAD, *(lines or rows())]) + "\n")
    return path


EVERYTHING = {"inter": HEAD.split(",")}


def trained(path: Path, **more: Any) -> Dataset:
    section = {"path": str(path.parent), "files": {"inter": path.name}, "cache": False, **more}
    return load_dataset(DataSection.model_validate(section), 1)


def prepared(path: Path, **more: Any) -> Dataset:
    config = DataSection.model_validate({"load": EVERYTHING, **more})
    folder = path.parent / "made"
    prepare(PrepareJob([str(path)], folder, config))
    return load_dataset(DataSection(path=str(folder)), 1)


@pytest.mark.parametrize("read", [trained, prepared])
def test_a_careless_table(read: Any, tmp_path: Path) -> None:
    data = read(write(tmp_path))
    assert data.num_inter == 60
    days = [shown_time(time) for time in data.flat("timestamp")[:5]]
    assert days == [FIFTH, FIFTH, FIFTH, "2024-01-31 00:00:00", FIFTH]
    genres = data.inter["genres"]
    assert isinstance(genres, Ragged)
    assert set(data.vocab["genres"]) == {"[PAD]", "war", "noir", "jazz"}
    assert data.types["zip"] == "token" and "00134" in data.vocab["zip"]
    assert "001" in data.vocab["user_id"]
    assert data.flat("price")[:2].tolist() == [1234.5, 7.0] and data.missing["inter"]["price"] == 20
    told = describe(data)
    assert "Read genres: lists, split at '|'; data.cells says otherwise" in told
    assert "Read price: numbers, '$' and ',' taken away" in told


@pytest.mark.parametrize("form", ["parquet", "jsonl", "frame"])
def test_other_formats_are_read_the_same(form: str, tmp_path: Path) -> None:
    frame = pl.read_csv(write(tmp_path), infer_schema=False)
    if form == "frame":
        quiet: dict[str, Any] = {"run.output": str(tmp_path / "run"), "run.progress": False}
        fitted = shoal.fit("Pop", frame, data={"cache": False}, **quiet)
        data = fitted.trained.parts.dataset
        assert isinstance(data, Dataset)
    else:
        path = tmp_path / f"shop.{form}"
        frame.write_parquet(path) if form == "parquet" else frame.write_ndjson(path)
        data = trained(path)
    expected = trained(tmp_path / "shop.csv")
    assert data.cells == expected.cells and set(data.cells) == {"timestamp", "genres", "price"}
    assert np.array_equal(data.flat("timestamp"), expected.flat("timestamp"))
    assert np.array_equal(data.flat("price"), expected.flat("price"))


def test_data_cells_overrides_what_was_found(tmp_path: Path) -> None:
    cells = {"genres": {"kind": "id"}, "price": {"kind": "id"}}
    data = trained(write(tmp_path), cells=cells)
    assert data.types["genres"] == data.types["price"] == "token"
    assert "war|noir|jazz" in data.vocab["genres"]
    with pytest.raises(ValueError, match=r"data\.cells names 'genre', .*did you mean genres"):
        trained(write(tmp_path), cells={"genre": {"kind": "id"}})
    with pytest.raises(ValueError, match="users and items are ids"):
        trained(write(tmp_path), cells={"item_id": {"kind": "ids"}})


@pytest.mark.parametrize("read", [trained, prepared])
def test_what_does_not_agree_with_the_sample_is_a_bad_row(
    read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.data.sources import text

    monkeypatch.setattr(text, "SAMPLE_BYTES", 2000)
    lines = rows(400)
    lines[3] = lines[3].replace("$1,234.50", "€5")  # within the sample, one of many
    lines.insert(389, "1,i1,2024-01-05,war,cheap,01134")
    path = write(tmp_path, lines)
    with pytest.raises(ValueError, match=r"shop\.csv, line 5: .*'€5'"):
        read(path)
    assert read(path, bad_rows="skip").left_out == {"data.bad_rows": 2}


@pytest.mark.parametrize("late", ["31/01/2024", "01/31/2024"])
def test_prepare_decides_day_and_month_as_training_does(
    late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One date at the end of a large file decides for all, which parts of it do not have."""
    monkeypatch.setattr(typed, "SAMPLE_PLACES", 1)
    lines = [f"u{n % 50},i{n % 37},0{n % 9 + 1}/02/2024,a,1,1" for n in range(60_000)]
    path = write(tmp_path, [*lines, f"u1,i1,{late},a,1,1"])
    both = [read(path).flat("timestamp") for read in (trained, prepared)]
    assert np.array_equal(*both)
    assert shown_time(both[0][0])[:10] == {"3": "2024-02-01", "0": "2024-01-02"}[late[0]]


@pytest.mark.parametrize("read", [trained, prepared])
def test_ambiguous_days_and_months_are_refused(read: Any, tmp_path: Path) -> None:
    lines = [f"u{n},i{n},0{n + 1}/02/2024,a,1,1" for n in range(9)]
    path = write(tmp_path, lines)
    with pytest.raises(AmbiguousDates, match=r"data\.cells\.timestamp\.order=day"):
        read(path)
    contradiction = write(tmp_path, [*lines, "u,i,31/01/2024,a,1,1", "u,i,01/31/2024,a,1,1"])
    with pytest.raises(AmbiguousDates, match="'31/01/2024' has the day first and '01/31/2024' the"):
        read(contradiction)


def test_a_folder_is_read_as_it_was_prepared(tmp_path: Path) -> None:
    prepared(write(tmp_path))
    more = tmp_path / "more.csv"
    more.write_text(HEAD + '\n003,i1,01/02/2024,noir,"$2,000.00",01134\n')
    folder = tmp_path / "made"
    prepare(PrepareJob([str(more)], folder, DataSection(load=EVERYTHING), append=True))
    data = load_dataset(DataSection(path=str(folder)), 1)
    assert data.num_inter == 61 and data.flat("price")[-1] == 2000.0
    assert shown_time(data.flat("timestamp")[-1]) == "2024-02-01 00:00:00"
    with pytest.raises(ValueError, match=r"data\.cells is \{zip: "):
        load_dataset(DataSection(path=str(folder), cells={"zip": {"kind": "number"}}), 1)


def test_rows_to_predict_are_read_as_the_training_data(tmp_path: Path) -> None:
    frame = pl.read_csv(write(tmp_path), infer_schema=False)
    frame = frame.with_columns(label=pl.Series([n % 2 for n in range(60)]))
    quiet: dict[str, Any] = {"run.output": str(tmp_path / "run"), "run.progress": False}
    fitted = shoal.fit("LR", frame, **quiet, epochs=1)
    text = {"user_id": ["001"], "item_id": ["i1"], "zip": ["00134"]}
    spelt = fitted.predict({**text, "genres": ["war|noir"], "price": ["$1,234.50"]})
    plain = fitted.predict({**text, "genres": [["war", "noir"]], "price": [1234.5]})
    other = fitted.predict({**text, "genres": [["noir"]], "price": [1234.5]})
    assert spelt.tolist() == plain.tolist() != other.tolist()


# ---- click logs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_click_logs_are_read_alike(form: str, tmp_path: Path) -> None:
    values = {
        "label": ["1", "0", "1", "0"],
        "genres": ["war|noir", "noir", "NULL", ""],
        "device": ["phone", "n/a", "-", ""],
        "price": ["$1,234.50", "$7", "None", ""],
        "age": ["31", "n/a", "-", ""],
    }
    frame = pl.DataFrame({name: column * 10 for name, column in values.items()})
    frame = frame.with_columns(label=pl.col("label").cast(pl.Int64))
    path = tmp_path / f"log.{form}"
    if form == "csv":
        frame.write_csv(path, separator="\t", quote_style="never")
    else:
        frame.write_parquet(path)
    clicks = {"slots": ["genres", "device"], "dense": ["price", "age"]}
    config = DataSection.model_validate({"clicks": clicks})
    layout = read_layout(config, form, [path])
    assert set(layout.cells) == {"genres", "price"}
    samples = load_clicks(ClickLog([path], form, layout))
    assert samples.offsets is not None
    assert np.diff(samples.offsets)[:8].tolist() == [2, 1, 1, 1, 1, 1, 1, 1]
    lists = np.split(samples.ids, samples.offsets[1:-1])
    assert lists[0][1] == lists[2][0] and lists[1][0] != 0
    assert [one.tolist() for one in lists[3:8]] == [[0]] * 5
    assert samples.dense[:4].tolist() == [[1234.5, 31], [7, 0], [0, 0], [0, 0]]
    again = json.loads(json.dumps({"slots": layout.slots, "label": "label", "dense": []}))
    assert type(layout).from_entry({**again, "cells": dict(layout.cells)}).cells == layout.cells


# ---- quickstart ---------------------------------------------------------------------------------


def test_quickstart_asks_what_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"u{n % 8},i{n % 7},0{n % 9 + 1}/02/2024,a,1,1" for n in range(60)]
    write(tmp_path, lines)
    words = ["quickstart", "shop.csv", "--to", "made"]
    ran = CliRunner().invoke(app, words)
    assert isinstance(ran.exception, ValueError) and "--dates=day or --dates=month" in str(
        ran.exception
    )
    ran = CliRunner().invoke(app, [*words, "--dates", "month"], catch_exceptions=False)
    assert ran.exit_code == 0 and "timestamp: dates, month first" in ran.output
    assert "cells: {timestamp: {order: month}}" in Path("made/shop-recommend.yaml").read_text()

    class Terminal:
        @staticmethod
        def isatty() -> bool:
            return True

    asked: list[str] = []

    def answer(question: str, choices: dict[str, str], asks: bool) -> str:
        asked.append(question)
        return "day" if "day" in choices else next(iter(choices))

    monkeypatch.setattr(quickstart_command.sys, "stdin", Terminal())
    monkeypatch.setattr(quickstart_command, "_ask", answer)
    quickstart_command.quickstart("shop.csv", to="asked")
    assert asked[-1] == "timestamp: what comes first in 01/02/2024?"
    assert "{order: day}" in Path("asked/shop-recommend.yaml").read_text()


def test_addresses_are_not_lists() -> None:
    """A picture within a cell holds the signs that separate lists."""
    pictures = pl.Series("poster", [f"data:image/png;base64,iVBOR{n}" for n in range(9)])
    pages = pl.Series("page", [f"https://shop.example/?a={n};b=2|3" for n in range(9)])
    assert find_reading(pictures).kind == find_reading(pages).kind == "token"

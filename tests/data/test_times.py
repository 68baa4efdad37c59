"""Columns that hold times become hour, weekday and age, wherever features are guessed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import shoal
from shoal.config.schema import DataSection
from shoal.data.column_meaning import holds_times, hour, weekday
from shoal.data.encode import encode
from shoal.data.feature_table import FeatureTable
from shoal.data.features import features_of, options
from shoal.data.loading.load import load_dataset

ROWS = 300
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)  # a Monday
MOMENTS = [BEGIN + timedelta(hours=7 * n) for n in range(ROWS)]
JOINED = [f"{BEGIN - timedelta(days=n):%d.%m.%Y}" for n in range(20)]
FILES = {"inter": "inter.csv", "user": "user.csv"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Impressions with their time, a time in milliseconds, a date as text; users with a day."""
    lines = ["user,item,click,time,sent_ms,seen,dwell_time"]
    for n, moment in enumerate(MOMENTS):
        seconds = int(moment.timestamp())
        seen = f"{moment:%Y-%m-%d %H:%M:%S}"
        cells = (n % 20, n % 7, n % 2, seconds, 1000 * seconds, seen, n % 60)
        lines.append(",".join(map(str, cells)))
    (tmp_path / "inter.csv").write_text("\n".join(lines) + "\n")
    users = [f"{n},{day}" for n, day in enumerate(JOINED)]
    (tmp_path / "user.csv").write_text("\n".join(["user,joined", *users]) + "\n")
    return tmp_path


def section(folder: Path, **more: Any) -> DataSection:
    fields = {"user": "user", "item": "item", "label": "click", "time": "time"}
    values = {"path": str(folder), "files": FILES, "fields": fields, "cache": False}
    return DataSection.model_validate({**values, **more})


def table_of(config: DataSection) -> FeatureTable:
    dataset = load_dataset(config, 1)
    return encode(dataset, features_of(dataset, config))


def test_no_time_is_a_table_of_moments(folder: Path) -> None:
    found = {one.name: (one.kind, one.side, one.rows) for one in table_of(section(folder)).features}
    hours, days = ("number", "context", 25), ("number", "context", 8)
    assert found == {
        "user": ("id", "user", 21),
        "item": ("id", "item", 8),
        "joined_weekday": ("number", "user", 8),  # days have no hours
        "joined_age": ("number", "user", None),
        "time_hour": hours,  # of the interaction itself, which is never old
        "time_weekday": days,
        "sent_ms_hour": hours,
        "sent_ms_weekday": days,
        "sent_ms_age": ("number", "context", None),
        "seen_hour": hours,
        "seen_weekday": days,
        "seen_age": ("number", "context", None),
        "dwell_time": ("number", "context", None),  # how long, not when
    }


def test_values_are_hours_weekdays_and_days(folder: Path) -> None:
    table, rows = table_of(section(folder)), np.arange(ROWS)
    for name in ("time", "sent_ms", "seen"):
        hours = table.columns[f"{name}_hour"].take(rows).tolist()  # type: ignore[union-attr]
        assert hours == [1 + moment.hour for moment in MOMENTS]
        days = table.columns[f"{name}_weekday"].take(rows).tolist()  # type: ignore[union-attr]
        assert days == [1 + moment.weekday() for moment in MOMENTS]
    config = section(
        folder, features={"age": {"kind": "number", "column": "seen", "transforms": ["age"]}}
    )
    ages = table_of(config).columns["age"].take(rows)
    expected = [(MOMENTS[-1] - moment) / timedelta(days=1) for moment in MOMENTS]
    assert ages.tolist() == pytest.approx(expected)  # type: ignore[union-attr]
    joined = table.columns["joined_weekday"].take(np.arange(1, 21))
    assert joined.tolist() == [1 + (-n) % 7 for n in range(20)]  # type: ignore[union-attr]


def test_what_is_guessed_can_be_written_and_read(folder: Path) -> None:
    config = section(folder)
    guessed = features_of(load_dataset(config, 1), config)
    again = section(folder, features={one.name: options(one) for one in guessed})
    assert features_of(load_dataset(again, 1), again) == guessed


def test_a_part_of_a_time_stands_first(folder: Path) -> None:
    wrong = {"h": {"kind": "number", "column": "time", "transforms": ["normalise", "hour"]}}
    with pytest.raises(
        ValueError, match=r"data\.features\.h\.transforms: normalise, hour; .*first"
    ):
        table_of(section(folder, features=wrong))


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("when", [1.7e9, 1.6e9], True),
        ("x", [1.7e9, 1.6e9], True),  # nothing else looks so
        ("x", [1.7e12, 1.6e12], True),
        ("birth_date", [-3e8, 9e8], True),
        ("x", [-3e8, 9e8], False),
        ("watch_time", [3.0, 4000.0], False),
        ("phone", [5_551_234_567.0], False),
        ("date", [np.nan], False),
    ],
)
def test_times_are_recognised_by_names_and_values(
    name: str, values: list[float], expected: bool
) -> None:
    assert holds_times(name, np.array(values)) is expected


def test_parts_of_times_before_1970() -> None:
    moment = datetime(1955, 3, 4, 17, 30, tzinfo=UTC)
    seconds = np.array([moment.timestamp()])
    assert (hour(seconds)[0], weekday(seconds)[0]) == (17, moment.weekday())


def test_predictions_with_and_without_a_time(folder: Path) -> None:
    frame = pl.read_csv(folder / "inter.csv").drop("sent_ms", "seen", "dwell_time")
    keys = {"run.output": str(folder / "run"), "run.progress": False, "epochs": 1}
    fitted = shoal.fit("LR", frame, label="click", **keys)
    rows = {"user": [1, 1], "item": [2, 2]}
    without = fitted.predict(rows)
    assert without[0] == without[1]
    # The same hour and weekday a week later, as seconds and as a date.
    told = fitted.predict({**rows, "time": [1_704_070_800, 1_704_070_800 + 7 * 86_400]})
    assert told[0] == told[1] != without[0]
    assert fitted.predict({**rows, "time": ["2024-01-01 01:00:00"] * 2})[0] == told[0]

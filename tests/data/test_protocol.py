"""The protocol: what a config leaves open is decided by the data, and never by the model."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shoal.config.schema import DataSection, EvalSection, SplitSection
from shoal.data.loading.load import load_dataset
from shoal.data.protocol import (
    click_log_protocol,
    decide,
    protocol_of,
    takes_items_again,
    values_of,
)
from shoal.data.split import decide_split
from shoal.models import MODELS, find
from shoal.runs.run import resolve

BY_TIME = {"data.split.by": "leave_one_out", "data.split.order": "time", "eval.repeatable": False}
AT_RANDOM = {"data.split.by": "ratio", "data.split.order": "random", "eval.repeatable": False}


def write_table(folder: Path, rows: list[tuple[Any, ...]]) -> Path:
    """A table of users and items, with times where rows have three cells."""
    columns = ["user_id", "item_id", "timestamp"][: len(rows[0])]
    file = folder / "table.csv"
    pl.DataFrame(rows, schema=columns, orient="row").write_csv(file)
    return file


def timed_rows(users: int = 40, items: int = 9) -> list[tuple[str, str, int]]:
    return [
        (f"u{u}", f"i{(u * 7 + i * 5) % 60}", 1000 * i) for u in range(users) for i in range(items)
    ]


def decided(file: Path, *words: str) -> dict[str, Any]:
    """What the data decides for a config of these words."""
    config = resolve(overrides=[f"--data.files.inter={file}", "--data.cache=false", *words]).config
    return values_of(decide(config, load_dataset(config.data, config.run.seed)))


@pytest.mark.parametrize("model", ["EASE", "BPR", "SASRec", "FPMC", "Word2Vec", "YoutubeDNN"])
def test_every_ranking_model_has_the_same_protocol(tmp_path: Path, model: str) -> None:
    timed = write_table(tmp_path, timed_rows())
    assert decided(timed, f"--model.name={model}") == BY_TIME
    untimed = write_table(tmp_path, [row[:2] for row in timed_rows()])
    assert decided(untimed, f"--model.name={model}") == AT_RANDOM


def test_no_model_changes_the_protocol() -> None:
    for name in MODELS:
        own = getattr(find(name).Options, "DEFAULTS", {})
        assert not [key for key in own if key.startswith(("data.split", "eval."))], name


def test_click_models_are_tested_on_the_newest_rows_of_all(tmp_path: Path) -> None:
    timed = write_table(tmp_path, timed_rows())
    click_model = "--model.name=LR"
    assert decided(timed, click_model) == {**BY_TIME, "data.split.by": "ratio"}
    config = resolve(overrides=[f"--data.files.inter={timed}", click_model]).config
    split = load_dataset(config.data, 1).split
    assert split is not None and (split.group_by, split.order) == ("none", "time")


def test_what_a_config_names_stands(tmp_path: Path) -> None:
    timed = write_table(tmp_path, timed_rows())
    by_ratio = {**BY_TIME, "data.split.by": "ratio"}
    assert decided(timed, "--data.split.by=ratio") == by_ratio
    assert decided(timed, "--data.split.ratio=[0.5,0.2,0.3]") == by_ratio  # else it says nothing
    assert decided(timed, "--data.split.order=random") == AT_RANDOM
    assert decided(timed, "--eval.repeatable=true") == {**BY_TIME, "eval.repeatable": True}
    untimed = write_table(tmp_path, [row[:2] for row in timed_rows()])
    left_out = {**AT_RANDOM, "data.split.by": "leave_one_out"}
    assert decided(untimed, "--data.split.leave=test_only") == left_out
    in_file = {**left_out, "data.split.order": "file"}
    assert decided(untimed, "--data.split.order=file") == in_file
    with pytest.raises(
        ValueError, match=r"data\.split\.ratio and data\.split\.leave are both given"
    ):
        decided(timed, "--data.split.ratio=[1,1,1]", "--data.split.leave=test_only")


def test_recbole_words_keep_the_protocol_of_recbole() -> None:
    def said(*words: str) -> tuple[dict[str, Any], list[str]]:
        resolved = resolve(overrides=words)
        return values_of(resolved.config), resolved.notes

    general, notes = said("--model=BPR", "--dataset=ml-100k")
    assert general == AT_RANDOM and any("RecBole's" in note for note in notes)
    assert said("--model=SASRec", "--dataset=ml-100k")[0] == {**BY_TIME, "eval.repeatable": True}
    assert set(said("--model=SASRec", "--data.name=ml-100k")[0].values()) == {"auto"}
    own = said("--model=SASRec", "--dataset=ml-100k", "--eval.repeatable=false")[0]
    assert own == BY_TIME


def test_items_are_taken_again_where_the_data_shows_it(tmp_path: Path) -> None:
    rows = timed_rows()
    again = [(user, item, time + 50) for user, item, time in rows[::4]]
    assert decided(write_table(tmp_path, rows + again))["eval.repeatable"]
    # A row that is there twice is one event, and a few repeats are no habit.
    assert not decided(write_table(tmp_path, rows + rows[::4]))["eval.repeatable"]
    assert not decided(write_table(tmp_path, rows + again[:10]))["eval.repeatable"]
    untimed = [row[:2] for row in rows + again]
    # Without times rows that are there twice may be a mistake, unless their order counts.
    file = write_table(tmp_path, untimed)
    assert not decided(file)["eval.repeatable"]
    assert decided(file, "--data.split.order=file")["eval.repeatable"]
    config = DataSection(files={"inter": str(write_table(tmp_path, rows + again))}, cache=False)
    assert takes_items_again(load_dataset(config, 1))


@pytest.mark.parametrize(
    ("split", "section", "words"),
    [
        (
            {},
            {},
            "newest item of every user tested, the one before validates (times in 'timestamp'); "
            "all items ranked, seen ones left out",
        ),
        (
            {"order": "random"},
            {"repeatable": True},
            "random 10 % of every user tested, another 10 % validate; all items ranked, seen ones "
            "too",
        ),
        (
            {"group_by": "none", "ratio": [8.0, 0.0, 2.0]},
            {"mode": "labeled"},
            "newest 20 % of all rows tested, nothing validates (times in 'timestamp'); scores "
            "beside labels",
        ),
        (
            {"at": ["2024-01-01", "2024-02-01"]},
            {"mode": "uni100"},
            "rows from 2024-02-01 on tested, those from 2024-01-01 on validate (times in "
            "'timestamp'); ranked among 100 items drawn uniformly",
        ),
        (
            {"order": "file", "leave": "test_only"},
            {"mode": {"valid": "pop50", "test": "full"}},
            "last item in the file of every user tested, nothing validates; test: all items "
            "ranked, seen ones left out, valid: ranked among 50 items drawn by popularity",
        ),
    ],
)
def test_a_protocol_is_described_in_words(
    split: dict[str, Any], section: dict[str, Any], words: str
) -> None:
    data = DataSection(split=decide_split(SplitSection(**split), timed=True))
    assert str(protocol_of(data, EvalSection(**{"repeatable": False, **section}))) == words


def test_a_protocol_that_is_not_decided_has_no_words() -> None:
    assert protocol_of(DataSection(), EvalSection()) is None


@pytest.mark.parametrize(
    "sources, line",
    [
        ({"valid": "a", "test": "b"}, "rows of b tested, those of a validate"),
        ({"test": "b"}, "rows of b tested, nothing validates"),
        ({"valid": "a"}, "nothing is tested, those of a validate"),
        ({}, "nothing is tested, nothing validates"),
    ],
)
def test_click_logs_may_have_no_test_file(sources: dict[str, str], line: str) -> None:
    assert click_log_protocol({"train": "days", **sources}) == line

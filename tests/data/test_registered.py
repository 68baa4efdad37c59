"""Sources, formats of tables and formats of click logs that a package brings along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shoal import clicks
from shoal.clicks.lines import Parser
from shoal.clicks.log import ClickLog, make_layout, pick_format
from shoal.clicks.stream import load
from shoal.config import data_section as schema
from shoal.config.schema import DataSection
from shoal.data import sources
from shoal.data.loading.load import load_dataset
from shoal.data.loading.location import named_data
from shoal.data.prepared.folder import PrepareJob
from shoal.data.prepared.preparation import prepare
from shoal.data.raw_columns import Raw, RawColumn, RawTable
from shoal.data.sources.tables import Part, TableHeader
from shoal.data.sources.typed import FilePiece


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """What a test registers is there for it alone."""
    kept = (sources.SOURCES, sources.FORMATS, clicks.FORMATS)
    before = [dict(one) for one in kept], list(schema.FORMATS.names), list(schema.CLICK_FORMATS)
    yield
    for one, was in zip(kept, before[0]):
        one.clear()
        one.update(was)  # type: ignore[arg-type]
    schema.FORMATS.names[:], schema.CLICK_FORMATS[:] = before[1:]


class Chain(sources.Source):
    name = "chain"

    def matches(self, config: DataSection) -> bool:
        return (config.folder / "chain.txt").exists()

    def read(self, config: DataSection) -> Raw:
        links = (config.folder / "chain.txt").read_text().split("-")
        words = np.array(links, dtype=object)
        columns = {
            "user_id": RawColumn(np.arange(len(links) - 1), words[:-1]),
            "item_id": RawColumn(np.arange(len(links) - 1), words[1:]),
        }
        return Raw(RawTable("chain", dict.fromkeys(columns, "token"), columns))


def test_a_source(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chain"):
        DataSection(format="chain")
    sources.register(Chain())
    (tmp_path / "chain.txt").write_text("a-b-c-d")
    for form in ("chain", "auto"):
        config = DataSection(path=str(tmp_path), format=form, split={"order": "file"})  # type: ignore[arg-type]
        data = load_dataset(config, 1)
        assert data.vocab["user_id"].tolist() == ["[PAD]", "a", "b", "c"]
        assert data.inter["item_id"].tolist() == [1, 2, 3]


class Fixed(sources.TableFormat):
    """Two letters, a user and an item, to a row."""

    name, endings = "fixed", (".fix",)

    def header(self, path: Path, config: DataSection) -> TableHeader:
        return TableHeader(["user_id", "item_id"])

    def read(
        self, part: Part, header: TableHeader, config: DataSection, first: int, wanted: list[str]
    ) -> FilePiece:
        text = part.path.read_text()
        return FilePiece(
            str(part.path), pl.DataFrame({"user_id": list(text[::2]), "item_id": list(text[1::2])})
        )


def test_a_format_of_tables(tmp_path: Path) -> None:
    sources.register_table(Fixed())
    (tmp_path / "a.fix").write_text("axbxaycz")
    config = DataSection(
        path=str(tmp_path),
        files={"inter": "a.fix"},
        cache=False,
        split={"order": "file"},  # type: ignore[arg-type]
    )
    data = load_dataset(config, 1)
    assert data.inter["user_id"].tolist() == [1, 2, 1, 3]
    plain = config.model_copy(update={"files": None})
    prepare(PrepareJob([str(tmp_path / "a.fix")], tmp_path / "to", plain))
    again = load_dataset(plain.model_copy(update={"path": str(tmp_path / "to")}), 1)
    assert again.inter["item_id"].tolist() == data.inter["item_id"].tolist() == [1, 1, 2, 3]


class Letters(clicks.LineFormat):
    """A label and a letter on each line."""

    name, is_log = "letters", True

    def parser(self, layout: clicks.Layout, first: bytes, separator: str, name: str) -> Parser:
        def parse(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> clicks.Samples:
            labels = (data[starts] - ord("0")).astype(np.float32)
            ids = data[starts + 1].astype(np.int64)[:, None]
            return clicks.Samples(1, labels, np.zeros((len(labels), 0), np.float32), ids)

        return parse


def test_a_format_of_click_logs(tmp_path: Path) -> None:
    clicks.register(Letters())
    (tmp_path / "log").write_text("1a\n0b\n1c\n")
    config = DataSection(
        path=str(tmp_path),
        format="letters",
        clicks={"train": "log", "slots": 1},  # type: ignore[arg-type]
    )
    assert named_data(config, clicks=True) == ("clicks", "log")
    layout = make_layout(config.clicks, pick_format(config))
    log = ClickLog([tmp_path / "log"], "letters", layout)
    samples = load(log)
    assert log.count(tmp_path / "log") == 3
    assert samples.labels.tolist() == [1, 0, 1] and samples.ids[:, 0].tolist() == [97, 98, 99]

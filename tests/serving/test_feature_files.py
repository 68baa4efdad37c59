"""Features of the ranker from tables beside the pipeline."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest
from shop_pipeline import ITEMS, USERS, pipeline, shop

import shoal
from shoal.serving.artifact.files import ArtifactError
from shoal.serving.pipeline.export import export_pipeline
from shoal.serving.pipeline.pipeline import Pipeline
from shoal.serving.pipeline.question import RecommendedItem

TEXT = """\
retrieve: [{artifact: SHOP/BPR, number: 10}]
rank:
  artifact: SHOP/FM
  features:
    - {file: table.parquet, key: user}
"""
BY_ITEM = TEXT.replace("key: user", "key: item")


def opened(folder: Path, text: str, **columns: list) -> Pipeline:
    write(folder, **columns)
    return pipeline(folder, text)


def write(folder: Path, **columns: list) -> None:
    """The table; a file that is written anew has another time, however fast."""
    file = folder / "table.parquet"
    earlier = file.stat().st_mtime_ns if file.exists() else 0
    pl.DataFrame(columns).write_parquet(file)
    os.utime(file, ns=(earlier + 10**9, earlier + 10**9))


def chances(user: str, shown: list[RecommendedItem], **columns: dict[str, str] | str) -> list:
    """What the click model says of rows: a column for all, or by item."""
    rows = []
    for one in shown:
        values = {
            name: value if isinstance(value, str) else value[one.item]
            for name, value in columns.items()
        }
        rows.append({"user": user, "item": one.item, **values})
    return pytest.approx(shoal.load(shop() / "FM").predict(rows).tolist())


def test_columns_by_user_and_what_comes_first(tmp_path: Path) -> None:
    ranked = opened(tmp_path, TEXT, user=["u1", "u2"], device=["phone", "desk"])
    assert ranked.ranker is not None and ranked.ranker.context == []
    for user, device in (("u1", "phone"), ("u2", "desk")):
        answer = ranked.recommend(user, number=10)
        assert [one.score for one in answer] == chances(user, answer, device=device)
    # The question's own value, even an empty one, comes first.
    answer = ranked.recommend("u1", number=10, context={"device": "desk"})
    assert [one.score for one in answer] == chances("u1", answer, device="desk")
    with pytest.raises(ValueError, match=r"table.parquet has no row for 'u3' and no default for"):
        ranked.recommend("u3")
    assert len(ranked.recommend("u3", context={"device": None})) == 10
    # A default stands for whoever has no row.
    text = TEXT.replace("key: user", "key: user, default: {device: phone}")
    answer = pipeline(tmp_path, text).recommend("u3", number=10)
    assert [one.score for one in answer] == chances("u3", answer, device="phone")


def test_tables_go_along_with_an_exported_pipeline(tmp_path: Path) -> None:
    ranked = opened(tmp_path, TEXT, user=["u1"], device=["desk"])
    folder = export_pipeline(ranked.file.path, tmp_path / "exported")
    (tmp_path / "table.parquet").unlink()
    assert Pipeline(folder).recommend("u1", number=10) == ranked.recommend("u1", number=10)
    (folder / "table-1-table.parquet").unlink()
    with pytest.raises(ArtifactError, match=r"table-1-table\.parquet"):
        Pipeline(folder)


def test_a_table_that_changes_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ranked = opened(tmp_path, TEXT, user=["u1"], device=["phone"])
    write(tmp_path, user=["u1"], device=["desk"])
    answer = ranked.recommend("u1", number=10)
    assert [one.score for one in answer] == chances("u1", answer, device="desk")
    (tmp_path / "table.parquet").write_bytes(b"PAR1 and no more")
    with caplog.at_level("WARNING", logger="shoal"):
        again = [ranked.recommend("u1", number=10) for _ in range(2)]
    assert caplog.text.count("the rows from before are used") == 1
    assert [one.item for one in again[1]] == [one.item for one in answer]
    write(tmp_path, user=["u1"], device=["phone"])
    answer = ranked.recommend("u1", number=10)
    assert [one.score for one in answer] == chances("u1", answer, device="phone")


def test_columns_by_item(tmp_path: Path) -> None:
    items = [f"i{n}" for n in range(ITEMS)]
    category = {item: "abcd"[(n + 1) % 4] for n, item in enumerate(items)}
    ranked = opened(tmp_path, BY_ITEM, item=items, category=[*category.values()])
    answer = ranked.recommend("u5", number=10, context={"device": "phone"})
    expected = chances("u5", answer, category=category, device="phone")
    assert [one.score for one in answer] == expected
    with pytest.raises(ValueError, match=r"'category' comes from table.parquet, by item"):
        ranked.recommend("u5", context={"device": "phone", "category": "a"})
    # A column of items may be missing: the model knows that of its training.
    half = opened(tmp_path, BY_ITEM, item=items[:1], category=["b"])
    answer = half.recommend(f"u{USERS - 1}", number=10, context={"device": "phone"})
    trained = {item: "abcd"[n % 4] for n, item in enumerate(items)} | {"i0": "b"}
    expected = chances(f"u{USERS - 1}", answer, category=trained, device="phone")
    assert [one.score for one in answer] == expected
    # A column of the context may not.
    opened(tmp_path, BY_ITEM, item=items, device=["desk"] * ITEMS)
    with pytest.raises(
        ValueError, match=r"no row for 39 items, such as .* no default for 'device'"
    ):
        opened(tmp_path, BY_ITEM, item=items[:1], device=["desk"])


@pytest.mark.parametrize(
    ("text", "columns", "error"),
    [
        (TEXT, {"user": ["u1"], "devcie": ["x"]}, r"no column 'devcie'.*did you mean device"),
        (TEXT, {"user": ["u1"], "category": ["a"]}, r"by user; it may have device"),
        (TEXT, {"user": ["u1", "u1"], "device": ["x", "y"]}, r"'user' of the rows 1 and 2 is 'u1'"),
        (TEXT.replace("key: user", "key: usr"), {"user": ["u1"]}, r"key: .*'user' or 'item'"),
        (TEXT.replace("table.p", "none.p"), {"user": ["u1"]}, r"features\[0\]: there is no file"),
        (
            TEXT.replace("key: user", "key: user, default: {age: 3}"),
            {"user": ["u1"], "device": ["x"]},
            r"has no column 'age', which has a default",
        ),
        (
            TEXT + "    - {file: table.parquet, key: user}\n",
            {"user": ["u1"], "device": ["x"]},
            r"features\[1\]: .*another table has the column 'device' too",
        ),
    ],
)
def test_tables_that_are_refused(tmp_path: Path, text: str, columns: dict, error: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)pipeline.yaml:.*{error}"):
        opened(tmp_path, text, **columns)

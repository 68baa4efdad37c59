"""What the author of a prepared folder can write into it: one clear error, or it is made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_prepared import config_of, rows, write_inter

from shoal.config.schema import DataSection
from shoal.data import column_store as files
from shoal.data.loading.load import load_dataset
from shoal.data.prepared import views
from shoal.data.prepared.folder import PrepareJob
from shoal.data.prepared.preparation import prepare
from shoal.data.split import SPLITS


@pytest.fixture
def prepared(tmp_path: Path) -> DataSection:
    write_inter(tmp_path / "raw" / "some" / "some.inter", rows())
    data = config_of(tmp_path / "raw").data
    prepare(
        PrepareJob(
            [str(tmp_path / "raw" / "some" / "some.inter")], tmp_path / "to", data, 5, 1 << 30
        )
    )
    return data.model_copy(update={"path": str(tmp_path / "to")})


def view_of(config: DataSection) -> Path:
    (view,) = (Path(config.path) / "views").iterdir()
    return view


def rewrite(folder: Path, name: str, values: np.ndarray, dtype: str) -> None:
    """As an author does who knows the format: every checksum is right."""
    body = files.read_document(folder / views.DOCUMENT, views.VERSION)
    body["arrays"][name] = files.write_array(folder, name, values, dtype).entry()
    files.write_document(folder / views.DOCUMENT, body)


SPOILED: dict[str, tuple[str, Any, str]] = {
    "starts beyond the pairs": ("seen-starts", lambda a: a + (1 << 40), "<i8"),
    "starts before them": ("seen-starts", lambda a: a - (1 << 40), "<i8"),
    "starts that fall": ("seen-starts", lambda a: a[::-1], "<i8"),
    "too few starts": ("seen-starts", lambda a: a[:2], "<i8"),
    "starts of half the width": ("seen-starts", lambda a: a, "<i4"),
    "pairs of half the width": ("seen", lambda a: a, "<i4"),
    "histories beyond their items": ("offsets-1", lambda a: a * 1000, "<i8"),
    "rows that are not there": ("rows-train", lambda a: a + (1 << 40), "<i8"),
    "users that are not there": ("user-train", lambda a: a + 1000, "<i4"),
    "items below zero": ("item-test", lambda a: -a, "<i4"),
    "fewer items than rows": ("item-train", lambda a: a[:-1], "<i4"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_view_that_is_of_other_columns_is_made_again(prepared: DataSection, what: str) -> None:
    """The core follows these numbers as they are: it ended with a segmentation fault."""
    name, change, dtype = SPOILED[what]
    dataset, view = load_dataset(prepared, 5), view_of(prepared)
    before = {split: dataset.user_ids(split).copy() for split in SPLITS}  # they are mapped
    whole = files.map_array(view, files.Stored.from_entry(arrays_of(view)[name])).copy()
    rewrite(view, name, change(whole), dtype)
    after = load_dataset(prepared, 5)
    for split in SPLITS:
        np.testing.assert_array_equal(before[split], after.user_ids(split))
    np.testing.assert_array_equal(
        files.map_array(view, files.Stored.from_entry(arrays_of(view)[name])), whole
    )


@pytest.mark.parametrize("length", [1 << 63, 1 << 70, -1, float("inf")])
def test_a_view_of_impossible_lengths_is_made_again(prepared: DataSection, length: float) -> None:
    before = load_dataset(prepared, 5).item_ids("train").copy()
    view = view_of(prepared)
    body = files.read_document(view / views.DOCUMENT, views.VERSION)
    body["arrays"]["item-train"]["segments"][0][0] = length
    files.write_document(view / views.DOCUMENT, body)
    np.testing.assert_array_equal(before, load_dataset(prepared, 5).item_ids("train"))


def arrays_of(view: Path) -> dict[str, Any]:
    return files.read_document(view / views.DOCUMENT, views.VERSION)["arrays"]


@pytest.mark.parametrize("text", ["[" * 200_000, "{}", "[]", '{"body": 3, "sha256": ""}', ""])
def test_a_file_that_is_no_manifest_is_refused(prepared: DataSection, text: str) -> None:
    (Path(prepared.path) / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match="is damaged"):
        load_dataset(prepared, 5)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.update(options=[]),
        lambda body: body["options"].update(fields=[]),
        lambda body: body.update(columns=[]),
        lambda body: body["columns"]["user_id"]["values"].update(file="../x"),
        lambda body: body["columns"]["user_id"]["values"].update(dtype="O"),
        lambda body: body["columns"]["user_id"]["values"].update(segments=[[-5, ""]]),
        lambda body: body["words"]["item_id"].pop("ends"),
    ],
)
def test_a_manifest_with_wrong_entries_is_refused(prepared: DataSection, change: Any) -> None:
    path = Path(prepared.path) / "manifest.json"
    body = json.loads(path.read_text())["body"]
    change(body)
    files.write_document(path, body)
    with pytest.raises(ValueError):
        load_dataset(prepared, 5)


def test_the_size_of_a_manifest_is_bounded(
    prepared: DataSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "DOCUMENT_BYTES", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        load_dataset(prepared, 5)

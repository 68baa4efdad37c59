"""Titles and pictures of items: columns by their names, loaded or not."""

from pathlib import Path
from typing import Any

import pytest

from shoal.config.schema import DataSection
from shoal.data.prepared.captions import captions_of, columns_of_captions
from shoal.data.prepared.prepare import load_dataset

INTER = "user_id:token\titem_id:token\na\t7\na\t8\nb\t7\nb\t9\n"
ITEM = (
    "item_id:token\tmovie_title:token_seq\tposter_url:token\tyear:float\n"
    "8\tToy Story\thttp://x/8.png\t1995\n7\t<b>Alien</b>\t\t1979\n9\t\t\t2000\n12\tNo\t\t2000\n"
)


def section(folder: Path, item: str = ITEM, **more: Any) -> DataSection:
    (folder / "films").mkdir(exist_ok=True)
    (folder / "films" / "films.inter").write_text(INTER)
    (folder / "films" / "films.item").write_text(item)
    return DataSection(path=str(folder), name="films", cache=False, **more)


@pytest.mark.parametrize("load", [None, {"inter": ["*"], "item": ["*"]}])
def test_captions_of_atomic_files(tmp_path: Path, load: dict[str, list[str]] | None) -> None:
    """The same whether training loaded them or not."""
    config = section(tmp_path, load=load)
    dataset = load_dataset(config, 1)
    found = captions_of(dataset, config)
    words = dataset.vocab["item_id"]
    titles = {str(word): title for word, title in zip(words, found["title"])}
    assert titles["8"] == "Toy Story" and titles["7"] == "<b>Alien</b>"
    assert titles["9"] == titles["[PAD]"] == ""
    pictures = dict(zip(map(str, words), found["picture"]))
    assert pictures["8"] == "http://x/8.png" and pictures["7"] == ""
    assert len(found["title"]) == dataset.num_items


def test_items_without_captions(tmp_path: Path) -> None:
    config = section(tmp_path, "item_id:token\tyear:float\n8\t1995\n")
    assert captions_of(load_dataset(config, 1), config) == {}
    (tmp_path / "films" / "films.item").unlink()
    assert captions_of(load_dataset(config, 1), config) == {}


def test_columns_are_found_by_their_names() -> None:
    books = ["ISBN", "Book-Title", "Book-Author", "Image-URL-S", "Image-URL-M", "Image-URL-L"]
    assert columns_of_captions(books) == {"title": "Book-Title", "picture": "Image-URL-M"}
    assert columns_of_captions(["name", "title", "cover_url"])["title"] == "title"
    assert columns_of_captions(["discovered", "year", "class"]) == {}

"""Titles and pictures of items: columns by their names, loaded or not."""

from pathlib import Path
from typing import Any

import pytest

from shoal.config.schema import DataSection
from shoal.data.loading.captions import captions_of, columns_of_captions
from shoal.data.loading.load import load_dataset

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


def test_titles_in_the_interactions(tmp_path: Path) -> None:
    """One for each item; what somebody wrote about an item is none."""
    lines = ["user,item,item name,review title"]
    lines += [f"u{n % 7},i{n % 5},{'' if n == 4 else f'Thing {n % 5}'},Good {n}" for n in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    fields = {"user": "user", "item": "item"}
    config = DataSection(path=str(tmp_path), files={"inter": "a.csv"}, fields=fields, cache=False)
    load = {"inter": ["user", "item", "item name"]}
    dataset = load_dataset(config.model_copy(update={"load": load}), 1)
    found = dict(zip(map(str, dataset.vocab["item"]), captions_of(dataset, config)["title"]))
    assert found["i0"] == "Thing 0" and found["i3"] == "Thing 3" and found["[PAD]"] == ""
    load = {"inter": ["user", "item", "review title"]}
    dataset = load_dataset(config.model_copy(update={"load": load}), 1)
    assert captions_of(dataset, config) == {}


@pytest.mark.parametrize(
    ("ratings", "movies", "text"),
    [
        ("u.data", "u.item", "7|Alien (1979)|x\n8|Léon (1994)|y\nodd\n"),
        ("ratings.dat", "movies.dat", "7::Alien (1979)::x\n8::Léon (1994)::y\n"),
        ("ratings.csv", "movies.csv", 'movieId,title,genres\n7,Alien (1979),x\n8,"Léon ""a""",y\n'),
    ],
)
def test_movies_of_movielens(tmp_path: Path, ratings: str, movies: str, text: str) -> None:
    sign = {"u.data": "\t", "ratings.dat": "::", "ratings.csv": ","}[ratings]
    rows = [sign.join([user, film, "3", "1"]) for user, film in ("a7", "a8", "b7", "b9")]
    head = ["userId,movieId,rating,timestamp"] if ratings == "ratings.csv" else []
    (tmp_path / "ml").mkdir()
    (tmp_path / "ml" / ratings).write_text("\n".join([*head, *rows]) + "\n")
    config = DataSection(path=str(tmp_path), name="ml", cache=False)
    dataset = load_dataset(config, 1)
    assert captions_of(dataset, config) == {}
    encoding = "utf-8" if movies == "movies.csv" else "latin-1"
    (tmp_path / "ml" / movies).write_text(text, encoding=encoding)
    found = dict(zip(map(str, dataset.vocab["item_id"]), captions_of(dataset, config)["title"]))
    assert found["7"] == "Alien (1979)" and found["8"].startswith("Léon") and found["9"] == ""
    assert '""' not in found["8"]

"""Captions: the title and the picture of every item, for people who read a list of items.

Columns of items are found by their names. They need not be loaded for training: of atomic files
NAME.item is read when captions are shown, and so are the movies of MovieLens. Where there is
no file of items, the interactions may have such a column.
"""

import re
from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.bounded_files import packed_or_not
from shoal.data.dataset import Dataset, Ragged
from shoal.data.loading.location import interactions_of
from shoal.data.raw_columns import RawColumn
from shoal.data.sources.atomic import ATOMIC
from shoal.data.sources.files import local_data
from shoal.data.sources.movielens import titles
from shoal.data.sources.tables import read_table

# What a name ends in, in small letters and without signs; the first that fits.
ENDINGS = {
    "title": ("title", "name", "headline", "description"),
    "picture": ("image", "imageurl", "picture", "pictureurl", "poster", "posterurl", "cover",
                "coverurl", "thumbnail", "thumbnailurl", "photo", "photourl", "imageurlm"),
}  # fmt: skip
SAME = 0.9  # of the interactions with an item have its title, where it has one
Captions = dict[str, list[str]]


def columns_of_captions(names: Iterable[str]) -> dict[str, str]:
    """title, picture -> the column that has it, where there is one.

    >>> columns_of_captions(["movie_title", "release_year", "Image-URL"])
    {'title': 'movie_title', 'picture': 'Image-URL'}
    """
    plain = {name: re.sub(r"[^a-z0-9]", "", name.lower()) for name in names}
    columns = {}
    for role, endings in ENDINGS.items():
        fits = (name for end in endings for name, text in plain.items() if text.endswith(end))
        if (first := next(fits, None)) is not None:
            columns[role] = first
    return columns


def captions_of(dataset: Dataset, config: DataSection) -> Captions:
    """The captions that there are: [num_items] each, empty text where an item has none."""
    config = local_data(config)
    words = [name for name in dataset.items if dataset.types[name].startswith("token")]
    named = columns_of_captions(words)
    if named:
        return {role: _texts(dataset, name, config) for role, name in named.items()}
    return _unloaded(dataset, config) or _of_interactions(dataset)


def _texts(dataset: Dataset, name: str, config: DataSection) -> list[str]:
    """A loaded column; row i belongs to item i."""
    column, vocabulary = dataset.items[name], dataset.vocab[name]
    if isinstance(column, Ragged):
        return _joined(column.values, vocabulary, column.offsets, config)
    return ["", *("" if not code else str(vocabulary[code]) for code in column[1:].tolist())]


def _of_interactions(dataset: Dataset) -> Captions:
    """Captions from columns of the interactions, as in the orders of a shop: one text an item."""
    ids = (dataset.user_field, dataset.item_field)
    words = [k for k in dataset.inter if dataset.types[k] == "token" and k not in ids]
    items = dataset.flat(dataset.item_field)
    captions: Captions = {}
    for role, name in columns_of_captions(words).items():
        rows = np.flatnonzero(dataset.flat(name))[::-1]
        item_codes, codes = np.zeros(dataset.num_items, np.int64), dataset.flat(name)[rows]
        item_codes[items[rows]] = codes  # the first row of an item counts
        if (
            not len(rows) or (item_codes[items[rows]] == codes).mean() < SAME
        ):  # such as reviews of it
            continue
        texts = dataset.vocab[name]
        item_texts = ["" if not code else str(texts[code]) for code in item_codes[1:].tolist()]
        captions[role] = ["", *item_texts]
    return captions


def _joined(
    codes: np.ndarray, words: np.ndarray, offsets: np.ndarray, config: DataSection
) -> list[str]:
    """Lists of words as the file has them."""
    entries = [str(words[code]) for code in codes.tolist()]
    ends = offsets.tolist()
    return [config.seq_separator.join(entries[a:b]) for a, b in pairwise(ends)]


def _unloaded(dataset: Dataset, config: DataSection) -> Captions:
    """Captions from files that training did not load: NAME.item, or the movies of MovieLens."""
    if interactions_of(config) == "movielens":
        movies = titles(config)
        texts = [movies.get(str(movie), "") for movie in dataset.vocab[dataset.item_field]]
        return {"title": texts} if any(texts) else {}
    # NAME.item of atomic files: its columns of captions, joined by the words of the items.
    path = packed_or_not(config.folder / f"{config.stem}.item")
    if interactions_of(config) != "atomic" or not path.is_file():
        return {}
    types = ATOMIC.header(path, config).types
    named = columns_of_captions(name for name, kind in types.items() if kind.startswith("token"))
    columns = [dataset.item_field, *named.values()]
    if not named or dataset.item_field not in types:
        return {}
    section = config.model_copy(update={"load": {"item": columns}, "unload": None})
    table, _, _ = read_table(section, "item", [path], ATOMIC)
    number = {word: k for k, word in enumerate(dataset.vocab[dataset.item_field])}
    keys = _cells(table.columns[dataset.item_field], config)
    captions: Captions = {}
    for role, name in named.items():
        texts = captions[role] = [""] * dataset.num_items
        for key, text in zip(keys, _cells(table.columns[name], config)):
            if number.get(key):
                texts[number[key]] = text
    return captions


def _cells(column: RawColumn, config: DataSection) -> list[str]:
    """The text of every cell."""
    assert column.words is not None
    if column.offsets is not None:
        return _joined(column.values, column.words, column.offsets, config)
    return ["" if code < 0 else str(column.words[code]) for code in column.values.tolist()]

"""UserResults: what an evaluation leaves of each user and item, as two files of Parquet.

users.parquet  user, group (where eval.groups.user names a column), train (training interactions),
               positives, a column for each metric that has a value per user, items (best first, at
               most 10), hits
items.parquet  item, train, recommended (in how many of these lists), positives (how many of these
               users had to find it), title (null where unknown)

Of many users a sample is kept; the metadata of users.parquet says how many were evaluated.
"""

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.config.schema import DataSection
from shoal.data.dataset import Columns, Dataset, Ragged
from shoal.data.loading.captions import captions_of
from shoal.files.durable import replace_durably
from shoal.files.folders import inner_folder
from shoal.training.evaluation.splits import sampled_users
from shoal.training.metrics import UserValues

log = logging.getLogger("shoal")
MOST_USERS = 100_000  # of more, a sample is kept
MOST_ITEMS = 1_000_000  # of more, there is no file


def chosen_users(users: np.ndarray, seed: int) -> Tensor:
    """The users that are kept, ascending: all, or a sample that does not depend on ranks."""
    return torch.from_numpy(sampled_users(users, MOST_USERS, seed))


class UserResults:
    """Results of one evaluation for its users.

    evaluated: how many they were. positives: the items that those kept had to find, one after the
    other. group: the column of their groups (eval.groups.user).
    """

    def __init__(
        self,
        dataset: Dataset,
        kept: UserValues,
        evaluated: int,
        positives: np.ndarray,
        group: str | None = None,
    ):
        self.dataset, self.kept, self.evaluated = dataset, kept, evaluated
        self.positives, self.group = positives, group

    def write(self, folder: Path, section: DataSection) -> None:
        """Write both files into a folder; section: where titles of items may be found."""
        inner_folder(folder.parent, folder.name)
        self.write_users(folder / "users.parquet")
        if self.dataset.num_items - 1 > MOST_ITEMS:
            log.info("%s is not written: there are more than %d items", "items.parquet", MOST_ITEMS)
        else:
            self._write(folder / "items.parquet", self._items(section), {})

    def write_users(self, file: Path) -> None:
        """Write the users alone."""
        self._write(file, self._users(), {"shoal.users": str(self.evaluated)})

    def _users(self) -> dict[str, Any]:
        data, kept = self.dataset, self.kept
        users, items = kept.users.numpy(), kept.items.numpy()
        words = np.asarray(data.vocab[data.item_field][items[items > 0]], dtype=object)
        ends = (items > 0).sum(1).cumsum()[:-1]
        group = {} if self.group is None else {"group": self._texts(self.group, data.users)}
        return {
            "user": list(map(str, data.vocab[data.user_field][users])),
            **{name: [texts[user] for user in users] for name, texts in group.items()},
            "train": np.bincount(data.user_ids("train"), minlength=data.num_users)[users],
            "positives": kept.positives.numpy(),
            **{name: values.numpy() for name, values in kept.values.items()},
            "items": [list(map(str, one)) for one in np.split(words, ends)],
            "hits": [one.tolist() for one in np.split(kept.hits.numpy()[items > 0], ends)],
        }

    def _items(self, section: DataSection) -> dict[str, Any]:
        data = self.dataset
        counts = np.bincount(self.kept.items.numpy().reshape(-1), minlength=data.num_items)
        return {
            "item": list(map(str, data.vocab[data.item_field][np.arange(1, data.num_items)])),
            "train": np.bincount(data.item_ids("train"), minlength=data.num_items)[1:],
            "recommended": counts[1:],
            "positives": np.bincount(self.positives, minlength=data.num_items)[1:],
            "title": self._titles(section),
        }

    def _titles(self, section: DataSection) -> list[str | None]:
        """Titles as lists of recommended items show them; None where an item has none."""
        try:
            titles = captions_of(self.dataset, section).get("title")
        except (OSError, ValueError) as error:  # of a file that training did not read
            log.warning("titles of items cannot be read, so reports show their ids: %s", error)
            titles = None
        if titles is None:
            return [None] * (self.dataset.num_items - 1)
        return [title or None for title in titles[1:]]

    def _texts(self, name: str, columns: Columns) -> list[str | None]:
        """A column of words as text; None where there is none."""
        column, words = columns[name], np.asarray(self.dataset.vocab[name], dtype=object)
        if isinstance(column, Ragged):
            parts = np.split(words[column.values], column.offsets[1:-1])
            return [" ".join(map(str, one)) or None for one in parts]
        return [str(words[code]) if code else None for code in column]

    def _write(self, file: Path, columns: dict[str, Any], metadata: dict[str, str]) -> None:
        import polars as pl  # not for every start

        types: dict[str, Any] = {"title": pl.String}
        types |= {"items": pl.List(pl.String), "hits": pl.List(pl.Boolean)}
        schema = {name: kind for name, kind in types.items() if name in columns}
        frame = pl.DataFrame(columns, schema_overrides=schema)
        text = io.BytesIO()
        frame.write_parquet(text, metadata=metadata)
        replace_durably(file, text.getvalue())

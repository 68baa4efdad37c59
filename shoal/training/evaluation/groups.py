"""Groups of users and items, from the columns that eval.groups names."""

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.config.train_section import GroupsSection
from shoal.data.dataset import Columns, Dataset, Ragged
from shoal.data.sampler import distinct
from shoal.training.metrics import Groups


def groups_of(dataset: Dataset, section: GroupsSection) -> Groups:
    """The groups that a config names; ValueError where the data has no such column."""
    users, items, history = None, None, None
    if section.user is not None:
        column = _column(dataset, "user", dataset.users, section.user)
        if isinstance(column, Ragged):
            raise ValueError(
                f"eval.groups.user: {section.user!r} holds lists, and a user is in one group; name "
                "a column of one value each"
            )
        users = np.asarray(column, dtype=np.int64)
    if section.item is not None:
        column = _column(dataset, "item", dataset.items, section.item)
        items = column if isinstance(column, Ragged) else _as_lists(column)
        history = _history(dataset)
    return Groups(users, items, history)


def _column(dataset: Dataset, side: str, columns: Columns, name: str) -> np.ndarray | Ragged:
    words = [one for one in columns if dataset.types[one].startswith("token")]
    if name in words:
        return columns[name]
    if name in columns:
        raise ValueError(
            f"eval.groups.{side}: {name!r} holds numbers, and groups are words; columns of words "
            f"are {', '.join(words) or 'none'}"
        )
    raise ValueError(
        f"eval.groups.{side}: the data has no column {name!r} of {side}s; columns of words are "
        f"{', '.join(words) or 'none'}{did_you_mean(name, words)} (the file of {side}s is read "
        f'when data.load names it: --data.load="{{{side}: [*]}}")'
    )


def _as_lists(column: np.ndarray) -> Ragged:
    """Lists of one, or of none where there is no value."""
    is_present = column > 0
    return Ragged(column[is_present].astype(np.int64), np.append(0, is_present.cumsum()))


def _history(dataset: Dataset) -> Ragged:
    """The items that each user has in training, once each."""
    users, items = dataset.user_ids("train").astype(np.int64), dataset.item_ids("train")
    keys = distinct(users * dataset.num_items + items)
    owners, history_items = np.divmod(keys, dataset.num_items)
    return Ragged(history_items, np.searchsorted(owners, np.arange(dataset.num_users + 1)))

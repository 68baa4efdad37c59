"""The block of figures that the log shows for a data set."""

from __future__ import annotations

import numpy as np

from shoal.data.dataset import Dataset


def describe(dataset: Dataset) -> str:
    """Sizes, averages and fields. Users and items count the padding, averages do not."""
    inters = dataset.num_inter
    active_users = np.count_nonzero(np.bincount(dataset.inter[dataset.user_field]))  # type: ignore[arg-type]
    active_items = np.count_nonzero(np.bincount(dataset.inter[dataset.item_field]))  # type: ignore[arg-type]
    sparsity = 1 - inters / dataset.num_users / dataset.num_items
    return "\n".join(
        [
            dataset.name,
            f"The number of users: {dataset.num_users}",
            f"Average actions of users: {inters / active_users}",
            f"The number of items: {dataset.num_items}",
            f"Average actions of items: {inters / active_items}",
            f"The number of inters: {inters}",
            f"The sparsity of the dataset: {sparsity * 100}%",
            f"Remain Fields: {list(dataset.types)}",
        ]
    )

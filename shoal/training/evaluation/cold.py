"""Cold: test users and items without a training interaction, and how well they were served.

Their figures are separate: a mean over all users hides how new ones fare.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from shoal.data.dataset import Dataset
from shoal.distributed.world import World
from shoal.training.evaluation.splits import SplitData
from shoal.training.metrics import MetricSet, Ranked


class Cold:
    """Collects the blocks of one evaluation of the test split; `make` makes metrics for it."""

    def __init__(self, dataset: Dataset, data: SplitData, make: Callable[[], MetricSet]):
        users = np.bincount(dataset.user_ids("train"), minlength=dataset.num_users) == 0
        items = np.bincount(dataset.item_ids("train"), minlength=dataset.num_items) == 0
        items[0] = False
        # Sessions are new by design, and known by what stands before the item to find.
        users[dataset.flat(dataset.user_field)[dataset.context]] = False
        self.users, self.items = torch.from_numpy(users), torch.from_numpy(items)
        tested = dataset.item_ids("test")
        self.positives = tested[items[tested]]
        self.count = int(users[data.users].sum())
        has_both = 0 < self.count < len(data.users)
        self.sets = {name: make() for name in ("cold_users", "warm_users") if has_both}
        self.hits = torch.zeros(1, dtype=torch.int64)  # on cold items

    @property
    def is_there(self) -> bool:
        """Whether the test has users or items without a training interaction."""
        return self.count > 0 or len(self.positives) > 0

    def add(self, block: Ranked) -> None:
        """Count a block of users."""
        assert block.users is not None
        self.hits += (block.hits & self.items[block.items]).sum()
        cold = self.users[block.users]
        for name, metrics in self.sets.items():
            metrics.update(block.chosen(cold if name == "cold_users" else ~cold))

    def result(self, world: World) -> dict[str, Any]:
        """What result.json has under `cold`; every rank calls it.

        users, items: how many of the test have no training interaction. interactions: those of
        the test with such items; found: of these, in lists. cold_users, warm_users: metrics of
        each, where there are both.
        """
        for metrics in self.sets.values():
            metrics.reduce(world)
        return {
            "users": self.count,
            "items": len(np.unique(self.positives)),
            "interactions": len(self.positives),
            "found": int(world.all_reduce(self.hits.to(world.device)).item()),
            **{name: _defined(metrics.compute()) for name, metrics in self.sets.items()},
        }


def _defined(values: dict[str, float]) -> dict[str, float]:
    """Without those that have no value for such users: calibration to a history, say."""
    return {key: value for key, value in values.items() if not math.isnan(value)}


def cold_line(cold: dict[str, Any], metric: str, decimals: int) -> str:
    """A line for the log; metric: the one whose values are shown."""
    text = f"without a training interaction: {cold['users']} test users"
    if metric in cold.get("cold_users", {}):
        values = [f"{cold[name][metric]:.{decimals}f}" for name in ("cold_users", "warm_users")]
        text += f" ({metric} {values[0]}, of the others {values[1]})"
    found_text = f"{cold['found']} of {cold['interactions']} interactions with them found"
    return f"{text}, {cold['items']} test items ({found_text})"

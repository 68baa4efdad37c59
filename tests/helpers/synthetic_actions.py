"""Interactions whose labels depend on what the same user did before, and on nothing else.

Items are of some groups. A user likes each group or not, by a coin, and clicks accordingly, but for
some noise. So a model that does not see the actions of a history has an AUC of 0.5, and the best
one is that of Bayes: for each earlier action of the item's group so much evidence.

`like` is the second label: the same for another coin of the user and the group.
"""

from pathlib import Path
from typing import Any

import numpy as np

GROUPS, EACH, NOISE = 4, 5, 0.1  # groups of items, items of a group, labels that are turned over
LABELS = ("click", "like")


def write_actions(folder: Path, users: int, events: int, seed: int = 1) -> dict[str, np.ndarray]:
    """folder/acts/acts.inter, users one after the other; the columns, and `best_LABEL`: the log
    odds that are known before each interaction."""
    random = np.random.default_rng(seed)
    shape = users, events
    item = random.integers(0, GROUPS * EACH, shape)
    group = item // EACH
    columns: dict[str, np.ndarray] = {
        "user": np.repeat(np.arange(users), events),
        "item": item.reshape(-1),
        "time": 1_000_000 + np.arange(users * events) * 60,
    }
    weight = np.log((1 - NOISE) / NOISE)
    for label in LABELS:
        likes = np.take_along_axis(random.integers(0, 2, (users, GROUPS)), group, 1)
        acted = likes ^ (random.random(shape) < NOISE)
        same = np.tril(np.ones((events, events), bool), -1) & (group[:, :, None] == group[:, None])
        evidence = (same * (2 * acted - 1)[:, None]).sum(2) * weight
        sure = 1 / (1 + np.exp(-evidence))  # that the user likes the group
        chance = sure * (1 - NOISE) + (1 - sure) * NOISE
        columns[label] = acted.reshape(-1)
        columns[f"best_{label}"] = np.log(chance / (1 - chance)).reshape(-1)
    place = folder / "acts"
    place.mkdir(parents=True)
    lines = ["user_id:token\titem_id:token\ttimestamp:float\tclick:float\tlike:float"]
    rows = zip(*(columns[name].tolist() for name in ("user", "item", "time", *LABELS)))
    lines += ["\t".join((f"u{u}", f"i{i}", *map(str, rest))) for u, i, *rest in rows]
    (place / "acts.inter").write_text("\n".join(lines) + "\n")
    return columns


def acts_config(folder: Path | str, model: str = "HSTURanker", **more: Any) -> dict[str, Any]:
    """Config values; the last fifth of the users is what is tested on."""
    given = {key.replace("__", "."): value for key, value in more.items()}
    return {
        "model.name": model,
        "data.name": "acts",
        "data.path": str(folder),
        "data.cache": False,
        "data.labels": {"click": {}, "like": {}},
        "data.fields.label": "click",
        "data.split": {
            "by": "ratio",
            "ratio": [0.8, 0.0, 0.2],
            "order": "time",
            "group_by": "none",
        },
        "data.max_len": 12,
        # Not the user: whom the test is about was never seen, and rows of users remember.
        "data.features": {
            "item_id": {"kind": "id", "side": "item"},
            "history": {"kind": "sequence", "column": "item_id", "table": "item_id"},
        },
        "train.batch_size": 256,
        "run.device": "cpu",
        "run.progress": False,
        "run.trackers": [],
        **given,
    }

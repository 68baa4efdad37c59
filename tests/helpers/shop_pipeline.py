"""A shop whose right answers are known, its artifacts, and pipelines of them.

Item k is of category "abcd"[k % 4]; user n likes the categories n % 4 and (n + 1) % 4, takes twelve
items of these, and three more later, which are what is tested. A click follows a liked category.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from captured_warnings import forget_log
from exported import check_here

import shoal
from shoal.files.durable import sole_holder
from shoal.serving.artifact import export
from shoal.serving.pipeline.pipeline import Pipeline

USERS, ITEMS, TAKEN, LATER = 48, 40, 12, 3
KEYS: dict[str, Any] = {
    "train.batch_size": 128,
    "train.optimizer.lr": 0.03,
    "run.progress": False,
    "run.trackers": [],
    "run.log_level": "warning",
}
MODELS: dict[str, dict[str, Any]] = {
    "BPR": {"model.embedding_size": 8, "train.epochs": 6},
    "SASRec": {"model.hidden_size": 8, "model.inner_size": 16, "train.epochs": 2},
    "Pop": {},
    "FM": {"model.dim": 4, "train.epochs": 8},
}


def category(item: str) -> str:
    return "abcd"[int(item[1:]) % 4]


def likes(user: str) -> str:
    """The two categories that a user likes."""
    number = int(user[1:])
    return "abcd"[number % 4] + "abcd"[(number + 1) % 4]


def shop() -> Path:
    """The folder with an artifact for each model, items.csv and later.csv, made once.

    The processes of a test session share it: the first that asks trains.
    """
    root = Path(os.environ["SHOAL_TEST_SHARED"]) / "shop"
    root.mkdir(exist_ok=True)
    with sole_holder(root / ".lock", wait=True):
        if not (root / "later.csv").exists():
            _make(root)
            forget_log()  # of the runs that were made
    return root


def pipeline(folder: Path, text: str, seed: int | None = 3) -> Pipeline:
    """The pipeline of a text; SHOP in it is the folder of artifacts."""
    file = folder / "pipeline.yaml"
    file.write_text(text.replace("SHOP", str(shop())))
    return Pipeline(file, seed=seed)


def _make(root: Path) -> None:
    random = np.random.default_rng(5)
    items = [f"i{k}" for k in range(ITEMS)]
    rows, later = [], []
    for n in range(USERS):
        liked = [item for item in items if category(item) in likes(f"u{n}")]
        order = random.permutation(liked).tolist()
        rows += [(f"u{n}", item, 86_400 * k) for k, item in enumerate(order[:TAKEN])]
        later += [(f"u{n}", item, "phone") for item in order[TAKEN : TAKEN + LATER]]
    table = {
        "item": items,
        "category": [category(item) for item in items],
        "price": [1.5 * k for k in range(ITEMS)],
        "since": [f"2024-01-{1 + k % 20:02}" for k in range(ITEMS)],
        "in_stock": ["no" if k % 5 == 0 else "yes" for k in range(ITEMS)],
    }
    pl.DataFrame(table).write_csv(root / "items.csv")
    taken = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    pairs = [(f"u{random.integers(USERS)}", f"i{random.integers(ITEMS)}") for _ in range(4000)]
    clicks = pl.DataFrame(
        {
            "user": [user for user, _ in pairs],
            "item": [item for _, item in pairs],
            "device": [["phone", "desk"][n % 2] for n in range(len(pairs))],
            "click": [float(category(item) in likes(user)) for user, item in pairs],
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "check_apart", check_here)
        for model, keys in MODELS.items():
            keys = {**KEYS, **keys, "run.output": str(root / f"{model}-run")}
            if model == "FM":
                shoal.fit(
                    model,
                    clicks,
                    user="user",
                    item="item",
                    label="click",
                    items=pl.DataFrame(table).select("item", "category"),
                    **keys,
                )
            else:
                shoal.fit(model, taken, user="user", item="item", time="time", **keys)
            shoal.export(root / f"{model}-run", root / model)
    pl.DataFrame(later, schema=["user", "item", "device"], orient="row").write_csv(
        root / "later.csv"
    )

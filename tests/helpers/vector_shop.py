"""A shop whose vectors carry the truth: users take what lies near their taste; some items are new.

Interactions with new items are in the test alone, which has no others.
"""

from pathlib import Path
from typing import Any

import numpy as np

USERS, ITEMS, NEW, WIDTH, EACH = 200, 150, 15, 6, 24


def write(folder: Path) -> dict[str, Any]:
    """Tables and vectors in a folder, and the keys of a config that names them."""
    random = np.random.default_rng(3)
    vectors = random.normal(size=(ITEMS, WIDTH))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    tastes = random.normal(size=(USERS, WIDTH))
    tastes /= np.linalg.norm(tastes, axis=1, keepdims=True)
    # The first ones are new; Gumbel's noise draws without replacement.
    noisy = 6.0 * tastes @ vectors.T + random.gumbel(size=(USERS, ITEMS))
    lines: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for user, items in enumerate(np.argsort(-noisy, axis=1)[:, :EACH]):
        old = random.permutation(items[items >= NEW])
        for place, item in enumerate(old):
            part = "valid" if place == len(old) - 1 else "train"
            lines[part].append(f"u{user},i{item},{place}")
        lines["test"] += [f"u{user},i{item},{EACH}" for item in items[items < NEW]]
    for part, rows in lines.items():
        (folder / f"{part}.csv").write_text("user_id,item_id,timestamp\n" + "\n".join(rows) + "\n")
    np.save(folder / "vectors.npy", vectors.astype(np.float32))
    (folder / "vectors.txt").write_text("\n".join(f"i{item}" for item in range(ITEMS)))
    return {
        "data.files": {part: str(folder / f"{part}.csv") for part in lines},
        "data.separator": ",",
        "data.max_len": EACH,
        "eval.topk": [20],
        "run.progress": False,
        "run.trackers": [],
    }


def with_vectors(folder: Path) -> dict[str, Any]:
    """The keys of the shop's vectors."""
    return {
        "data.item_vectors.file": str(folder / "vectors.npy"),
        "data.item_vectors.normalise": "unit",
    }

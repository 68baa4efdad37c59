"""A small data set with features of every kind, as atomic files, and a config of them."""

from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.schema import Config
from shoal.runs.run import resolve

USERS, ITEMS, ROWS = 40, 30, 1200
GENRES = ["drama", "comedy", "war", "sci fi", "noir"]
FEATURES: dict[str, dict[str, Any]] = {
    "user_id": {"kind": "id"},
    "item_id": {"kind": "id", "dim": 5},  # a width of its own
    "liked": {"kind": "sequence", "table": "item_id", "dim": 5, "length": 3},  # a shared table
    "genre": {"kind": "ids", "pooling": "mean", "dim": 3},
    "age": {"kind": "number", "transforms": ["normalise"]},
    "size": {"kind": "numbers", "length": 2, "transforms": ["log"]},
    "old": {"kind": "number", "column": "age", "buckets": [30, 50]},
    "device": {"kind": "id", "vocabulary": "growing"},
    "title": {"kind": "text", "rows": 50},
    "both": {"cross": ["old", "device"], "rows": 40},
}


def write(folder: Path) -> Path:
    """folder/shop/shop.inter, .user and .item; the label follows age, genre and the two ids."""
    random = np.random.default_rng(5)
    place = folder / "shop"
    place.mkdir(parents=True)
    ages = random.integers(15, 70, USERS)
    liked = [" ".join(f"i{i}" for i in random.integers(0, ITEMS, n % 5)) for n in range(USERS)]
    lines = ["user_id:token\tage:float\tliked:token_seq"]
    lines += [f"u{u}\t{ages[u] if u % 7 else ''}\t{liked[u]}" for u in range(USERS)]
    (place / "shop.user").write_text("\n".join(lines) + "\n")
    genres = [random.choice(len(GENRES), 1 + i % 2, replace=False) for i in range(ITEMS)]
    lines = ["item_id:token\tgenre:token_seq\tsize:float_seq\ttitle:token"]
    for i in range(ITEMS):
        words = " ".join(GENRES[g].split()[0] for g in genres[i]) if i else ""
        numbers = " ".join(f"{x:.2f}" for x in random.random(2) * 9)
        lines.append(f"i{i}\t{words}\t{numbers}\tThe {GENRES[genres[i][0]]} of {i}")
    (place / "shop.item").write_text("\n".join(lines) + "\n")
    bias = random.normal(0, 1, (USERS, 1)) + random.normal(0, 1, (1, ITEMS))
    lines = ["user_id:token\titem_id:token\tclick:float\tspent:float\tweight:float\tdevice:token"]
    for n in range(ROWS):
        u, i = random.integers(0, USERS), random.integers(0, ITEMS)
        odds = bias[u, i] + (ages[u] - 40) / 15 + (1.5 if 0 in genres[i] else -0.5)
        click = int(random.random() < 1 / (1 + np.exp(-odds)))
        device = ["phone", "desk", ""][n % 3]
        lines.append(f"u{u}\ti{i}\t{click}\t{click * odds:.3f}\t{1 + n % 2}\t{device}")
    (place / "shop.inter").write_text("\n".join(lines) + "\n")
    return folder


def values(folder: Path | str, model: str = "DNN", **more: Any) -> dict[str, Any]:
    """Config values; keyword a__b stands for the key a.b."""
    given = {key.replace("__", "."): value for key, value in more.items()}
    small: dict[str, Any] = {"DNN": {"model.layers": [8]}, "LightFM": {"model.embedding_size": 6}}
    return {
        "model": model,
        "data.name": "shop",
        "data.path": str(folder),
        "data.cache": False,
        "data.load": {"inter": ["*"], "user": ["*"], "item": ["*"]},
        "data.fields.label": "click",
        "train.batch_size": 61,
        "run.progress": False,
        "run.trackers": [],
        **small.get(model, {}),
        **given,
    }


def config(folder: Path | str, model: str = "DNN", **more: Any) -> Config:
    return resolve(values=values(folder, model, **more)).config

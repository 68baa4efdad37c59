"""Run folders as runs leave them, written by hand: quick, and of any content."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

HOSTILE = "<img src=x onerror=\"document.title='owned'\">&'$x_1$"


def write_run(
    folder: Path,
    users: int = 120,
    items: int = 40,
    skill: float = 0.3,
    seed: int = 1,
    data: str = "same",
    epochs: int = 8,
    metric: str = "ndcg@10",
    prefix: str = "",
    **config: Any,
) -> Path:
    """One run; skill: how often an item of a list is a hit. prefix: of every id and title."""
    draw = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    train = np.random.default_rng(7).integers(1, 60, users)  # the same in all runs
    hits = draw.random((users, 10)) < skill * np.linspace(0.5, 1.5, users)[:, None]
    hits = hits[:, :items]
    gain = (hits / np.log2(np.arange(2, 2 + hits.shape[1]))).sum(1) / (
        1 / np.log2(np.arange(2, 12))
    ).sum()
    weights = 1.0 / np.arange(1, items + 1)
    lists = np.argsort(-draw.random((users, items)) * weights, axis=1)[:, :10]
    counts = np.bincount(lists.reshape(-1), minlength=items)
    found = np.bincount(lists[hits], minlength=items)
    names = [f"{prefix}i{k}" for k in range(items)]
    (folder / "evaluation").mkdir()
    frame = pl.DataFrame(
        {
            "user": [f"{prefix}u{k}" for k in range(users)],
            "train": train,
            "positives": np.full(users, 12),
            metric: gain,
            "recall@10": hits.sum(1) / 12,
            "items": [[names[k] for k in row] for row in lists],
            "hits": hits.tolist(),
        }
    )
    frame.write_parquet(folder / "evaluation/users.parquet", metadata={"shoal.users": str(users)})
    pl.DataFrame(
        {
            "item": names,
            "train": np.arange(items, 0, -1) * 3,
            "recommended": counts,
            "positives": found + np.arange(items) % 3,
            "title": [f"{prefix}Title {k}" for k in range(items)],
        }
    ).write_parquet(folder / "evaluation/items.parquet")
    test = {metric: float(gain.mean()), "recall@10": float((hits.sum(1) / 12).mean())}
    lines = [
        {
            "epoch": epoch,
            "step": 10 * epoch,
            "loss": 0.7 / (1 + epoch),
            "train_seconds": 1.5,
            "valid": {metric: test[metric] * epoch / epochs, "recall@10": 0.1},
            "eval_seconds": 0.5,
        }
        for epoch in range(epochs)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = {
        "model": "BPR",
        "dataset": "shop",
        "world_size": 1,
        "best_valid": lines[-1]["valid"] if lines else {},
        "test": test,
        "epochs": epochs,
        "best_epoch": epochs - 1,
        "higher_is_better": True,
        "data": {"interactions": data, "splits": data},
        "seconds": {"total": 20.0, "startup": 2.0, "test": 0.5},
        "memory": [{"host_peak": 300 << 20, "gpu_peak": None, "tables": {"item": 1400}}],
        "plan": {"holder": "process", "host": 1312, "gpu": 0, "ssd": 0, "tables": {"item": 1312}},
        "hits": {"item": {"mean": 61.5, "max": 120, "none": 1}},
        "tables": {"item": {"rows": 41, "dim": 8, "trained": 40, "norm": {"mean": 0.5}}},
    }
    (folder / "result.json").write_text(json.dumps(result))
    values = {"model": {"name": "BPR"}, "data": {"name": "shop"}, "train": {"epochs": epochs}}
    values["eval"] = {"valid_metric": metric, "mode": "full"}
    values |= config
    (folder / "config.yaml").write_text(json.dumps(values))  # JSON is YAML
    return folder

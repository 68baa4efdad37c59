"""The other side of data.py, each in a process of its own: pandas, and torch's DataLoader over
Hugging Face `datasets`.

    python benchmarks/data_peer.py pandas CSV FOLDER
    python benchmarks/data_peer.py loader PARQUET map|stream BATCH WORKERS SECONDS
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np


def prepare_with_pandas(csv: str, folder: str) -> dict:
    """The steps of `shoal prepare`: filter users, number ids, split, bring together by user."""
    import pandas as pd

    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    frame = pd.read_csv(csv, usecols=["user_id", "book_id", "rating"])
    counts = frame.groupby("user_id")["book_id"].transform("size")
    frame = frame[(counts >= 20) & (counts <= 200)]
    users, user_words = pd.factorize(frame["user_id"])
    items, item_words = pd.factorize(frame["book_id"])
    frame = frame.assign(user=users + 1, item=items + 1)
    left = frame.groupby("user").cumcount(ascending=False)
    phase = np.where(left == 0, 2, np.where(left == 1, 1, 0))
    for name in ("user", "item", "rating"):
        np.save(to / f"{name}.npy", frame[name].to_numpy())
    for number, name in enumerate(("train", "valid", "test")):
        np.save(to / f"{name}.npy", np.flatnonzero(phase == number))
    ordered = frame.assign(phase=phase).sort_values("user", kind="stable")
    for number in (1, 2, 3):
        part = ordered[ordered["phase"] < number]
        np.save(to / f"history-{number}.npy", part["item"].to_numpy())
        np.save(to / f"counts-{number}.npy", part.groupby("user").size().to_numpy())
    for name, words in (("users", user_words), ("items", item_words)):
        (to / f"{name}.txt").write_text("\n".join(map(str, words)))
    return {"rows": len(frame)}


def read_with_datasets(parquet: str, how: str, batch: str, workers: str, seconds: str) -> dict:
    """Records per second of a DataLoader, its workers warm."""
    import datasets
    from torch.utils.data import DataLoader

    datasets.disable_progress_bars()
    streams = how == "stream"
    cache = Path(parquet).parent / "cache"
    data = datasets.load_dataset(
        "parquet", data_files=parquet, split="train", streaming=streams, cache_dir=str(cache)
    )
    if streams:
        data = data.shuffle(seed=1, buffer_size=1_000)
    loader = DataLoader(
        data.with_format("torch"),
        batch_size=int(batch),
        num_workers=int(workers),
        persistent_workers=True,  # their time can be read when an epoch has ended
        shuffle=None if streams else True,
    )
    batches = iter(loader)
    next(batches)
    workers_cpu = [worker_seconds(worker.pid) for worker in batches._workers]
    begun, own, records = time.perf_counter(), time.process_time(), 0
    for one in batches:
        records += len(next(iter(one.values())))
        if time.perf_counter() - begun > float(seconds):
            break
    seconds, cpu = time.perf_counter() - begun, time.process_time() - own
    cpu += sum(map(worker_seconds, (w.pid for w in batches._workers))) - sum(workers_cpu)
    return {"records": records, "seconds": seconds, "cpu": cpu}


def worker_seconds(pid: int) -> float:
    """CPU seconds that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    does = {"pandas": prepare_with_pandas, "loader": read_with_datasets}[sys.argv[1]]
    print(json.dumps(does(*sys.argv[2:])))

"""BERT4Rec on data of MovieLens-20M's size: generated, prepared, trained with sharded tables.

    python benchmarks/ml20m.py --folder FOLDER [--steps 240] [--processes 2]

The real set is not redistributed, so ratings of its size are generated: 138,493 users, 26,744
items, 20,000,000 interactions in order of time, no pair twice. Items come in series of 13;
a user goes from series to series, popular ones more often, and takes 8 items of each, in any order;
one item in five is any other. `shoal prepare` makes a prepared folder of the csv; then the flags of
TorchRec's example train BERT4Rec (`--mode dmp`) for so many steps, and every user's last item is
ranked among 100 drawn by popularity. What is in FOLDER already is used again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

USERS, ITEMS, RATINGS = 138_493, 26_744, 20_000_000
SERIES, TAKEN, OTHER, LEAST = 13, 8, 0.2, 20  # items of a series, taken, others; of a user
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Generate, prepare, train and print the table."""
    options = command_line()
    if options.worker:
        train_rank(json.loads(options.worker))
        return
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    print(f"command: {' '.join(['python', *sys.argv])}")
    print(f"machine: {platform.machine()}, {os.cpu_count()} cores")
    csv, prepared = folder / "ratings.csv", folder / "prepared"
    took = {}
    if not csv.is_file():
        begun = time.perf_counter()
        write(csv, *generate())
        took["generated and written"] = time.perf_counter() - begun
    if not (prepared / "manifest.json").is_file():
        begun = time.perf_counter()
        fields = ["user=userId", "item=movieId", "time=timestamp", "rating=rating"]
        keys = [*(f"--data.fields.{one}" for one in fields), "--data.split.by=leave_one_out"]
        command = [sys.executable, "-m", "shoal", "prepare", str(csv), "--to", str(prepared)]
        subprocess.run([*command, *keys], check=True, cwd=ROOT, stdout=sys.stderr)
        took["prepared"] = time.perf_counter() - begun
    given = {"folder": str(folder), "steps": options.steps, "flags": options.flags}
    begun = time.perf_counter()
    command = [sys.executable, "-m", "shoal.launch", f"--nproc={options.processes}", __file__]
    done = subprocess.run(
        [*command, "--folder", str(folder), "--worker", json.dumps(given)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    took["trained and evaluated"] = time.perf_counter() - begun
    print_tables(json.loads(done.stdout.strip().splitlines()[-1]), took)


def print_tables(found: dict, took: dict[str, float]) -> None:
    print(f"\n{found['plan']}\n\n| | |\n| --- | --- |")
    for what, seconds in took.items():
        print(f"| {what}, s | {seconds:.0f} |")
    for what, value in found["figures"].items():
        print(f"| {what} | {value} |")
    print("\n| test, 1 of 101 | chance | found |\n| --- | --- | --- |")
    for name, value in found["test"].items():
        kind, k = name.split("@")
        places = range(1, int(k) + 1)
        gained = [1.0 if kind == "recall" else 1 / np.log2(1 + place) for place in places]
        print(f"| {name} | {sum(gained) / 101:.4f} | {value:.4f} |")


# ---- data ----------------------------------------------------------------------------------------


def generate() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """User, item and time of every rating, users one after the other, each in order of time."""
    random = np.random.default_rng(20)
    weights = random.lognormal(0, 1.1, USERS)
    counts = LEAST + random.multinomial(int(1.1 * RATINGS) - LEAST * USERS, weights / sum(weights))
    counts = np.minimum(counts, ITEMS // 8)
    visits = counts * 5 // 4 // TAKEN + 4  # some series come twice, and count once
    users = np.repeat(np.arange(USERS), visits)
    number = -(-ITEMS // SERIES)
    series = (number * random.random(len(users)) ** 1.5).astype(np.int64)
    first = first_ones(users * number + series)
    users, series = users[first], series[first]
    order = random.random((len(users), SERIES), dtype=np.float32).argsort(1)[:, :TAKEN]
    items = np.minimum(series[:, None] * SERIES + order, ITEMS - 1).ravel()
    users = np.repeat(users, TAKEN)
    other = np.flatnonzero(random.random(len(items)) < OTHER)
    items[other] = random.integers(0, ITEMS, len(other))
    first = first_ones(users * ITEMS + items)
    users, items = users[first], items[first]
    within = np.arange(len(users)) - np.searchsorted(users, np.arange(USERS))[users]
    spare = np.flatnonzero(within >= LEAST)
    kept = np.ones(len(users), bool)
    kept[random.choice(spare, len(users) - RATINGS, replace=False)] = False
    users, items, within = users[kept], items[kept], within[kept]
    times = 800_000_000 + random.integers(0, 1 << 26, USERS)[users] + 60 * within
    assert len(users) == RATINGS and len(np.unique(users)) == USERS, "as it is stated"
    assert len(np.unique(items)) == ITEMS
    return users + 1, items + 1, times


def first_ones(keys: np.ndarray) -> np.ndarray:
    """Where each key is for the first time, in order."""
    found = np.unique(keys, return_index=True)[1]
    found.sort()
    return found


def write(path: Path, users: np.ndarray, items: np.ndarray, times: np.ndarray) -> None:
    """ratings.csv as MovieLens has it."""
    import polars as pl

    columns = {"userId": users, "movieId": items, "rating": np.full(len(users), 4.0)}
    hidden = path.with_suffix(".part")
    pl.DataFrame({**columns, "timestamp": times}).write_csv(hidden)
    hidden.rename(path)


# ---- training ------------------------------------------------------------------------------------


def train_rank(given: dict) -> None:
    """One rank: the reader, the model, the strategy and the evaluator of a real run."""
    from shoal.data.reader import one_ahead
    from shoal.distributed.world import connect
    from shoal.runs.build import build
    from shoal.runs.run import resolve

    world = connect("auto", 120.0)
    where = [f"--data.path={given['folder']}", "--data.name=prepared", "--data.format=prepared"]
    fields = [f"--data.fields.{one}" for one in ("user=userId", "item=movieId", "time=timestamp")]
    flags = ["--dialect=torchrec", "--mode=dmp", "--min_user_count=0", *given["flags"].split()]
    config = resolve((), [*flags, *where, *fields, "--data.fields.rating=rating"]).config
    parts = build(config, world)
    parts.model.train()
    losses = []
    batches = one_ahead(parts.reader.batches(0, world.rank, world.size))
    begun, sent = time.perf_counter(), world.bytes_sent
    for _ in range(given["steps"]):
        batch, following = next(batches)
        parts.strategy.prefetch(following)
        losses.append(float(parts.strategy.train_step(batch)))
    seconds, sent = time.perf_counter() - begun, world.bytes_sent - sent
    begun = time.perf_counter()
    test = parts.evaluator.evaluate(parts.model, "test")
    evaluated = time.perf_counter() - begun
    if world.is_main:
        size, dataset = parts.config.train.samples, parts.dataset
        tenth = max(1, given["steps"] // 10)
        figures = {
            "users, items, interactions": f"{dataset.num_users - 1:,}, {dataset.num_items - 1:,}, "
            f"{dataset.num_inter:,}",
            "flags": f"`{given['flags']}`",
            "processes, device": f"{world.size}, {world.device}",
            "global batch × steps": f"{size} × {given['steps']}",
            "records/s": f"{size * given['steps'] / seconds:.0f}",
            "ms per step": f"{1e3 * seconds / given['steps']:.0f}",
            "MiB sent per step and process": f"{sent / given['steps'] / 2**20:.2f}",
            "loss, first and last tenth": f"{np.mean(losses[:tenth]):.3f}, "
            f"{np.mean(losses[-tenth:]):.3f}",
            "evaluation of all users, s": f"{evaluated:.0f}",
        }
        plan = str(parts.strategy.plan) if hasattr(parts.strategy, "plan") else ""
        found = {"plan": plan, "figures": figures, "test": test}
        print(json.dumps(found), flush=True)
    world.close()


def command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, help="for the data, some 2 GB")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--flags",
        default="--emb_dim=64 --max_len=20 --train_batch_size=128 --lr=0.005 --mask_prob=0.3",
        help="of TorchRec's example, or keys of Shoal's",
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

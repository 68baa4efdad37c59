"""Data larger than memory: preparing it, reading it, and what it costs several processes.

    python benchmarks/data.py [--rows 5000000 20000000] [--only prepare read memory] [--memory 1GB]

prepare  a generated file of Goodreads' format becomes a prepared folder; beside it the same steps
         in pandas. Seconds and peak memory, each side in a process of its own.
read     records per second of Shoal's readers (one process) and of torch's DataLoader over Hugging
         Face `datasets` with two workers: masked windows of a prepared folder, and click rows of
         the same Parquet files, read in every epoch or prepared and shuffled.
memory   of the data while BERT4Rec's reader goes through an epoch: 1 process, 4 processes. Shared
         pages count once. In a prepared folder and read from raw files.

pandas, pyarrow and datasets are needed for the other sides; what is absent is left out and said.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
FILTER = ["--data.filter.user_inter_num=[20,200]"]
SPLIT = ["--data.split.by=leave_one_out", "--data.split.order=file"]
SECONDS = 4.0  # of reading, per measurement
LEAST = 65_536  # records of it
ROUNDS = 3
BATCH, MAX_LEN, STRIDE = 512, 20, 10
SLOTS, DENSE, CLICKS = 26, 13, 300_000


def main() -> None:
    """Measure what is asked for and print the tables."""
    parser = argparse.ArgumentParser(description="Data larger than memory.")
    parser.add_argument("--rows", type=int, nargs="+", default=[5_000_000, 20_000_000])
    parser.add_argument("--only", nargs="+", default=["prepare", "read", "memory"])
    parser.add_argument("--memory", default="1GB", help="of `shoal prepare`")
    parser.add_argument("--folder", help="for the files; a temporary one if not given")
    options = parser.parse_args()
    print(f"command: python benchmarks/data.py {' '.join(sys.argv[1:])}")
    print(
        f"machine: {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"Python {platform.python_version()}"
    )
    missing = [
        name for name in ("pandas", "pyarrow", "datasets") if not importlib.util.find_spec(name)
    ]
    if missing:
        print(f"left out, because {', '.join(missing)} cannot be imported: the other sides")
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        for rows in options.rows:
            # In a process of its own: a child's peak memory counts from that of its parent.
            maker = get_context("spawn").Process(
                target=write_books, args=(folder / f"books-{rows}.csv", rows)
            )
            maker.start()
            maker.join()
        compare_preparing(folder, options.rows, options.memory, not missing)
        last = folder / f"prepared-{options.rows[-1]}"
        if "read" in options.only:
            compare_reading(folder, last, not missing)
        if "memory" in options.only:
            compare_memory(folder, last, folder / f"books-{options.rows[-1]}.csv")


def write_books(path: Path, rows: int) -> None:
    """user_id,book_id,is_read,rating,is_reviewed: user after user, popular books more often."""
    import polars as pl

    draw = np.random.default_rng(1)
    sizes = np.clip(draw.lognormal(4.2, 0.9, rows // 20), 5, 2000).astype(np.int64)
    users = np.repeat(np.arange(len(sizes)), sizes)[:rows]
    ranks = (draw.pareto(0.6, rows) * 400).astype(np.float64) % max(1000, rows // 20)
    books = ranks.astype(np.int64) * 2654435761 % (1 << 22)
    zeros = np.zeros(rows, np.int8)
    columns = {"user_id": users, "book_id": books, "is_read": zeros + 1}
    columns |= {"rating": draw.integers(0, 6, rows), "is_reviewed": zeros}
    pl.DataFrame(columns).write_csv(path)


def measured(command: list[str]) -> tuple[float, float, float, str]:
    """Wall seconds, CPU seconds, peak GB of a command and its children, and what it printed."""
    begun = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(command, stdout=output)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {child.returncode}")
    cpu = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - begun, cpu, usage.ru_maxrss / 1e6, text


def compare_preparing(folder: Path, sizes: list[int], memory: str, peers: bool) -> None:
    """Shoal and pandas in turn, for every size."""
    print("\n| rows | side | kept | seconds | CPU seconds | peak memory, GB | CPU s per M rows |")
    print("| --- " * 7 + "|")
    shoal = [sys.executable, "-m", "shoal.cli.main", "prepare"]
    for rows in sizes:
        csv = folder / f"books-{rows}.csv"
        to = ["--to", str(folder / f"prepared-{rows}"), "--memory", memory]
        sides = {f"shoal prepare --memory {memory}": [*shoal, str(csv), *to, *FILTER, *SPLIT]}
        if peers:
            peer = [sys.executable, str(HERE / "data_peer.py"), "pandas"]
            sides["pandas"] = [*peer, str(csv), str(folder / f"pandas-{rows}")]
        for name, command in sides.items():
            wall, cpu, peak, text = measured(command)
            if name == "pandas":
                kept = json.loads(text)["rows"]
            else:
                manifest = (folder / f"prepared-{rows}" / "manifest.json").read_text()
                kept = json.loads(manifest)["body"]["rows"]
            print(
                f"| {rows:,} | {name} | {kept:,} | {wall:.1f} | {cpu:.1f} | {peak:.2f} | "
                f"{cpu / rows * 1e6:.2f} |",
                flush=True,
            )


def windows_reader(path: str, name: str = "synthetic", threads: int = 1):  # type: ignore[no-untyped-def]
    """BERT4Rec's reader over a prepared folder, or over raw files."""
    import torch

    from shoal.data.history import Histories
    from shoal.data.loading.load import load_dataset
    from shoal.data.masking import MaskedWindows, Masking
    from shoal.runs.run import resolve

    torch.set_num_threads(threads)
    words = [f"--data.path={path}", f"--data.name={name}", "--data.cache=false", *SPLIT]
    config = resolve((), ["--model=BERT4Rec", *words]).config
    dataset = load_dataset(config.data, config.run.seed)
    histories = Histories(dataset, ("train",), MAX_LEN)
    masking = Masking(random_ratio=0.0, stride=STRIDE, from_start=True, hide_last=True)
    reader = MaskedWindows(dataset, histories, masking, None, BATCH, 1)
    reader.dataset = dataset
    return reader


def read(reader) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    """Records per second, and per second of CPU."""
    begun, own, records = time.perf_counter(), time.process_time(), 0
    for batch in reader.batches(0):
        records += batch.size
        # Blocks of rows are decoded at once: on a busy machine the first may take that long alone.
        if time.perf_counter() - begun > SECONDS and records >= LEAST:
            break
    return records / (time.perf_counter() - begun), records / (time.process_time() - own)


def compare_reading(folder: Path, prepared: Path, peers: bool) -> None:
    """Records per second, the two sides in turn."""
    import polars as pl

    reader = windows_reader(str(prepared))
    batch = next(iter(reader.batches(0)))
    some = min(reader.num_samples, 200_000)
    made = reader.make(np.arange(some), 0)  # masked beforehand: the other side only reads them
    names = ("history", "target")
    lists = {n: made.ids[n].numpy().astype(np.int32) for n in names}
    frame = pl.DataFrame(
        {n: pl.Series(v, dtype=pl.Array(pl.Int32, MAX_LEN)) for n, v in lists.items()}
    )
    windows, clicks = folder / "windows-*.parquet", folder / "clicks-*.parquet"
    write_parts(frame.with_columns(pl.all().cast(pl.List(pl.Int32))), windows)
    write_parts(click_rows(), clicks)
    print(
        f"\n{reader.num_samples:,} windows of {MAX_LEN}, batch {batch.size}; {CLICKS:,} click rows"
    )
    print("| samples | side | records/s | per CPU second | shoal ÷ it | per CPU second |")
    print("| --- " * 6 + "|")
    for name, path in (("masked windows", windows), ("click rows", clicks)):
        sides: dict[str, list[tuple[float, float]]] = {"shoal": [], "map": [], "stream": []}
        ours = {"shoal": reader}
        if path == clicks:
            ours = {"shoal": click_reader(path), "shoal, prepared": prepared_clicks(folder, path)}
        for _ in range(ROUNDS):
            for how, one in ours.items():
                sides.setdefault(how, []).append(read(one))
            for how in ("map", "stream") if peers else ():
                peer = [sys.executable, str(HERE / "data_peer.py"), "loader", str(path), how]
                found = json.loads(measured([*peer, str(BATCH), "2", str(SECONDS)])[3])
                speeds = [
                    found["records"] / max(found[clock], 1e-9) for clock in ("seconds", "cpu")
                ]
                sides[how].append((speeds[0], speeds[1]))
        medians = {how: [statistics.median(x) for x in zip(*v)] for how, v in sides.items() if v}
        for how, (speed, cpu) in medians.items():
            base = medians["shoal"]
            print(
                f"| {name} | {how if how in ours else f'DataLoader, {how}'} | {speed:,.0f} | "
                f"{cpu:,.0f} | {base[0] / speed:.1f} | {base[1] / cpu:.1f} |",
                flush=True,
            )


def write_parts(frame, pattern: Path) -> None:  # type: ignore[no-untyped-def]
    """Two files, one for each worker of the other side."""
    half = -(-len(frame) // 2)
    for part in (0, 1):
        name = pattern.name.replace("*", str(part))
        frame.slice(part * half, half).write_parquet(pattern.with_name(name))


def click_rows():  # type: ignore[no-untyped-def]
    """Rows as Criteo's: a label, dense values, one id in every slot."""
    import polars as pl

    draw = np.random.default_rng(2)
    columns = {"label": draw.integers(0, 2, CLICKS).astype(np.float32)}
    columns |= {f"d{k}": draw.random(CLICKS, dtype=np.float32) for k in range(DENSE)}
    columns |= {f"s{k}": draw.integers(1, 1 << 30, CLICKS) for k in range(SLOTS)}
    return pl.DataFrame(columns)


def prepared_clicks(folder: Path, path: Path):  # type: ignore[no-untyped-def]
    """The reader of the same rows in a prepared folder, which shuffles them."""
    from shoal.clicks.memory_mapped import prepare_log
    from shoal.data.prepared.folder import PrepareJob

    prepare_log(PrepareJob([str(path)], folder / "clicks", click_config(path, "memory").data))
    return open_log(click_config(folder / "clicks", "memory"))


def click_reader(path: Path):  # type: ignore[no-untyped-def]
    """The reader of click rows that parses the file in every epoch."""
    return open_log(click_config(path, "stream"))


def open_log(config):  # type: ignore[no-untyped-def]
    """The reader that a config names."""
    from shoal.clicks import open_clicks
    from shoal.distributed.world import World
    from shoal.training.evaluation.clicks import TILE_ROWS

    return open_clicks(config, World(), TILE_ROWS).reader


def click_config(path: Path, reader: str):  # type: ignore[no-untyped-def]
    """Of a click log in Parquet, or prepared."""
    from shoal.runs.run import resolve

    names = {"slots": [f"s{k}" for k in range(SLOTS)], "dense": [f"d{k}" for k in range(DENSE)]}
    values = {f"data.clicks.{key}": value for key, value in names.items()}
    values |= {"model": "LR", "data.format": "parquet", "data.clicks.train": str(path)}
    values |= {"data.clicks.label": "label", "data.clicks.reader": reader, "train.eval_every": 0}
    return resolve(values={**values, "train.batch_size": BATCH}).config


def compare_memory(folder: Path, prepared: Path, csv: Path) -> None:
    """1 and 4 processes, each through its slices of an epoch."""
    print("\n| data from | processes | memory for data, MB | 4 ÷ 1 |")
    print("| --- " * 4 + "|")
    raw = folder / "raw" / "books"
    raw.mkdir(parents=True)
    write_inter(csv, raw / "books.inter", prepared)
    for name, place in (
        ("prepared folder", (str(prepared), "synthetic")),
        ("raw files", (str(raw.parent), "books")),
    ):
        totals = [hold(place, size) for size in (1, 4)]
        for size, total in zip((1, 4), totals):
            ratio = f"{total / totals[0]:.2f}" if size > 1 else ""
            print(f"| {name} | {size} | {total / 1e6:.0f} | {ratio} |", flush=True)


def write_inter(csv: Path, path: Path, prepared: Path) -> None:
    """What the filter keeps, as an atomic file."""
    import polars as pl

    from shoal.data.column_store import read_document
    from shoal.data.manifest import Manifest, map_columns
    from shoal.data.prepared.dataset import MANIFEST, VERSION

    manifest = Manifest.from_document(read_document(prepared / MANIFEST, VERSION))
    columns = map_columns(prepared, manifest.columns)
    names = {"user_id:token": "user_id", "item_id:token": "item_id"}
    frame = pl.DataFrame({head: np.asarray(columns[name]) for head, name in names.items()})
    frame.write_csv(path, separator="\t")


def hold(place: tuple[str, str], size: int) -> float:
    """Bytes for data of so many processes that hold it at once."""
    context = get_context("spawn")
    barrier, queue = context.Barrier(size), context.Queue()
    ranks = [
        context.Process(target=hold_here, args=(place, rank, size, barrier, queue))
        for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    total = sum(queue.get(timeout=600) for _ in ranks)
    for rank in ranks:
        rank.join()
    return total


def hold_here(place: tuple[str, str], rank: int, size: int, barrier, queue) -> None:  # type: ignore[no-untyped-def]
    """One process: its share of the mapped files' pages, and what it has besides."""
    import shoal.data.loading.load
    import shoal.data.masking
    import shoal.runs.run  # noqa: F401
    from shoal.data.statistics import describe

    before = proportional("")[1]
    barrier.wait()
    reader = windows_reader(*place)
    describe(reader.dataset)  # a run's log has these figures, and a model the items' popularity
    np.bincount(reader.dataset.item_ids("train"))
    for _ in reader.batches(0, rank, size):
        pass
    barrier.wait()
    mapped, besides = proportional(place[0])
    barrier.wait()
    queue.put(mapped + besides - before)
    barrier.wait()


def proportional(folder: str) -> tuple[int, int]:
    """Bytes of this process, shared ones by share: files of a folder, and memory of its own."""
    mapped = own = 0
    name = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            name = line.split(maxsplit=5)[5] if len(line.split(maxsplit=5)) > 5 else ""
        elif first == "Pss:":
            size = int(rest.split()[0]) * 1024
            if folder and name.startswith(folder):
                mapped += size
            elif not name.startswith("/"):
                own += size
    return mapped, own


if __name__ == "__main__":
    main()

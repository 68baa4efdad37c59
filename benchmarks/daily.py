"""Going on every day beside training anew every day: BPR on MovieLens, cut by time into days.

    python benchmarks/daily.py --data FOLDER [--name ml-1m] [--days 10] [--epochs 40]
        [--share 0.08 0.15,train.optimizer.schedule=linear] [--threads 1]

FOLDER holds NAME/NAME.inter or NAME.zip (`shoal data fetch NAME` gets it). The first half of the
interactions is what is known at first; the rest is cut into days of as many interactions each.
Every day's data set holds all interactions so far, split by time for each user, so that nothing
that is tested was trained on before. `anew` trains for all epochs; `on` goes on from the day before
(`start.run`) for a part of them (--share; several are compared, each a chain of runs of its own,
and each may have settings of its own when it goes on).
Printed are NDCG@10 of the day's test split and the CPU seconds of training, which other load on the
machine does not change; after the table, the CPU seconds of whole runs: reading, checkpoints and
evaluations too. All sides read data that another has prepared as often: they take turns.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import shoal
from shoal.training.trainer import Trainer


@dataclass
class Day:
    """What one run came to."""

    ndcg: float
    training: float  # CPU seconds
    whole: float  # likewise


def main() -> None:
    """Train both ways, day by day, and print the table."""
    options = command_line()
    lines = interactions(Path(options.data), options.name)
    names = [column.split(":")[0] for column in lines[0].split("\t")]
    when, who = names.index("timestamp"), names.index("user_id")
    rows = sorted(lines[1:], key=lambda line: float(line.split("\t")[when]))
    print(f"$ python {' '.join(sys.argv)}")
    print(f"{platform.machine()}, {options.name}, {len(rows)} interactions")
    print("| day | interactions | new users | NDCG@10 anew | CPU s |", end="")
    cells = [f" on: {share} | ratio | CPU s | ratio |" for share in options.share]
    print("".join(cells))
    print("| --- " * (5 + 4 * len(cells)) + "|", flush=True)
    with tempfile.TemporaryDirectory(prefix="daily-") as scratch:
        root, known = Path(scratch), set[str]()
        anew: list[Day] = []
        chains: dict[str, list[Day]] = {share: [] for share in options.share}
        for day in range(options.days):
            count = len(rows) // 2 + len(rows) // 2 * day // max(1, options.days - 1)
            users = {line.split("\t")[who] for line in rows[:count]}
            (root / f"day-{day}").mkdir()
            text = "\n".join([lines[0], *rows[:count]])
            (root / f"day-{day}" / f"day-{day}.inter").write_text(text + "\n")
            if day == 0:  # all begin with the same run
                train(root, day, "anew", options.epochs, options)
                known = users
                continue
            for share in ["", *options.share][:: (-1) ** day]:
                if not share:
                    anew.append(train(root, day, "anew", options.epochs, options))
                    continue
                part, *settings = share.split(",")
                epochs = max(1, round(options.epochs * float(part)))
                before = root / f"day-{day - 1}-{share if day > 1 else 'anew'}"
                chains[share].append(train(root, day, share, epochs, options, before, settings))
            told = f"| {day} | {count} | {len(users - known)} "
            told += f"| {anew[-1].ndcg:.4f} | {anew[-1].training:.1f} |"
            for on in (chain[-1] for chain in chains.values()):
                told += f" {on.ndcg:.4f} | {on.ndcg / anew[-1].ndcg:.3f} |"
                told += f" {on.training:.1f} | {on.training / anew[-1].training:.2f} |"
            print(told, flush=True)
            known = users
    for share, chain in chains.items():
        summary(share, anew, chain)


def summary(share: str, anew: list[Day], chain: list[Day]) -> None:
    """The quality and the cost of going on, over all days."""
    ratios = [on.ndcg / new.ndcg for on, new in zip(chain, anew)]
    mean = sum(on.ndcg for on in chain) / sum(new.ndcg for new in anew)
    training = sum(on.training for on in chain) / sum(new.training for new in anew)
    whole = [sum(one.whole for one in days) for days in (chain, anew)]
    print(
        f"{share} of the epochs: NDCG@10, on ÷ anew: last day {ratios[-1]:.3f}, mean {mean:.3f}, "
        f"lowest {min(ratios):.3f}; CPU time of training, on ÷ anew: {training:.3f}; of whole runs "
        f"{whole[0]:.1f} s ÷ {whole[1]:.1f} s = {whole[0] / whole[1]:.3f}"
    )


def interactions(folder: Path, name: str) -> list[str]:
    """The lines of NAME.inter, or of the ratings of NAME.zip as such."""
    plain, packed = folder / name / f"{name}.inter", folder / f"{name}.zip"
    if plain.is_file():
        return plain.read_text().splitlines()
    if not packed.is_file():
        sys.exit(f"neither {plain} nor {packed} is there; `shoal data fetch {name}` gets it")
    with zipfile.ZipFile(packed) as files:
        text = files.read(f"{name}/ratings.dat").decode("latin-1")
    head = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
    return [head, *text.replace("::", "\t").splitlines()]


def train(
    root: Path,
    day: int,
    how: str,
    epochs: int,
    options: argparse.Namespace,
    before: Path | None = None,
    settings: Sequence[str] = (),
) -> Day:
    """One run: all interactions so far, from nothing or from the run before."""
    values: dict[str, Any] = {
        "data.path": str(root),
        "data.name": f"day-{day}",
        "data.split.by": "ratio",
        "data.split.order": "time",
        "train.epochs": epochs,
        "train.eval_every": epochs,  # once, at the end
        "checkpoint.every_epochs": epochs,
        "eval.metrics": ["NDCG"],
        "eval.valid_metric": "NDCG@10",
        "run.threads": options.threads,
        "run.progress": False,
        "run.trackers": [],
        "run.log_level": "warning",
        "run.output": str(root / f"day-{day}-{how}"),
    }
    if before is not None:
        values |= {"start.run": str(before), "start.vocabulary": str(before)}
    values |= {key: yaml.safe_load(value) for key, value in (one.split("=") for one in settings)}
    spent.clear()
    begun = time.process_time()
    result = shoal.run(model="BPR", config_dict=values)
    return Day(result["test"]["ndcg@10"], sum(spent), time.process_time() - begun)


spent: list[float] = []  # CPU seconds of each epoch's training
_train = Trainer._train


def timed(trainer: Trainer, epochs: int) -> float:
    """An epoch's training, with its CPU time noted."""
    begun = time.process_time()
    try:
        return _train(trainer, epochs)
    finally:
        spent.append(time.process_time() - begun)


Trainer._train = timed  # type: ignore[method-assign]


def command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--name", default="ml-1m")
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument(
        "--share", nargs="+", default=["0.15"], help="of the epochs, when going on: S[,KEY=VALUE]"
    )
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()

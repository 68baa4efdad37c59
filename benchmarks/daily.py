"""Going on every day beside training anew every day: BPR on MovieLens, cut by time into days.

    python benchmarks/daily.py --data FOLDER [--name ml-1m] [--days 10] [--epochs 40] [--share 0.15]

FOLDER holds NAME/NAME.inter or NAME.zip (`shoal data fetch NAME` gets it). The first half of the
interactions is what is known at first; the rest is cut into days of as many interactions each.
Every day's data set holds all interactions so far, split by time for each user, so that nothing
that is tested was trained on before. `anew` trains for all epochs; `on` goes on from the day before
(`start.run`) for a part of them (--share). Printed are NDCG@10 of the day's test split, the seconds
of both, and what a day costs besides training: reading, the model, checkpoints, evaluations. Both
sides read data that the other has prepared as often: they take turns to be first.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import shoal


def main() -> None:
    """Train both ways, day by day, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--name", default="ml-1m")
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--share", type=float, default=0.15, help="of the epochs, when going on")
    options = parser.parse_args()
    lines = interactions(Path(options.data), options.name)
    names = [column.split(":")[0] for column in lines[0].split("\t")]
    when = names.index("timestamp")
    rows = sorted(lines[1:], key=lambda line: float(line.split("\t")[when]))
    print(f"$ python {' '.join(sys.argv)}")
    print(f"{platform.machine()}, {options.name}, {len(rows)} interactions")
    print(
        "| day | interactions | new users | NDCG@10 anew | on | ratio | seconds anew | on | ratio |"
    )
    print("| --- " * 9 + "|")
    with tempfile.TemporaryDirectory(prefix="daily-") as scratch:
        root, total, besides = Path(scratch), [0.0, 0.0], [0.0, 0.0]
        ends: list[float] = []
        known: set[str] = set()
        before: str | None = None
        for day in range(options.days):
            count = len(rows) // 2 + len(rows) // 2 * day // max(1, options.days - 1)
            users = {line.split("\t")[names.index("user_id")] for line in rows[:count]}
            name = f"day-{day}"
            (root / name).mkdir()
            text = "\n".join([lines[0], *rows[:count]])
            (root / name / f"{name}.inter").write_text(text + "\n")
            fewer = options.epochs if before is None else round(options.epochs * options.share)
            asked = [("anew", options.epochs, None), ("on", fewer, before)]
            done = {how: train(root, name, how, *rest) for how, *rest in asked[:: (-1) ** day]}
            (anew, anew_seconds, anew_rest), (on, on_seconds, on_rest) = done["anew"], done["on"]
            before = str(root / f"{name}-on")
            if day:
                total = [total[0] + anew_seconds, total[1] + on_seconds]
                besides = [besides[0] + anew_rest, besides[1] + on_rest]
                ends.append(on / anew)
                print(
                    f"| {day} | {count} | {len(users - known)} | {anew:.4f} | {on:.4f} | "
                    f"{on / anew:.3f} | {anew_seconds:.1f} | {on_seconds:.1f} | "
                    f"{on_seconds / anew_seconds:.2f} |",
                    flush=True,
                )
            known = users
        print(f"time of all days, on ÷ anew: {total[1] / total[0]:.2f}")
        print(f"NDCG@10, on ÷ anew: last day {ends[-1]:.3f}, lowest {min(ends):.3f}")
        print(f"seconds besides training: anew {besides[0]:.1f}, on {besides[1]:.1f}")


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
    root: Path, name: str, how: str, epochs: int, before: str | None
) -> tuple[float, float, float]:
    """NDCG@10 of the test split, seconds, and seconds besides training."""
    values: dict[str, Any] = {
        "data.path": str(root),
        "data.name": name,
        "data.split.order": "time",
        "train.epochs": epochs,
        "train.eval_every": epochs,  # once, at the end
        "eval.metrics": ["NDCG"],
        "eval.valid_metric": "NDCG@10",
        "run.threads": 1,
        "run.progress": False,
        "run.tensorboard": False,
        "run.log_level": "warning",
        "run.output": str(root / f"{name}-{how}"),
    }
    if before is not None:
        values |= {"start.run": before, "start.words": before}
    begun = time.perf_counter()
    result = shoal.run(model="BPR", config_dict=values)
    seconds = time.perf_counter() - begun
    spent = (result["seconds"]["train_epoch_median"] or 0.0) * epochs
    return result["test"]["ndcg@10"], seconds, seconds - spent


if __name__ == "__main__":
    main()

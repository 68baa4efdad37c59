"""BPR on ml-100k on 1, 2 and 4 processes of one machine: what an epoch of training takes.

    python benchmarks/bpr_processes.py --data FOLDER

FOLDER holds ml-100k/ (atomic files). The runs are those of bpr_ml100k.py (strategy ddp where there
are several processes, as the command line chooses), taken in turn, every other round in the other
order. Seconds are those of training alone, as metrics.jsonl has them for every epoch but a run's
first: no start-up, no evaluation. Printed: per round the median and the shortest epoch, and their
ratios to one process of the same round; then the medians of these.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from bpr_ml100k import BUSY, NEVER_STOP, SETTINGS, copy_data, folder_of_data, machine, run_shoal


def main() -> None:
    """Run every number of processes in turn and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that holds ml-100k/")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--threads", type=int, help="per process (default: cores ÷ processes)")
    parser.set_defaults(stopping_step=NEVER_STOP, eval_batch_size=None, nproc=1)
    options = parser.parse_args()
    data = folder_of_data(options.data)
    print(f"command: python benchmarks/bpr_processes.py {' '.join(sys.argv[1:])}")
    print(machine(options).replace("1 process(es) a side, ", ""))

    heads = [f"{n} process{'es' * (n > 1)}, s" for n in options.processes]
    heads += [f"{n} ÷ {options.processes[0]}" for n in options.processes[1:]]
    print(f"\n| round | epoch | {' | '.join(heads)} | other load, cores |")
    print("| --- |" + " --- |" * (len(heads) + 2))
    figures: dict[str, list[list[float]]] = {"median": [], "shortest": []}
    for number in range(options.rounds):
        epochs: dict[int, list[float]] = {}
        loads = []
        for nproc in options.processes[:: 1 if number % 2 == 0 else -1]:
            options.nproc = nproc
            epochs[nproc], load = run(options, data)
            loads.append(load)
        mark = f"{max(loads):.2f}" + (" (disturbed)" if max(loads) > BUSY else "")
        for name, of in (("median", statistics.median), ("shortest", min)):
            seconds = [of(epochs[nproc]) for nproc in options.processes]
            figures[name].append(seconds + [one / seconds[0] for one in seconds[1:]])
            print(f"| {number + 1} | {name} | {row(figures[name][-1])} | {mark} |", flush=True)
    for name, rounds in figures.items():
        print(f"| all | {name} | {row([statistics.median(column) for column in zip(*rounds)])} | |")


def run(options: argparse.Namespace, data: Path) -> tuple[list[float], float]:
    """Seconds of a run's epochs, less the first, and the load of other programs meanwhile."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as place:
        folder = Path(place)
        copy_data(data, folder / "data" / "ml-100k")
        (folder / "test.yaml").write_text(SETTINGS)
        load = run_shoal(options, folder)["other load, cores"]
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["train_seconds"] for line in lines[1:]], load


def row(figures: list[float]) -> str:
    """Seconds and ratios, side by side."""
    return " | ".join(f"{one:.3f}" for one in figures)


if __name__ == "__main__":
    main()

"""BPR on ml-100k: Shoal and RecBole 1.2.1 side by side, in alternating runs on one machine.

    python benchmarks/bpr_ml100k.py --data FOLDER --recbole PYTHON

FOLDER holds ml-100k/ (atomic files); PYTHON is the interpreter of an environment with RecBole. Both
run the same settings for the same number of epochs, with an evaluation after each. Printed: a table
of medians (lowest to highest) and ratios. This file needs nothing but Python's own library, so that
the memory it takes itself stays out of what it measures.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
SEED = 2020
NEVER_STOP = 100_000  # evaluations without improvement; more than any run here has
BUSY = 0.15  # cores taken by other programs; above it a run is marked as disturbed

# The settings that RecBole's page on distributed training gives for this model and data set.
SETTINGS = """\
# dataset config
USER_ID_FIELD: user_id
ITEM_ID_FIELD: item_id
load_col:
    inter: [user_id, item_id]

# model config
embedding_size: 64

# Training and evaluation config
epochs: 500
train_batch_size: 4096
eval_batch_size: 4096
train_neg_sample_args:
    distribution: uniform
    sample_num: 1
    alpha: 1.0
    dynamic: False
    candidate_num: 0
eval_args:
    group_by: user
    order: RO
    split: {'RS': [0.8,0.1,0.1]}
    mode: full
metrics: ['Recall', 'MRR', 'NDCG', 'Hit', 'Precision']
topk: 10
valid_metric: MRR@10
metric_decimal_place: 4
"""

Figures = dict[str, float]  # a row's name -> what one run measured


def main() -> None:
    """Run both sides in turn and print the table."""
    options = command_line()
    data = folder_of_data(options.data)
    recbole = version_of_recbole(options.recbole)
    if not recbole and options.only != "shoal":
        print(
            "RecBole is not installed here: give the interpreter of its environment with "
            "--recbole PYTHON or RECBOLE_PYTHON (benchmarks/README.md says how to make one). "
            "Only Shoal's figures follow.\n"
        )
    sides: dict[str, Callable[[argparse.Namespace, Path], Figures]] = {}
    if recbole and options.only != "shoal":
        sides[f"RecBole {recbole}"] = run_recbole
    if not (recbole and options.only == "recbole"):
        sides["Shoal"] = run_shoal

    print(f"command: python benchmarks/bpr_ml100k.py {' '.join(sys.argv[1:])}")
    print(machine(options), flush=True)
    runs: dict[str, list[Figures]] = {name: [] for name in sides}
    for repeat in range(options.repeats):
        # Every other round in the other order: neither side always runs on a warmer machine.
        for name in list(sides)[:: 1 if repeat % 2 == 0 else -1]:
            # A fresh folder and a fresh copy of the data: no run finds what one before it left.
            with tempfile.TemporaryDirectory(prefix="shoal-bench-") as place:
                folder = Path(place)
                copy_data(data, folder / "data" / "ml-100k")
                (folder / "test.yaml").write_text(SETTINGS)
                figures = sides[name](options, folder)
            runs[name].append(figures)
            mark = "  <- disturbed by other programs" if figures["other load, cores"] > BUSY else ""
            print(
                f"run {repeat + 1}, {name}: {figures['whole command, s']:.1f} s{mark}", flush=True
            )
    print("\n" + table(runs))


def command_line() -> argparse.Namespace:
    """The options of this benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that holds ml-100k/")
    parser.add_argument(
        "--recbole",
        metavar="PYTHON",
        default=os.environ.get("RECBOLE_PYTHON"),
        help="interpreter of RecBole's environment (default: $RECBOLE_PYTHON)",
    )
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument(
        "--early-stopping",
        action="store_true",
        help="let each side stop by itself (up to 500 epochs, patience 10) instead of --epochs",
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side")
    parser.add_argument("--nproc", type=int, default=1, help="processes of each side")
    parser.add_argument("--threads", type=int, help="threads per process (default: torch's own)")
    parser.add_argument("--eval-batch-size", type=int, help="for both (default: 4096)")
    parser.add_argument("--only", choices=["shoal", "recbole"], help="leave the other side out")
    options = parser.parse_args()
    if options.early_stopping:
        options.epochs, options.stopping_step = 500, 10
    else:
        options.stopping_step = NEVER_STOP
    return options


def folder_of_data(given: Path) -> Path:
    """The folder with ml-100k.inter: FOLDER/ml-100k, or FOLDER itself."""
    for folder in (given / "ml-100k", given):
        if (folder / "ml-100k.inter").is_file():
            return folder.resolve()
    raise SystemExit(
        f"--data {given}: no ml-100k/ml-100k.inter there. "
        "Give the folder that holds ml-100k/ with its atomic files."
    )


def copy_data(source: Path, target: Path) -> None:
    """Copy the atomic files, and nothing that a program has prepared from them."""
    target.mkdir(parents=True)
    for suffix in ("inter", "user", "item"):
        if (source / f"ml-100k.{suffix}").is_file():
            shutil.copy(source / f"ml-100k.{suffix}", target)


def version_of_recbole(python: str | None) -> str | None:
    """The version of RecBole that this interpreter has, or None."""
    if not python:
        return None
    ask = "import importlib.metadata as m; print(m.version('recbole'))"
    try:
        answer = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


def run_recbole(options: argparse.Namespace, folder: Path) -> Figures:
    """One run of RecBole in its own environment."""
    command = [options.recbole, str(HERE / "recbole_peer.py"), f"--data={folder / 'data'}"]
    command += [f"--config={folder / 'test.yaml'}", f"--epochs={options.epochs}"]
    command += [f"--stopping-step={options.stopping_step}", f"--seed={SEED}"]
    command += [f"--nproc={options.nproc}"]
    if options.nproc > 1:
        command += [f"--port={free_port()}"]
    if options.eval_batch_size:
        command += [f"--eval-batch-size={options.eval_batch_size}"]
    environment = environment_for(options)
    environment.pop("PYTHONPATH", None)  # two environments, neither sees the other's packages
    measured, output = measure(command, folder, environment)
    report = json.loads(output.strip().splitlines()[-1])
    return figures_of(report, measured)


def run_shoal(options: argparse.Namespace, folder: Path) -> Figures:
    """One run of Shoal: the command a user types."""
    command = [sys.executable, "-m", "shoal", "train", "--model=BPR", "--dataset=ml-100k"]
    command += [f"--config_files={folder / 'test.yaml'}", f"--data_path={folder / 'data'}"]
    command += [f"--epochs={options.epochs}", f"--stopping_step={options.stopping_step}"]
    command += [f"--seed={SEED}", "--show_progress=False", f"--output={folder / 'run'}"]
    if options.nproc > 1:
        command += [f"--nproc={options.nproc}"]
    if options.eval_batch_size:
        command += [f"--eval_batch_size={options.eval_batch_size}"]
    environment = environment_for(options)
    search = [
        os.path.abspath(entry) for entry in environment.get("PYTHONPATH", "").split(":") if entry
    ]
    if importlib.util.find_spec("shoal") is None:  # not installed: take the one beside this folder
        search.append(str(HERE.parent))
    environment["PYTHONPATH"] = ":".join(search)
    measured, _ = measure(command, folder, environment)
    report = json.loads((folder / "run" / "result.json").read_text())
    return figures_of(report, measured)


def environment_for(options: argparse.Namespace) -> dict[str, str]:
    """The environment of a run: ours, with the same number of threads for both sides."""
    environment = dict(os.environ)
    if options.threads:
        environment["OMP_NUM_THREADS"] = str(options.threads)
    return environment


def measure(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[Figures, str]:
    """Run a command: its seconds, peak memory of its processes, load of others; and its stdout."""
    output, errors = folder / "stdout", folder / "stderr"
    busy_before = busy_seconds()
    start = time.perf_counter()
    with output.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=err)
        peak = 0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, memory_of_tree(process.pid))
            time.sleep(0.05)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        tail = "\n".join(errors.read_text().splitlines()[-15:])
        raise SystemExit(f"{' '.join(command)}\nended with status {process.returncode}:\n{tail}")
    # The kernel's own maximum for a single process misses no peak between two samples.
    peak = max(peak, usage.ru_maxrss * 1024)
    others = busy_seconds() - busy_before - usage.ru_utime - usage.ru_stime
    return {
        "whole command, s": seconds,
        "peak memory, MB": peak / 2**20,
        "other load, cores": max(0.0, others / seconds),
    }, output.read_text()


def memory_of_tree(root: int) -> int:
    """Resident bytes of a process and all its descendants, now. Pages they share count for each."""
    total, page, waiting = 0, os.sysconf("SC_PAGE_SIZE"), [root]
    while waiting:
        folder = Path(f"/proc/{waiting.pop()}")
        try:
            total += int((folder / "statm").read_text().split()[1]) * page
            for children in folder.glob("task/*/children"):
                waiting += [int(child) for child in children.read_text().split()]
        except (OSError, IndexError, ValueError):  # it ended while we looked
            continue
    return total


def busy_seconds() -> float:
    """Seconds of work of all cores since boot, and those a hypervisor took away."""
    user, nice, system, _, _, irq, softirq, steal = (
        int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def figures_of(report: dict, measured: Figures) -> Figures:
    """The rows of the table, from what a side reports and what was measured from outside."""
    seconds = report["seconds"]
    return {
        "train, s per epoch": seconds["train_epoch_median"],
        "evaluation, s": seconds["eval_median"],
        **measured,
        "start-up, s": seconds["startup"],
        "epochs": report["epochs"],
        "best epoch": report["best_epoch"],
        **{f"test {name.lower()}": value for name, value in report["test"].items()},
    }


def table(runs: dict[str, list[Figures]]) -> str:
    """A Markdown table: medians (lowest to highest) of each side, and the ratios of the medians."""
    both = len(runs) == 2
    lines = [f"| | {' | '.join(runs)} |" + (" RecBole ÷ Shoal |" if both else "")]
    lines += ["| --- |" + " --- |" * (len(runs) + both)]
    for row in next(iter(runs.values()))[0]:
        cells, medians = [], []
        for figures in runs.values():
            values = [run[row] for run in figures if row in run]
            if not values:
                cells.append("–")
                continue
            medians.append(statistics.median(values))
            cells.append(show(row, medians[-1]))
            if len(values) > 1 and min(values) < max(values):
                cells[-1] += f" ({show(row, min(values))} to {show(row, max(values))})"
        if both:
            compared = row.endswith((", s", ", s per epoch", ", MB")) and len(medians) == 2
            cells.append(f"{medians[0] / max(medians[1], 1e-9):.2f}" if compared else "")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def show(row: str, value: float) -> str:
    """A figure with the digits that mean something in its row."""
    if row in ("epochs", "best epoch", "peak memory, MB"):
        return f"{value:.0f}"
    if row in ("whole command, s", "start-up, s", "other load, cores"):
        return f"{value:.2f}"
    return f"{value:.4f}"


def machine(options: argparse.Namespace) -> str:
    """One line on the machine and the versions, for the reader who compares."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "none"
    threads = options.threads or "torch's default"
    return (
        f"machine: {cores} cores, {platform.machine()}, {memory:.0f} GB; Python "
        f"{platform.python_version()}, torch {torch}; {options.nproc} process(es) a side, "
        f"threads: {threads}; load average at the start {os.getloadavg()[0]:.2f}"
    )


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()

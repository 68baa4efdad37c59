"""Searching hyper-parameters: BPR on ml-100k, killed twice beside uninterrupted, and RecBole's own.

    python benchmarks/tune.py --data FOLDER [--trials 30]
    python benchmarks/tune.py --data FOLDER --peer PYTHON --seconds 600

FOLDER holds ml-100k/ (atomic files); PYTHON is the interpreter of RecBole's environment (with
hyperopt). The first form searches twice, once with two SIGKILLs in its way, and compares every
trial. The second lets both tools search the same space for the same seconds, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bpr_ml100k import SETTINGS, folder_of_data, machine, version_of_recbole

HERE = Path(__file__).resolve().parent
SPACE = """\
learning_rate loguniform -8,-3
embedding_size choice [32,64,128,256]
weight_decay choice [0.0,1e-6,1e-5,1e-4]
"""
METRIC = "ndcg@10"


def main() -> None:
    """Run what is asked for and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds ml-100k/")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1, help="trials at once, of --peer's form")
    parser.add_argument("--epochs", type=int, default=500, help="at most; patience is 10")
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter of RecBole's environment")
    parser.add_argument("--seconds", type=float, default=600, help="of each side, with --peer")
    parser.add_argument("--nproc", type=int, default=1, help=argparse.SUPPRESS)  # machine() asks
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    data = folder_of_data(options.data).parent
    print(f"command: python benchmarks/tune.py {' '.join(sys.argv[1:])}")
    print(machine(options), flush=True)
    with tempfile.TemporaryDirectory(prefix="shoal-tune-") as place:
        folder = Path(place)
        (folder / "hyper.test").write_text(SPACE)
        settings = SETTINGS.replace("MRR@10", "NDCG@10").replace("epochs: 500", "")
        (folder / "test.yaml").write_text(f"{settings}epochs: {options.epochs}\n")
        if options.peer:
            beside_recbole(options, folder, data)
        else:
            killed_twice(options, folder, data)


def command(folder: Path, data: Path, output: str, *words: str) -> list[str]:
    """The search as a user types it."""
    named = ["--model=BPR", "--dataset=ml-100k", f"--data_path={data}"]
    search = [sys.executable, "-m", "shoal", "tune", str(folder / "test.yaml"), *named]
    search += ["--space", str(folder / "hyper.test"), "--output", str(folder / output)]
    return [*search, "--resume", *words]


def searched(folder: Path, output: str) -> dict[str, Any]:
    return json.loads((folder / output / "study.json").read_text())


def killed_twice(options: argparse.Namespace, folder: Path, data: Path) -> None:
    """The same search uninterrupted, and with two SIGKILLs at moments of chance."""
    trials = ("--trials", str(options.trials))
    begun = time.perf_counter()
    subprocess.run(command(folder, data, "whole", *trials), check=True, stdout=sys.stderr)
    seconds = time.perf_counter() - begun
    draw = random.Random(0)
    moments = sorted(draw.sample(range(1, max(3, options.trials)), 2))
    for trial in moments:
        process = subprocess.Popen(command(folder, data, "parts", *trials), stdout=sys.stderr)
        metrics = folder / "parts" / "trials" / f"{trial:04d}" / "metrics.jsonl"
        epoch = draw.randrange(1, 6)
        while not metrics.exists() or metrics.read_text().count("\n") < epoch:
            if process.poll() is not None:
                raise SystemExit(f"the search ended before trial {trial}")
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        print(f"killed in trial {trial}, after its epoch {epoch - 1}", flush=True)
    subprocess.run(command(folder, data, "parts", *trials), check=True, stdout=sys.stderr)
    whole, parts = searched(folder, "whole"), searched(folder, "parts")
    same = sum(a == b for a, b in zip(whole["trials"], parts["trials"]))
    stopped = sum(one["state"] == "stopped" for one in whole["trials"])
    print("\n| | uninterrupted | killed twice |\n| --- | --- | --- |")
    print(f"| trials | {len(whole['trials'])} | {len(parts['trials'])} |")
    print(f"| of these stopped early | {stopped} | |")
    print(f"| equal trials (parameters, state, value, curve) | | {same} |")
    for name in ("trial", "valid", "test"):
        cells = [one["best"][name] for one in (whole, parts)]
        shown = [one if name == "trial" else f"{one[METRIC]:.6f}" for one in cells]
        print(f"| best: {name} | {shown[0]} | {shown[1]} |")
    print(f"| seconds | {seconds:.0f} | |")
    first = whole["trials"][0]["value"]
    print(f"\nthe config as it is (trial 0): valid {METRIC} {first:.4f}")
    if whole["trials"] != parts["trials"] or whole["best"] != parts["best"]:
        raise SystemExit("they differ")


def beside_recbole(options: argparse.Namespace, folder: Path, data: Path) -> None:
    """Both tools for the same seconds."""
    version = version_of_recbole(options.peer)
    if version is None:
        raise SystemExit(f"--peer {options.peer}: no RecBole there (see benchmarks/README.md)")
    words = [options.peer, str(HERE / "tune_peer.py"), f"--data={data}"]
    words += [f"--config={folder / 'test.yaml'}", f"--space={folder / 'hyper.test'}"]
    environment = {key: v for key, v in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [*words, f"--seconds={options.seconds}"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    theirs = json.loads(done.stdout.strip().splitlines()[-1])
    limits = ("--minutes", str(options.seconds / 60), "--trials", "100000")
    subprocess.run(
        command(folder, data, "ours", *limits, "--jobs", str(options.jobs)),
        check=True,
        stdout=sys.stderr,
    )
    ours = searched(folder, "ours")
    states = [one["state"] for one in ours["trials"]]
    ended = states.count("finished") + states.count("stopped")
    print(f"\n| {options.seconds:g} s each | RecBole {version} | Shoal |\n| --- | --- | --- |")
    print(f"| trials | {theirs['trials']} | {ended} ({states.count('stopped')} stopped early) |")
    print(f"| trials, ratio | | {ended / max(1, theirs['trials']):.1f} |")
    for part in ("valid", "test"):
        found = ours["best"][part][METRIC]
        print(f"| {part} {METRIC} of the best | {theirs[part]:.4f} | {found:.4f} |")
    print(f"\nRecBole's best: {theirs['params']}; Shoal's: {ours['best']['params']}")


if __name__ == "__main__":
    main()

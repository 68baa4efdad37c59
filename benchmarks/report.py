"""A report of many runs: how long `shoal report` takes, and how large its page is.

    python benchmarks/report.py [--runs 20] [--users 20000] [--times 3]

Runs are written by hand, as tests write them: lists of ten, two metrics, 50 epochs each.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))
from report_runs import write_run  # noqa: E402


def timed(command: list[str]) -> tuple[float, float]:
    """Seconds of a command by the clock, and of processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begun
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--times", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        how = {"users": asked.users, "items": 3000, "epochs": 50}
        names = [Path(folder, f"run-{k:02d}") for k in range(asked.runs)]
        for k, name in enumerate(names):
            write_run(name, seed=k, skill=0.2 + 0.01 * k, **how)
        page = Path(folder, "page.html")
        words = ["report", *map(str, names), "--output", str(page)]
        command = [sys.executable, "-m", "shoal", *words]
        every = [timed(command) for _ in range(asked.times)]
        size = page.stat().st_size
    seconds, processor = (sorted(one)[len(every) // 2] for one in zip(*every))
    print("| runs | users each | seconds | of processors | MB |\n| --- | --- | --- | --- | --- |")
    print(
        f"| {asked.runs} | {asked.users:,} | {seconds:.1f} | {processor:.1f} | {size / 1e6:.2f} |"
    )
    print(f"median of {asked.times}; load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

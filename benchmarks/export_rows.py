"""The memory that an export takes above the rows themselves.

    python benchmarks/export_rows.py [--rows 5000000] [--dim 16] [--folder FOLDER]

A click model (FM) with a table of so many rows is trained for a few steps on synthetic clicks. A
fresh process opens the run and exports it. Printed are its memory when the model stands, with all
rows and their optimizer's state, the most that it had while it exported, and the difference; the
process that checks the artifact has its own, and is told apart.
"""

from __future__ import annotations

import argparse
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MIB = 1 << 20


def main() -> None:
    """Train, export in a process of its own, and print the table."""
    options = command_line()
    if options.export is not None:
        return export(Path(options.export))
    with tempfile.TemporaryDirectory(prefix="export-rows-", dir=options.folder) as scratch:
        train(Path(scratch), options)
        print(f"$ python {' '.join(sys.argv)}")
        print(f"{platform.machine()}, {options.rows} rows of {options.dim + 1} numbers")
        print("| with the model, MiB | most while exporting | more | of the check | seconds |")
        print("| --- " * 5 + "|", flush=True)
        subprocess.run([sys.executable, __file__, "--export", scratch], check=True)


def train(folder: Path, options: argparse.Namespace) -> None:
    """A short run with a large table."""
    import shoal

    shoal.run(
        model="FM",
        config_dict={
            "data.name": "synthetic",
            "data.clicks.synthetic.samples": 2000,
            "data.clicks.rows": options.rows,
            "model.dim": options.dim,
            "train.epochs": 1,
            "train.eval_every": 0,
            "train.optimizer.name": "adagrad",
            "run.progress": False,
            "run.trackers": [],
            "run.log_level": "warning",
            "run.output": str(folder / "run"),
        },
    )


def export(folder: Path) -> None:
    """Export, with the memory of this process watched."""
    from shoal.runs.trained_run import Trained
    from shoal.serving.artifact import export as room

    stands = 0

    class Opened(Trained):
        """Notes what it takes, and lets the system count the most from now on."""

        def __init__(self, *given, **more):  # type: ignore[no-untyped-def]
            nonlocal stands
            super().__init__(*given, **more)
            stands = status("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")

    room.Trained = Opened  # type: ignore[misc]
    begun = time.perf_counter()
    room.export(folder / "run", folder / "artifact")
    seconds, most = time.perf_counter() - begun, status("VmHWM")
    check = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    print(f"| {stands} | {most} | {most - stands} | {check} | {seconds:.1f} |")


def status(name: str) -> int:
    """A line of /proc/self/status, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 // MIB
    raise ValueError(name)


def command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--folder", help="where there is room for some GB")
    parser.add_argument("--export", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

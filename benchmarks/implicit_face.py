"""ALS of implicit's scripts: `shoal.compat.implicit` beside implicit itself, in turn.

    python -m venv PEER && PEER/bin/pip install implicit
    python benchmarks/implicit_face.py --peer PEER/bin/python [--rounds 3] [--busy]

Each side fits in a process of its own; the first fit of a process is left out. CPU seconds are of
all its threads. --busy: beside a process that keeps one core busy; compare both tables.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys

SHAPES = {"1,872 users, 3,846 items": (1872, 3846, 42_000), "Last.FM": (1892, 17_632, 92_834)}
SIDES = {"shoal": "shoal.compat.implicit.als", "implicit": "implicit.als"}
SCRIPT = """
import sys, time
from importlib import import_module
import numpy as np
from scipy import sparse
users, items, count, factors = map(int, sys.argv[2:])
random = np.random.default_rng(1)
popularity = 1.0 / np.arange(1, items + 1) ** 0.8
popularity /= popularity.sum()
places = random.integers(0, users, count), random.choice(items, count, p=popularity)
values = random.integers(1, 6, count).astype(float)
matrix = sparse.csr_matrix((values, places), (users, items))
for fit in range(3):
    model = import_module(sys.argv[1]).AlternatingLeastSquares(factors=factors, random_state=1)
    wall, cpu = time.perf_counter(), time.process_time()
    model.fit(matrix, show_progress=False)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    user, item = (np.asarray(one, np.float64) for one in (model.user_factors, model.item_factors))
    entries = matrix.tocoo()
    scores = (user[entries.row] * item[entries.col]).sum(1)
    loss = ((user.T @ user) * (item.T @ item)).sum() - (scores**2).sum()
    loss += (entries.data * (scores - 1) ** 2).sum() + 0.01 * ((user**2).sum() + (item**2).sum())
    if fit:
        print(wall, cpu, loss)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", required=True, help="the Python that implicit is installed in")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--factors", type=int, default=64)
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    pythons = {"shoal": sys.executable, "implicit": options.peer}
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if options.busy else None
    print(f"{platform.machine()}, {os.cpu_count()} cores{', one of them busy' * options.busy}")
    print("| data | side | seconds | CPU seconds | loss |\n| --- | --- | --- | --- | --- |")
    try:
        for shape, sizes in SHAPES.items():
            found: dict[str, list[tuple[float, ...]]] = {side: [] for side in SIDES}
            for _ in range(options.rounds):
                for side, module in SIDES.items():
                    arguments = [module, *map(str, sizes), str(options.factors)]
                    found[side] += measure(pythons[side], arguments)
            for side, fits in found.items():
                wall, cpu, loss = (statistics.median(values) for values in zip(*fits))
                print(f"| {shape} | {side} | {wall:.2f} | {cpu:.2f} | {loss:,.0f} |", flush=True)
    finally:
        if busy is not None:
            busy.kill()


def measure(python: str, arguments: list[str]) -> list[tuple[float, ...]]:
    """Seconds, CPU seconds and the loss of each fit of a process."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # as implicit recommends
    command = [python, "-c", SCRIPT, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [tuple(map(float, line.split())) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    main()

"""Models in closed form: IALS beside implicit's ALS, EASE's inverse beside LAPACK's.

    python -m venv PEER && PEER/bin/pip install implicit
    python benchmarks/closed_form.py --peer PEER/bin/python [--threads 1] [--rounds 3]
    python benchmarks/closed_form.py --large 40000 --models ItemKNN UserKNN EASE --threads 16

Both sides take turns, so that they share what else runs on the machine. implicit minimises the same
loss: with confidence c = (1 + alpha) / alpha for what was taken and nu = 0 it is IALS's, up to a
factor, with vectors longer by sqrt(1 + alpha). Losses are computed here for both, in float64. The
time of a side is that of fitting alone; CPU seconds are of all its threads.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal.data.batch import Jagged
from shoal.models import find
from shoal.models.base import Facts
from shoal.models.general.ials import IALS
from shoal.models.nn.closed_form import negative_inverse_
from shoal.models.nn.least_squares import LeastSquares, ListsByLength, solve
from shoal.models.nn.user_items import UserItems

USERS, ITEMS, ROWS, WIDTH = 24_000, 13_670, 296_767, 64
ALPHA, REG = 0.1, 1.0

PEER = """
import sys, time
import numpy as np, scipy.sparse as sp
from implicit.cpu.als import AlternatingLeastSquares
folder, cg, epochs, threads, width, confidence, reg = sys.argv[1:]
given = np.load(folder + "/pairs.npz")
shape = tuple(given["shape"])
values = np.full(len(given["users"]), float(confidence), np.float32)
taken = sp.csr_matrix((values, (given["users"], given["items"])), shape)
model = AlternatingLeastSquares(
    factors=int(width), regularization=float(reg), alpha=1.0, iterations=int(epochs),
    use_cg=cg == "cg", num_threads=int(threads), random_state=1)
wall, cpu = time.perf_counter(), time.process_time()
model.fit(taken, show_progress=False)
print(time.perf_counter() - wall, time.process_time() - cpu)
np.savez(folder + "/peer.npz", users=model.user_factors, items=model.item_factors)
"""


def main() -> None:
    """Measure and print the tables."""
    options = command_line()
    torch.set_num_threads(options.threads)
    print(f"command: {' '.join(['python', *sys.argv])}")
    print(f"machine: {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(f"threads: {options.threads}; medians of {options.rounds} rounds")
    if options.large:
        large(options)
        return
    if options.peer:
        als(options)
    inverse(options)


def als(options: argparse.Namespace) -> None:
    """IALS and implicit, both solvers each."""
    users, items = pairs()
    facts = Facts(
        USERS, ITEMS, train_users=torch.from_numpy(users), train_items=torch.from_numpy(items)
    )
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/pairs.npz", users=users, items=items, shape=(USERS, ITEMS))
        for _ in range(options.rounds):
            for solver in ("cg", "cholesky"):
                own = measured_here(solver, options.epochs, facts)
                found.setdefault((solver, "shoal"), []).append(own)
                peer = measured_peer(solver, folder, facts, options)
                found.setdefault((solver, "implicit"), []).append(peer)
    print(f"\n{len(users):,} pairs, {USERS:,} users, {ITEMS:,} items, {WIDTH} wide")
    print("| solver | | epochs | seconds | CPU seconds | loss |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (solver, side), rounds in found.items():
        wall, cpu, loss = (statistics.median(one) for one in zip(*rounds))
        print(f"| {solver} | {side} | {options.epochs} | {wall:.1f} | {cpu:.1f} | {loss:,.0f} |")


def pairs() -> tuple[np.ndarray, np.ndarray]:
    """Different pairs of users and items, some of both far more frequent than others."""
    rng = np.random.default_rng(0)
    users = (USERS * rng.random(ROWS) ** 2).astype(np.int64)
    items = (ITEMS * rng.random(ROWS) ** 3).astype(np.int64)
    return np.divmod(np.unique(users * ITEMS + items), ITEMS)


def measured_here(solver: str, epochs: int, facts: Facts) -> tuple[float, float, float]:
    torch.manual_seed(1)
    own = IALS.Options(
        embedding_size=WIDTH, epochs=epochs, alpha=ALPHA, reg_weight=REG, nu=0.0, solver=solver
    )
    wall, cpu = time.perf_counter(), time.process_time()
    model = IALS(own, facts)
    model.solve()
    spent = time.perf_counter() - wall, time.process_time() - cpu
    return *spent, loss(facts, model.items)


def measured_peer(
    solver: str, folder: str, facts: Facts, options: argparse.Namespace
) -> tuple[float, float, float]:
    scale = (1 + ALPHA) / ALPHA
    given = [folder, solver, options.epochs, options.threads, WIDTH, scale, REG * scale]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [options.peer, "-c", PEER, *map(str, given)]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    wall, cpu = map(float, printed.stdout.split())
    vectors = torch.from_numpy(np.load(Path(folder) / "peer.npz")["items"]) / (1 + ALPHA) ** 0.5
    return wall, cpu, loss(facts, vectors)


def loss(facts: Facts, items: Tensor) -> float:
    """Of item vectors and the best user vectors for them, in float64."""
    items = items.double()
    taken = UserItems(facts.train_users, facts.train_items, USERS, ITEMS)
    lists = ListsByLength(Jagged(taken.items, taken.starts), ITEMS, WIDTH)
    users = solve(LeastSquares(alpha=ALPHA, reg_weight=REG, nu=0.0), lists, items)
    scores = (users[facts.train_users] * items[facts.train_items]).sum(1)
    everything = (users.T @ users * (items.T @ items)).sum()
    penalty = users.square().sum() + items.square().sum()
    return float((scores - 1).square().sum() + ALPHA * everything + REG * penalty)


def inverse(options: argparse.Namespace) -> None:
    """The inverse of a symmetric matrix, in place, and by LAPACK's potrf and potri."""
    rng = np.random.default_rng(1)
    seconds: dict[str, list[float]] = {"shoal": [], "LAPACK": []}
    count = options.items
    some = torch.from_numpy((rng.random((2000, count)) < 0.01).astype(np.float64))
    matrix = some.T @ some
    matrix.diagonal().add_(250.0)
    for _ in range(options.rounds):
        own = matrix.clone()
        start = time.process_time()
        negative_inverse_(own, "EASE")
        seconds["shoal"].append(time.process_time() - start)
        start = time.process_time()
        peer = torch.cholesky_inverse(torch.linalg.cholesky(matrix))
        seconds["LAPACK"].append(time.process_time() - start)
        difference = float((own + peer).abs().max() / peer.abs().max())
        del own, peer
    here, there = (statistics.median(seconds[name]) for name in ("shoal", "LAPACK"))
    print(
        f"\ninverse of {count:,} x {count:,}, float64, CPU seconds: {here:.1f}; LAPACK {there:.1f}"
    )
    print(f"ratio {here / there:.2f}, relative difference {difference:.0e}")


def large(options: argparse.Namespace) -> None:
    """Models of so many items: seconds, and the most memory that their process took."""
    print(
        f"\n{options.large:,} items, {options.large:,} users, {20 * options.large:,} pairs at most"
    )
    print("| model | seconds | peak, GB |\n| --- | --- | --- |", flush=True)
    for name in options.models:
        process = multiprocessing.get_context("spawn").Process(
            target=fit_large, args=(name, options.large, options.threads)
        )
        process.start()
        process.join()


def fit_large(name: str, count: int, threads: int) -> None:
    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    users = (count * rng.random(20 * count) ** 1.5).astype(np.int64)
    items = (count * rng.random(20 * count) ** 1.5).astype(np.int64)
    pairs = [torch.from_numpy(x) for x in np.divmod(np.unique(users * count + items), count)]
    facts = Facts(count, count, train_users=pairs[0], train_items=pairs[1])
    model = find(name)
    start = time.perf_counter()
    model(model.Options(), facts).solve()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # of kB
    print(f"| {name} | {time.perf_counter() - start:.1f} | {peak:.1f} |", flush=True)


def command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="a Python that has implicit; without it EASE alone")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--items", type=int, default=6000, help="of EASE")
    parser.add_argument("--large", type=int, help="items of the models that are fitted alone")
    parser.add_argument("--models", nargs="+", default=["ItemKNN", "UserKNN", "EASE", "SLIM"])
    return parser.parse_args()


if __name__ == "__main__":
    main()

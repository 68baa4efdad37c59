"""The best 100 items of many users: `shoal recommend --all` and implicit's `recommend`.

    python benchmarks/bulk.py [--users 1000000] [--items 100000] [--dim 64] [--measured 16384]

Both are given the same vectors, and leave out what each user has seen (20 items). Users come in
chunks as the command takes them; the two take turns, chunk by chunk. Printed are medians, the
median of the ratios within a round, and how much of the lists is the same: places whose scores are
equal to float32's last digits may change. `--measured` of the users are ranked; the others would
take as long, chunk after chunk. Needs `implicit` (`pip install implicit`).
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as implicit asks for

import numpy as np
import torch

from shoal.kernels.topk import DotProducts, rank

CHUNK = 8192


def main() -> None:
    """Measure and print the table."""
    options = command_line()
    torch.set_num_threads(options.threads)
    try:
        import scipy.sparse
        from implicit.als import AlternatingLeastSquares
    except ImportError as error:
        sys.exit(f"{error}; pip install implicit, or put it on PYTHONPATH")
    random = np.random.default_rng(0)
    users = random.standard_normal((options.users, options.dim), dtype=np.float32)
    items = random.standard_normal((options.items, options.dim), dtype=np.float32)
    seen = random.integers(0, options.items, (options.users, 20))

    peer = AlternatingLeastSquares(factors=options.dim, use_gpu=False, num_threads=options.threads)
    peer.user_factors, peer.item_factors = users, items
    vectors = torch.from_numpy(items)

    def by_implicit(first: int) -> np.ndarray:
        chosen = np.arange(first, first + CHUNK)
        rows = np.repeat(np.arange(CHUNK), 20)
        taken = seen[first : first + CHUNK].reshape(-1)
        ones = np.ones(len(rows), np.float32)
        matrix = scipy.sparse.csr_matrix((ones, (rows, taken)), shape=(CHUNK, options.items))
        return peer.recommend(chosen, matrix, N=options.topk)[0]

    def by_shoal(first: int) -> np.ndarray:
        queries = torch.from_numpy(users[first : first + CHUNK])
        rows = np.repeat(np.arange(CHUNK), 20)
        taken = seen[first : first + CHUNK].reshape(-1)
        fill = DotProducts(queries, vectors)
        return rank(fill, CHUNK, options.items, options.topk, (rows, taken))[0].numpy()

    by_implicit(0), by_shoal(0)
    times: dict[str, list[float]] = {"implicit": [], "shoal": []}
    same = of_all = sets = lists = 0
    for first in range(0, min(options.measured, options.users - CHUNK + 1), CHUNK):
        found = {}
        for name, work in (("implicit", by_implicit), ("shoal", by_shoal)):
            begun = time.perf_counter()
            found[name] = work(first)
            times[name].append(time.perf_counter() - begun)
        same += int((found["implicit"] == found["shoal"]).sum())
        of_all += found["shoal"].size
        for mine, other in zip(found["shoal"], found["implicit"]):
            sets += set(mine.tolist()) == set(other.tolist())
            lists += 1
    ratios = [a / b for a, b in zip(times["implicit"], times["shoal"])]
    print(f"$ python {' '.join(sys.argv)}")
    print(f"{platform.machine()}, {options.threads} threads, torch {torch.__version__}")
    print("| users | items | dim | top | implicit, users/s | Shoal, users/s | ratio |", end="")
    print(" same places | same sets |")
    print("| --- " * 9 + "|")
    rates = [CHUNK / statistics.median(times[name]) for name in ("implicit", "shoal")]
    print(
        f"| {options.users} | {options.items} | {options.dim} | {options.topk} | {rates[0]:.0f} | "
        f"{rates[1]:.0f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
        f"{max(ratios):.2f}) | {same / of_all:.5f} | {sets / lists:.5f} |"
    )


def command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--topk", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--measured", type=int, default=5 * CHUNK)
    return parser.parse_args()


if __name__ == "__main__":
    main()

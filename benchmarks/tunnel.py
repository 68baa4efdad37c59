"""What encryption between hosts costs: `launch.encrypt`, over two network namespaces of this host.

    python benchmarks/tunnel.py            # needs root and the command `ip`

Two ranks, each in a network namespace, sum an array of 64 MB and one of 8 bytes over all ranks,
with and without `launch.encrypt`. The line between the namespaces is memory, so that it is the
processor alone that bounds the rate.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

PORT = 5678
SECRET = "of this benchmark alone"


def measure_rank(rank: int, address: str, encrypt: bool, rounds: int) -> None:
    """Take part as one of two ranks; rank 0 prints seconds of a large sum and of a small one."""
    import torch

    from shoal.distributed.rank_variables import set_rank
    from shoal.distributed.world import connect

    set_rank(rank, 2, 0, 1, address, PORT, SECRET.encode())
    world = connect("cpu", threads=1, encrypt=encrypt)
    large, small = torch.ones(16 << 20), torch.ones(2)
    large_seconds, small_seconds = [], []
    world.all_reduce(large)
    for _ in range(rounds):
        begin = time.perf_counter()
        world.all_reduce(large)
        large_seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for _ in range(200):
            world.all_reduce(small)
        small_seconds.append((time.perf_counter() - begin) / 200)
    world.barrier()
    if rank == 0:
        print(statistics.median(large_seconds), statistics.median(small_seconds), flush=True)
    world.close()


def measure_pair(encrypt: bool, rounds: int) -> tuple[float, float]:
    """Seconds of a large and of a small sum between two namespaces."""
    from net_hosts import ADDRESSES, joined_hosts

    with joined_hosts() as hosts:
        words = (sys.executable, __file__, "--rounds", str(rounds), "--encrypt", str(int(encrypt)))
        ranks = [
            subprocess.Popen(
                ("ip", "netns", "exec", name, *words, "--rank", str(rank), "--ip", ADDRESSES[0]),
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank, name in enumerate(hosts.names)
        ]
        outputs = [rank.communicate(timeout=280)[0] for rank in ranks]
        large, small = map(float, outputs[0].split())
        return large, small


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind, in turns")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ip", help=argparse.SUPPRESS)
    parser.add_argument("--encrypt", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        measure_rank(options.rank, options.ip, bool(options.encrypt), options.rounds)
        return
    figures: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(options.repeats):
        for encrypt, pairs in figures.items():
            pairs.append(measure_pair(encrypt, options.rounds))
    print("| | 64 MB, ms | MB/s | 8 bytes, ms |")
    print("| --- | --- | --- | --- |")
    for encrypt, pairs in figures.items():
        large, small = (statistics.median(column) for column in zip(*pairs))
        name = "encrypted" if encrypt else "plain"
        rate = (64 << 20) / 1e6 / large
        print(f"| {name} | {large * 1000:.0f} | {rate:.0f} | {small * 1000:.2f} |")


if __name__ == "__main__":
    main()

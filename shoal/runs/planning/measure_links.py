"""A script of two ranks: how fast they talk. measure.py starts it, rank 0 writes the times down.

python -m shoal.launch --nproc 2 measure_links.py FILE cpu|cuda SCALE
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from shoal.world.world import World, connect

LARGE = 1 << 26  # bytes


def times_of(run: Callable[[], object], world: World, seconds: float, most: int) -> list[float]:
    """Seconds of each call, as many on every rank; the first two do not count."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    go_on = torch.ones(1)
    while len(taken) < 7 or go_on.item():
        world.barrier()
        begin = time.perf_counter()
        run()
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
        more = time.perf_counter() < end and len(taken) < most
        go_on = world.all_reduce(torch.full((1,), float(more), device=world.device))
    return taken[2:]


def main(file: str, device: str, scale: float) -> None:
    """All-reduce and all-to-all of a large tensor, and a message of a few bytes."""
    world = connect(device=device, threads=1)
    numbers = max(64, int(LARGE * scale) // 4 // 64 * 64)
    x = torch.ones(numbers, device=world.device)
    small = torch.ones(2, device=world.device)
    half, seconds = [numbers // 2, numbers // 2], 1.5 * scale
    # Bytes that a rank sends: all of a sum of two, half of what is exchanged.
    found = {
        "all_reduce": (times_of(lambda: world.all_reduce(x), world, seconds, 50), 4.0 * numbers),
        "all_to_all": (
            times_of(lambda: world.all_to_all(x, half, half), world, seconds, 50),
            2.0 * numbers,
        ),
        "latency": (
            times_of(lambda: world.all_to_all(small, [1, 1], [1, 1]), world, seconds / 4, 500),
            None,
        ),
    }
    if world.is_main:
        Path(file).write_text(json.dumps(found))
    world.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))

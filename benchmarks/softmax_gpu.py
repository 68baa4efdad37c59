"""The kernels of a softmax that updates its rows, on one GPU: ms of each, and of other shapes.

    python benchmarks/softmax_gpu.py                 # as they are, beside the byte floor
    python benchmarks/softmax_gpu.py --tune          # other tiles, for batches of 8 and 512

500,000 rows of width 128 with Adam and a bias, positions as of BERT4Rec's batches of 8 and 512
(a fifth of 16 places). The floor: `pool` reads all rows once, `update` reads and writes rows and
two moments, by the speed of a large copy in the same run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from rows_gpu import copy_speed, time_of

from shoal.kernels.gpu import softmax as triton_softmax
from shoal.optimizers.row_optimizer import RowOptimizer

DEVICE = torch.device("cuda")


class Case:
    def __init__(self, rows: int, dim: int, count: int):
        make = torch.Generator(DEVICE).manual_seed(1)
        draw = {"device": DEVICE, "generator": make}
        self.hidden = torch.randn(count, dim, **draw)
        self.targets = torch.randint(1, rows, (count,), **draw)
        self.rows = tuple(torch.randn(rows, dim, **draw).abs_() * 0.02 for _ in range(3))
        self.bias = tuple(torch.rand(rows, 1, **draw) * 0.02 for _ in range(3))
        self.numbers = torch.tensor([1e-3, 1e-8, 1e-3, 1.0], device=DEVICE)
        self.scale = torch.tensor(1e-3, device=DEVICE)
        self.stop, self.optimizer = rows - 1, RowOptimizer("adam")

    def pool(self, shape: dict[str, int] | None = None) -> Any:
        given = self.hidden, self.rows[0], self.bias[0], self.targets, self.stop
        return triton_softmax.pool(*given, shape=shape)

    def update(self, made: Any, shape: dict[str, int] | None = None) -> None:
        _, _, normalizers, parts = made
        triton_softmax.update(
            parts,
            self.targets,
            normalizers,
            self.scale,
            self.rows,
            self.bias,
            self.numbers,
            self.stop,
            self.optimizer,
            shape,
        )


def shapes(kind: str, count: int) -> Iterator[dict[str, int]]:
    """Tiles to try."""
    few = count <= triton_softmax.FEW
    if kind == "pool":
        tiles = [(32, 32), (32, 64), (32, 128)] if few else [(64, 64), (128, 64), (128, 128)]
    else:
        tiles = [(32, 16), (32, 32), (32, 64)] if few else [(64, 64), (64, 128), (128, 128)]
    for (positions, rows), warps in product(tiles, (2, 4) if few else (4, 8)):
        stages = 3 if few and kind == "pool" else 2
        yield {"POSITIONS": positions, "ROWS": rows, "num_warps": warps, "num_stages": stages}


def ms(run: Callable[[], Any]) -> float:
    try:
        return time_of(lambda k: run(), 10, 3)
    except Exception as error:  # tiles that a GPU has no room for
        print(f"    {str(error).splitlines()[0][:70]}")
        return float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=500_002)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--counts", type=int, nargs="+", default=[32, 1664])
    parser.add_argument("--precisions", nargs="+", default=["highest", "high"])
    parser.add_argument("--tune", action="store_true")
    args = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    table = 4 * args.rows * args.dim
    speed = copy_speed()
    for precision, count in product(args.precisions, args.counts):
        torch.set_float32_matmul_precision(precision)
        case = Case(args.rows, args.dim, count)
        made = case.pool()
        kernels: dict[str, Callable[..., Any]] = {
            "pool": case.pool,
            "update": lambda shape=None, case=case, made=made: case.update(made, shape),
        }
        for (kind, run), factor in zip(kernels.items(), (1, 6)):
            floor = factor * table / speed
            print(f"{precision} {count} {kind} {ms(run):.3f} ms, floor {floor:.3f}", flush=True)
            if args.tune:
                found = [(ms(partial(run, shape)), shape) for shape in shapes(kind, count)]
                for taken, shape in sorted(found, key=lambda one: one[0])[:3]:
                    print(f"    {taken:.3f} {shape}", flush=True)


if __name__ == "__main__":
    main()

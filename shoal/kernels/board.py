"""Board: where ranks of one host leave rows' gradients for each other, in memory that they share.

Every rank has a place of its own there (csrc/board.h). What it writes others read once all have
met; by the time that it writes there again they have met anew, and nobody reads it any longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.kernels.core import load_core


@dataclass(frozen=True)
class Given:
    """What a rank has of one table: ids [n_k] of its lookups, and values [n_k, dim] of each."""

    ids: Sequence[Tensor]
    values: Sequence[Tensor]
    dim: int
    limit: int | None  # ids are below it, where that is known


class Board:
    """The board, as one rank sees it."""

    def __init__(self, file: int, start: int, size: int, rank: int, ranks: int):
        """Bytes `start` to `start + size` of a file, zeros at first."""
        self.core: Any = load_core().Board(file, start, size, rank, ranks)

    def write(self, flat: Tensor, tables: Sequence[Given]) -> int:
        """Write floats that all add up, and rows, repeated ones summed; returns the bytes.

        Where there is no room for them (0), all learn of it from `read`.
        """
        entries = [_entry(one) for one in tables]
        threads = torch.get_num_threads()
        fits = self.core.write(flat.data_ptr(), flat.numel(), entries, threads)
        return self.core.bytes_written if fits else 0

    def read(self, flat: Tensor) -> bool:
        """Once all have met: everybody's floats, summed into `flat`; False: there was no room."""
        return self.core.sums(flat.data_ptr(), flat.numel())

    def rows(self, number: int, dim: int, scale: float) -> tuple[Tensor, Tensor]:
        """Ids [n] and values [n, dim], multiplied, of all ranks of the table written as `number`.

        An id comes once of each rank that has it.
        """
        count = self.core.count_rows(number, dim)
        ids, values = torch.empty(count, dtype=torch.int64), torch.empty(count, dim)
        self.core.read(number, dim, scale, ids.data_ptr(), values.data_ptr(), count)
        return ids, values


def _entry(given: Given) -> tuple[list[int], list[int], list[int], int, int]:
    """What the core takes: addresses, of arrays that are what it takes them for."""
    lengths = [len(ids) for ids in given.ids]
    for ids, values, length in zip(given.ids, given.values, lengths, strict=True):
        _check("ids", ids, torch.int64, (length,))
        _check("values", values, torch.float32, (length, given.dim))
    return (
        [ids.data_ptr() for ids in given.ids],
        lengths,
        [values.data_ptr() for values in given.values],
        given.dim,
        -1 if given.limit is None else given.limit,
    )


def _check(what: str, given: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Refuse a tensor whose memory is not an array of this dtype and shape."""
    if given.dtype != dtype or given.shape != shape:
        raise ValueError(
            f"{what} are {given.dtype} {list(given.shape)}; they must be {dtype} {list(shape)}"
        )
    if not given.is_contiguous():
        raise ValueError(
            f"{what} {list(given.shape)} have strides {list(given.stride())}; they must be "
            "contiguous (.contiguous())"
        )

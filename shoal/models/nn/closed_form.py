"""What closed-form models share: buffers of the solution, memory, progress, a large inverse,
singular vectors."""

import logging
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shoal.kernels.host_memory import free_memory
from shoal.kernels.parallel import ThreadTeam

__all__ = [
    "Progress",
    "ThreadTeam",
    "check_memory",
    "expect_solution",
    "negative_inverse_",
    "singular_vectors",
]
log = logging.getLogger("shoal")


def expect_solution(
    model: nn.Module, name: str, *shape: int | None, dtype: torch.dtype = torch.float32
) -> None:
    """Register a buffer that `solve` computes or a checkpoint restores.

    Until then it takes no memory. shape: None for a size that only the solution knows.
    """
    empty = torch.zeros((), dtype=dtype).expand([size or 0 for size in shape])
    model.register_buffer(name, empty)
    model.register_load_state_dict_pre_hook(partial(_make_room, name=name, shape=shape))


def _make_room(
    model: nn.Module,
    state: dict[str, Tensor],
    prefix: str,
    *_: Any,
    name: str,
    shape: tuple[int | None, ...],
) -> None:
    """Give a buffer the memory that a checkpoint's solution needs, if it has the right shape."""
    solution = state.get(prefix + name)
    if solution is None or len(solution.shape) != len(shape):
        return  # loading reports it
    if all(size in (None, other) for size, other in zip(shape, solution.shape)):
        setattr(model, name, getattr(model, name).new_empty(solution.shape))


FEWER_ITEMS = (
    "leave out rare items (data.filter.item_inter_num), or choose a model that learns vectors, "
    "such as IALS"
)


def check_memory(what: str, num_bytes: int, remedy: str = FEWER_ITEMS) -> None:
    """Refuse a matrix that does not fit into memory, before a minute is spent on it."""
    free = free_memory()
    if num_bytes > free.num_bytes:
        raise ValueError(f"{what} needs {num_bytes / 1e9:.1f} GB of memory, and {free}; {remedy}")


class Progress:
    """Logs how far a long computation is, every ten seconds; a short one logs nothing."""

    def __init__(self, what: str, total: float):
        self.what, self.total = what, total
        self.start = self.logged = time.monotonic()

    def __call__(self, done: float) -> None:
        now = time.monotonic()
        if now - self.logged >= 10.0:
            left = (now - self.start) * (self.total - done) / done
            log.info(
                "%s: %.0f %% done, about %.0f s left", self.what, 100 * done / self.total, left
            )
            self.logged = now


def negative_inverse_(matrix: Tensor, what: str, width: int = 512) -> Tensor:
    """-inverse of a symmetric positive definite matrix [n, n], in its own memory.

    Blocks of rows are eliminated one after the other, each by the Cholesky factor of its diagonal
    block D. With P the block's columns of all other rows:

        others -= P D^-1 P^T        P becomes P D^-1        D becomes -D^-1

    After the last block all of the matrix is -inverse. n^3 multiplications, as LAPACK's potrf and
    potri have: the lower triangle is computed, and mirrored at the end.
    """
    count = len(matrix)
    starts = range(0, count, width)
    progress = Progress(what, count)
    for start in starts:
        stop = min(start + width, count)
        own = matrix[start:stop, start:stop].tril()
        own = own + own.tril(-1).T
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(own))
        columns = torch.cat([matrix[start:stop, :start].T, own, matrix[stop:, start:stop]])
        columns[start:stop] = 0.0
        solved = columns @ inverse
        for first in starts:
            last = min(first + width, count)
            matrix[first:, first:last].addmm_(solved[first:], columns[first:last].T, alpha=-1.0)
        matrix[start:stop, :start] = solved[:start].T
        matrix[stop:, start:stop] = solved[stop:]
        matrix[start:stop, start:stop] = -inverse
        progress(stop)
    for start in starts:
        stop = min(start + width, count)
        own = matrix[start:stop, start:stop].tril()
        matrix[start:stop, start:stop] = own + own.tril(-1).T
        matrix[start:stop, stop:] = matrix[stop:, start:stop].T
    return matrix


def singular_vectors(matrix: Tensor, rank: int, what: str, tolerance: float = 5e-3) -> Tensor:
    """The first right singular vectors of a sparse matrix [n, m]: [m, rank].

    Random vectors, some more than are wanted, are multiplied by M^T M twice and made orthogonal,
    again and again, until no wanted singular value grows by more than this share in a sweep. The
    same matrix has the same vectors every time; they are exact where rank is almost all of them.
    """
    sweeps, (n, m) = 20, matrix.shape
    width = min(rank + max(16, rank // 8), n, m)
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(m, width, generator=generator, dtype=matrix.dtype)
    across, before = matrix.t().coalesce(), torch.zeros(rank, dtype=matrix.dtype)
    progress = Progress(what, sweeps)
    for sweep in range(1, sweeps + 1):
        basis = torch.sparse.mm(across, torch.sparse.mm(matrix, basis))
        basis = torch.linalg.qr(basis).Q
        images = torch.sparse.mm(matrix, basis)  # [n, width]
        squares, rotation = torch.linalg.eigh(images.T @ images)  # the largest last
        vectors = basis @ rotation.flip(1)[:, :rank]
        values = squares.flip(0)[:rank].clamp(min=0.0).sqrt()
        if bool((values - before <= tolerance * values).all()):
            break
        before = values
        basis = torch.sparse.mm(across, images)
        progress(sweep)
    return vectors

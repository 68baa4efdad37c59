"""Local: rows in this process. Chooses the engine that holds them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from shoal.embedding.leaves import native
from shoal.embedding.leaves.admission import Admission
from shoal.embedding.leaves.device import Device
from shoal.embedding.leaves.leaf import Leaf
from shoal.embedding.leaves.reference import Reference
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.store import Ids
from shoal.embedding.table import Table

BACKENDS = ("auto", "native", "reference", "device")


def make_local(
    table: Table,
    optimizer: RowOptimizer,
    seed: int,
    *,
    backend: Literal["auto", "native", "reference", "device"] = "auto",
    threads: int | None = None,
    admission: Admission | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    fused: bool = False,
) -> Leaf:
    """A leaf that holds the table's rows here; `threads=None` means torch's number of threads.

    dtype=torch.bfloat16 halves the memory of values (not of state); updates round stochastically.
    On a GPU the rows of a fixed table live in its memory; those of a growing one stay on the host.
    Rows that are read whole are tensors on the host as well: they are lent without a copy.
    `fused` lets rows on a GPU be updated by Triton kernels, where there are any for the optimizer.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is not known; known are {', '.join(BACKENDS)}")
    as_tensors = table.rows is not None and (torch.device(device).type != "cpu" or table.whole)
    as_tensors = as_tensors and admission is None and dtype == torch.float32
    if backend == "device" or (backend == "auto" and as_tensors):
        return Device(table, optimizer, seed, device, fused)
    if backend == "native" or (backend == "auto" and native_is_built()):
        return native.Native(table, optimizer, seed, admission, dtype, threads=threads)
    if backend == "auto":
        _warn_once()
    return Reference(table, optimizer, seed, admission, dtype)


def native_is_built() -> bool:
    """Whether the C++ core was built with this installation."""
    return native._core is not None


@cache
def _warn_once() -> None:
    warnings.warn(
        "shoal was built without its native core, so embedding rows are read and updated by torch: "
        "several times slower, and growing tables slower still. Install a C++ compiler and "
        "reinstall shoal to have it.",
        RuntimeWarning,
        stacklevel=3,
    )


def pull_all(stores: Sequence[Leaf], ids: Sequence[Ids]) -> list[Tensor]:
    """Rows of several stores, native ones in one call: ids[k] [n_k] -> [n_k, dim_k]."""
    together = [k for k, store in enumerate(stores) if isinstance(store, native.Native)]
    if len(together) < 2:
        return [store.pull(part) for store, part in zip(stores, ids)]
    pulled = native.pull_many([stores[k] for k in together], [ids[k] for k in together])  # type: ignore[misc]
    rows = dict(zip(together, pulled))
    return [rows[k] if k in rows else stores[k].pull(ids[k]) for k in range(len(stores))]


def push_all(
    stores: Sequence[Leaf],
    parts: Sequence[tuple[Ids, Tensor]],
    lr: float,
    counts: Sequence[Tensor | None] = (),
) -> None:
    """One step of several stores, native ones in one call; parts[k]: ids, grads of stores[k].

    counts[k] [n, 2], of a store with counters: how often each id was shown, and clicked.
    """
    counts = counts or [None] * len(stores)
    together = [
        k
        for k, store in enumerate(stores)
        if isinstance(store, native.Native) and counts[k] is None
    ]
    if together:
        native.push_many(
            [stores[k] for k in together],  # type: ignore[misc]
            [parts[k][0] for k in together],
            [parts[k][1] for k in together],
            lr,
        )
    for store, (ids, grads), counted in zip(stores, parts, counts):
        if counted is not None:
            push_counted(store, ids, grads, lr, counted)
        elif not isinstance(store, native.Native):
            store.push(ids, grads, lr)


def push_counted(store: Leaf, ids: Ids, grads: Tensor, lr: float, counts: Tensor) -> None:
    """A step of a store with counters: counts [n, 2], whole shows and any clicks of each id."""
    shows, clicks = counts.cpu().unbind(1)
    shown = shows > 0
    if not bool(shown.all()):  # looked up in vain: such rows must rest
        ids, grads = store.flat_ids(ids)[shown], grads[shown.to(grads.device)]
        shows, clicks = shows[shown], clicks[shown]
    store.push(ids, grads, lr, clicks.contiguous(), shows.contiguous())

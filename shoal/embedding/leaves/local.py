"""Local: rows in this process. Chooses the engine that holds them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.config.tiers import TiersSection
from shoal.embedding.leaves import native
from shoal.embedding.leaves.admission import Admission
from shoal.embedding.leaves.device import Device
from shoal.embedding.leaves.leaf import Leaf
from shoal.embedding.leaves.reference import Reference
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.store import Ids
from shoal.embedding.table import Table

BACKENDS = ("auto", "native", "reference", "device", "gpu")


def make_local(
    table: Table,
    optimizer: RowOptimizer,
    seed: int,
    *,
    backend: Literal["auto", "native", "reference", "device", "gpu"] = "auto",
    threads: int | None = None,
    admission: Admission | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    fused: bool = False,
) -> Leaf:
    """A leaf that holds the table's rows here; `threads=None` means torch's number of threads.

    dtype=torch.bfloat16 halves the memory of values (not of state); updates round stochastically.
    On a GPU rows live in its memory, where Triton is installed those of growing tables too; see
    `lives_on_gpu`. Rows that are read whole are tensors on the host as well: they are lent without
    a copy. `fused` lets such rows on a GPU be updated where nobody sees their gradients.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is not known; known are {', '.join(BACKENDS)}")
    on_gpu = backend == "auto" and lives_on_gpu(table, admission, device)
    if backend == "gpu" or on_gpu:
        from shoal.embedding.leaves import gpu_leaf

        return gpu_leaf.make_gpu_leaves([table], optimizer, seed, device, dtype, [admission])[0]
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


def lives_on_gpu(table: Table, admission: Admission | None, device: torch.device | str) -> bool:
    """Whether rows are kept by the kernels of GpuLeaf: on a GPU, where Triton is installed.

    Not those of an output layer, which its softmax updates in a pass of its own, nor those that a
    Bloom filter admits, which counts in host memory.
    """
    if torch.device(device).type != "cuda" or table.whole or not _has_triton():
        return False
    return admission is None or not admission.bloom_counters


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def make_leaves(
    tables: Mapping[str, Table],
    optimizers: Mapping[str, RowOptimizer],
    seed: int,
    *,
    admissions: Mapping[str, Admission | None],
    device: torch.device | str = "cpu",
    fused: bool = False,
    backend: Literal["auto", "gpu"] = "auto",
    tiers: TiersSection | None = None,
) -> dict[str, Leaf]:
    """A leaf for each table; on a GPU those of one width and optimizer are read in one launch.

    tiers: what they may take of host memory together, and where the other rows lie.
    """
    tiers = tiers or TiersSection()
    if torch.device(device).type == "cuda" and tiers.gpu != 0 and tiers.ssd is None:
        if tiers.gpu is not None and gpu_need(tables, optimizers) > tiers.gpu:
            given = TiersSection(host=tiers.gpu, ssd="")  # shared out as host memory is
            return _make_tiered(tables, optimizers, seed, admissions, given, device)
    elif tiers.ssd is not None:
        if tiers.gpu and torch.device(device).type == "cuda":
            return _make_three(tables, optimizers, seed, admissions, tiers, device)
        return _make_tiered(tables, optimizers, seed, admissions, tiers)
    elif tiers.gpu == 0:
        device = "cpu"
    together: dict[RowOptimizer, list[str]] = {}
    for name, table in tables.items():
        if backend == "gpu" or lives_on_gpu(table, admissions.get(name), device):
            together.setdefault(optimizers[name], []).append(name)
    made: dict[str, Leaf] = {}
    for optimizer, names in together.items():
        from shoal.embedding.leaves import gpu_leaf

        some = [tables[name] for name in names]
        rules = [admissions.get(name) for name in names]
        leaves = gpu_leaf.make_gpu_leaves(some, optimizer, seed, device, admissions=rules)
        made.update(zip(names, leaves))
    for name, table in tables.items():
        if name not in made:
            admission = admissions.get(name)
            made[name] = make_local(
                table, optimizers[name], seed, admission=admission, device=device, fused=fused
            )
    return {name: made[name] for name in tables}


def gpu_need(tables: Mapping[str, Table], optimizers: Mapping[str, RowOptimizer]) -> int:
    """Bytes that the rows of fixed tables take, with their state; growing ones count nothing."""
    from shoal.embedding.leaves.budgets import row_bytes

    return sum((t.rows or 0) * row_bytes(t, optimizers[name]) for name, t in tables.items())


def _make_tiered(
    tables: Mapping[str, Table],
    optimizers: Mapping[str, RowOptimizer],
    seed: int,
    admissions: Mapping[str, Admission | None],
    tiers: TiersSection,
    device: torch.device | str | None = None,
) -> dict[str, Leaf]:
    """Leaves in host memory, over a disk those that have no room there.

    With a device: in its memory, over host memory.
    """
    from shoal.embedding.leaves.budgets import share_out
    from shoal.embedding.leaves.tiered import Tiered

    assert tiers.ssd is not None
    made: dict[str, Leaf] = {}
    key = "rows.tiers.host" if device is None else "rows.tiers.gpu"
    for name, share in share_out(tables, optimizers, tiers, key).items():
        table, admission = tables[name], admissions.get(name)
        if share.slots is None:
            where: torch.device | str = "cpu" if device is None else device
            made[name] = make_local(
                table, optimizers[name], seed, admission=admission, device=where
            )
            continue
        if admission is not None:
            raise ValueError(
                f"table {name!r} has rows in tiers (rows.tiers) and counts its ids "
                "(rows.admission, rows.decay, rows.shrink): such rows are neither counted nor "
                "dropped; leave out one of the two"
            )
        if device is not None and table.rows is not None and _has_triton():
            from shoal.embedding.leaves.gpu_cache import CachedGpuTables
            from shoal.embedding.leaves.gpu_leaf import GpuLeaf

            cache = CachedGpuTables(table, optimizers[name], seed, device, share.slots)
            made[name] = GpuLeaf(cache, 0)
            continue
        folder = Path(tiers.ssd) if device is None else None
        made[name] = Tiered(table, optimizers[name], seed, share.slots, folder, device=device)
    return made


def _make_three(
    tables: Mapping[str, Table],
    optimizers: Mapping[str, RowOptimizer],
    seed: int,
    admissions: Mapping[str, Admission | None],
    tiers: TiersSection,
    device: torch.device | str,
) -> dict[str, Leaf]:
    """GPU memory over host memory over a disk; a table that needs no disk has two of them."""
    from shoal.embedding.leaves.budgets import share_out
    from shoal.embedding.leaves.tiered import Tiered

    assert tiers.ssd is not None
    in_host = share_out(tables, optimizers, tiers)
    given = TiersSection(host=tiers.gpu, ssd="")
    made = _make_tiered(
        {name: table for name, table in tables.items() if in_host[name].slots is None},
        optimizers,
        seed,
        admissions,
        given,
        device,
    )
    on_gpu = share_out(tables, optimizers, given, "rows.tiers.gpu")
    for name, table in tables.items():
        slots, below = on_gpu[name].slots, in_host[name].slots
        if below is None:
            continue
        if table.rows is None or slots is None or admissions.get(name) is not None:
            raise ValueError(
                f"table {name!r} grows, or counts its ids: such rows are in GPU memory over host "
                "memory, or in host memory over a disk, not in all three: set rows.tiers.gpu=0, or "
                "leave out ssd and host"
            )
        lower = Tiered(table, optimizers[name], seed, below, Path(tiers.ssd))
        made[name] = Tiered(table, optimizers[name], seed, slots, None, device=device, below=lower)
    return {name: made[name] for name in tables}


def _by_kind(stores: Sequence[Leaf]) -> dict[Any, list[int]]:
    """The numbers of the stores of each class."""
    kinds: dict[Any, list[int]] = {}
    for k, store in enumerate(stores):
        kinds.setdefault(type(store), []).append(k)
    return kinds


def pull_all(stores: Sequence[Leaf], ids: Sequence[Ids]) -> list[Tensor]:
    """Rows of several stores, those of a kind in one call: ids[k] [n_k] -> [n_k, dim_k]."""
    rows: dict[int, Tensor] = {}
    for kind, members in _by_kind(stores).items():
        pulled = kind.pull_many([stores[k] for k in members], [ids[k] for k in members])
        rows.update(zip(members, pulled))
    return [rows[k] for k in range(len(stores))]


def begin_all(stores: Sequence[Leaf], lr: float) -> None:
    """Count a step of stores whose recorded push is replayed next."""
    for kind, members in _by_kind(stores).items():
        kind.begin_many([stores[k] for k in members], lr)


def push_all(
    stores: Sequence[Leaf],
    parts: Sequence[tuple[Ids, Tensor]],
    lr: float,
    counts: Sequence[Tensor | None] = (),
) -> None:
    """One step of several stores, those of a kind in one call; parts[k]: ids, grads of stores[k].

    counts[k] [n, 2], of a store with counters: how often each id was shown, and clicked.
    """
    counts = counts or [None] * len(stores)
    uncounted = [k for k in range(len(stores)) if counts[k] is None]
    for kind, members in _by_kind([stores[k] for k in uncounted]).items():
        some = [uncounted[k] for k in members]
        kind.push_many(
            [stores[k] for k in some],
            [parts[k][0] for k in some],
            [parts[k][1] for k in some],
            lr,
        )
    for store, (ids, grads), counted in zip(stores, parts, counts):
        if counted is not None:
            push_counted(store, ids, grads, lr, counted)


def push_counted(store: Leaf, ids: Ids, grads: Tensor, lr: float, counts: Tensor) -> None:
    """A step of a store with counters: counts [n, 2], whole shows and any clicks of each id."""
    shows, clicks = counts.cpu().unbind(1)
    shown = shows > 0
    if not bool(shown.all()):  # looked up in vain: such rows must rest
        ids, grads = store.flat_ids(ids)[shown], grads[shown.to(grads.device)]
        shows, clicks = shows[shown], clicks[shown]
    store.push(ids, grads, lr, clicks.contiguous(), shows.contiguous())

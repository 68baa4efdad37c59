"""Local: rows in this process. Chooses the engine that holds them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from shoal.config.row_rules import TiersSection
from shoal.embedding.engines import native
from shoal.embedding.engines.budgets import BudgetShare, row_bytes, share_out
from shoal.embedding.engines.device import Device
from shoal.embedding.engines.reference import Reference
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.rows.admission import Admission
from shoal.embedding.rows.table import Table
from shoal.kernels.core import has_core
from shoal.kernels.machine import has_triton
from shoal.optimizers.row_optimizer import RowOptimizer

log = logging.getLogger("shoal")
BACKENDS = ("auto", "native", "reference", "device")


def make_local(
    table: Table,
    optimizer: RowOptimizer,
    seed: int,
    *,
    backend: Literal["auto", "native", "reference", "device"] = "auto",
    threads: int | None = None,
    admission: Admission | None = None,
    device: torch.device | str = "cpu",
    fused: bool = False,
) -> RowEngine:
    """An engine that holds the table's rows here; `threads=None` means torch's number of threads.

    On a GPU fixed tables are tensors in its memory (`make_engines` has more). Rows that are read
    whole are tensors on the host as well, so that they are read without a copy. `fused` lets a
    kernel update such rows without writing their gradients.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is not known; known are {', '.join(BACKENDS)}")
    as_tensors = table.rows is not None and (torch.device(device).type != "cpu" or table.whole)
    as_tensors = as_tensors and admission is None and not table.half
    if backend == "device" or (backend == "auto" and as_tensors):
        return Device(table, optimizer, seed, device, fused)
    if backend == "native" or (backend == "auto" and _in_core(optimizer)):
        return native.Native(table, optimizer, seed, admission, threads=threads)
    if backend == "auto" and not has_core():
        _warn_once()
    return Reference(table, optimizer, seed, admission)


def _in_core(optimizer: RowOptimizer) -> bool:
    """Whether the core can update rows so; logged where it is there and cannot."""
    if optimizer.core_form is None and has_core():
        _log_plain_form(optimizer.name, "the native core")
    return optimizer.core_form is not None and has_core()


@cache
def _log_plain_form(optimizer: str, engine: str) -> None:
    log.warning(
        "row optimizer %s: %s has no form of it, so rows are updated by its plain form, in torch: "
        "the same numbers, slower",
        optimizer,
        engine,
    )


@cache
def _warn_once() -> None:
    warnings.warn(
        "shoal was built without its native core, so embedding rows are read and updated by torch: "
        "several times slower, and growing tables slower still. Install a C++ compiler and "
        "run `make setup` in the clone to have it.",
        RuntimeWarning,
        stacklevel=3,
    )


def lives_on_gpu(table: Table, admission: Admission | None, device: torch.device | str) -> bool:
    """Whether rows are kept by the kernels of GpuEngine: on a GPU, where Triton is installed.

    Not those whose ids are counted, which is done in host memory.
    """
    if torch.device(device).type != "cuda" or not has_triton():
        return False
    return admission is None


def make_engines(
    tables: Mapping[str, Table],
    optimizers: Mapping[str, RowOptimizer],
    seed: int,
    *,
    admissions: Mapping[str, Admission | None],
    device: torch.device | str = "cpu",
    fused: bool = False,
    tiers: TiersSection | None = None,
) -> dict[str, RowEngine]:
    """An engine for each table; on a GPU those of one width and optimizer are read in one launch.

    There kernels keep the rows where they can, those of growing tables too: see `lives_on_gpu`.
    tiers: what they may take of GPU and host memory together, and where the other rows lie.
    """
    tiers, device = tiers or TiersSection(), torch.device(device)
    if tiers.gpu == 0 or (tiers.ssd is not None and tiers.gpu is None):
        device = torch.device("cpu")
    engines_by_name = _make_tiered(tables, optimizers, seed, admissions, tiers, device)
    together: dict[RowOptimizer, list[str]] = {}
    for name, table in tables.items():
        optimizer, admission = optimizers[name], admissions.get(name)
        if name in engines_by_name:
            continue
        on_gpu = lives_on_gpu(table, admission, device)
        if on_gpu and optimizer.triton_form is None:
            _log_plain_form(optimizer.name, "Triton")
        if on_gpu and optimizer.triton_form is not None:
            together.setdefault(optimizer, []).append(name)
        else:
            engines_by_name[name] = make_local(
                table, optimizer, seed, admission=admission, device=device, fused=fused
            )
    for optimizer, names in together.items():
        from shoal.embedding.engines import gpu_engine

        fused_tables = [tables[name] for name in names]
        engines = gpu_engine.make_gpu_engines(fused_tables, optimizer, seed, device, fused)
        engines_by_name.update(zip(names, engines))
    return {name: engines_by_name[name] for name in tables}


def gpu_need(tables: Mapping[str, Table], optimizers: Mapping[str, RowOptimizer]) -> int:
    """Bytes that the rows of fixed tables take, with their state; growing ones count nothing."""
    return sum((t.rows or 0) * row_bytes(t, optimizers[name]) for name, t in tables.items())


def _make_tiered(
    tables: Mapping[str, Table],
    optimizers: Mapping[str, RowOptimizer],
    seed: int,
    admissions: Mapping[str, Admission | None],
    tiers: TiersSection,
    device: torch.device,
) -> dict[str, RowEngine]:
    """Engines of the tables that have no room for all rows where they are used.

    In GPU memory, that is, over host memory, over a disk where that has no room either; without a
    GPU in host memory over a disk.
    """
    # Which tables lack room in host memory, and which in GPU memory, if rows are used there.
    in_host = _slots(share_out(tables, optimizers, tiers.host))
    over_host = device.type == "cuda" and tiers.gpu is not None
    if over_host and (tiers.ssd is not None or gpu_need(tables, optimizers) > (tiers.gpu or 0)):
        slots = _slots(share_out(tables, optimizers, tiers.gpu, "rows.tiers.gpu"))
    else:
        slots = in_host
    if not slots:  # as in most runs
        return {}
    from shoal.embedding.engines.tiered import Tiered

    engines: dict[str, RowEngine] = {}
    for name, number in slots.items():
        table, optimizer = tables[name], optimizers[name]
        if table.half:
            raise ValueError(
                f"table {name!r} has rows in tiers (rows.tiers), which are float32: leave out "
                "rows.dtype=bfloat16, or rows.tiers"
            )
        if optimizer.core_form is None or optimizer.triton_form is None:
            raise ValueError(
                f"table {name!r} has rows in tiers (rows.tiers), and row optimizer "
                f"{optimizer.name} has a plain form alone: leave out rows.tiers, or take another "
                "optimizer for it"
            )
        if admissions.get(name) is not None:
            raise ValueError(
                f"table {name!r} has rows in tiers (rows.tiers) and counts its ids "
                "(rows.admission, rows.counter_decay, rows.shrink): such rows are neither counted "
                "nor dropped; leave out one of the two"
            )
        # A tier in host memory over a disk, in GPU memory over host memory, or over both.
        folder = None if tiers.ssd is None else Path(tiers.ssd)
        if not over_host:
            engines[name] = Tiered(table, optimizer, seed, number, folder)
        elif table.rows is not None and name not in in_host and has_triton():
            from shoal.embedding.engines.gpu_cache import CachedGpuTables
            from shoal.embedding.engines.gpu_engine import GpuEngine

            engines[name] = GpuEngine(CachedGpuTables(table, optimizer, seed, device, number), 0)
        else:
            place = folder if name in in_host else None
            engines[name] = Tiered(table, optimizer, seed, number, place, device=device)
    return engines


def _slots(shares: Mapping[str, BudgetShare]) -> dict[str, int]:
    """How many rows of each table that must leave some out are in memory."""
    return {name: one.slots for name, one in shares.items() if one.slots is not None}

"""The memory that the rows of a run take on this machine: GPU, host, disk.

Tables that grow have no size yet: what one of their rows takes is printed, and nothing of it is
counted.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from shoal.config.schema import Config
from shoal.config.sizes import show_size
from shoal.embedding.engines.budgets import (
    INDEX_FIXED,
    INDEX_GPU,
    INDEX_GROWING,
    SLOT,
    SLOT_GPU,
    BudgetShare,
    row_bytes,
    share_out,
    value_bytes,
)
from shoal.embedding.engines.local import gpu_need, lives_on_gpu
from shoal.embedding.placements.table_plan import in_columns, plan_tables
from shoal.embedding.rows.table import Table
from shoal.optimizers.row_optimizer import RowOptimizer


@dataclass(frozen=True)
class Machine:
    """The memory of a machine, in bytes."""

    host: int
    gpu: int | None  # of each; None: the run computes on CPUs

    @classmethod
    def here(cls, device: torch.device) -> Machine:
        """This machine."""
        host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        gpu = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None
        return cls(host, gpu)


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of the fullest process that holds rows, in bytes."""

    holder: str  # process, rank or server
    num_holders: int  # how many of them are on this machine
    lines: list[tuple[str, ...]]  # a table each, in words
    tables: dict[str, int | None]  # in host and GPU memory; None: it grows
    total: dict[str, int]  # of gpu, host and ssd

    def facts(self) -> dict[str, Any]:
        """The plan as result.json records it."""
        return {"holder": self.holder, **self.total, "tables": self.tables}


def plan_memory(
    config: Config,
    tables: Mapping[str, Table],
    optimizers: Mapping[str, RowOptimizer],
    device: torch.device,
) -> MemoryPlan:
    """Plan memory and disk of the rows; ValueError where a budget is too small for any row."""
    holder, held_tables, num_holders = _holders(config, tables, optimizers)
    tiers, on_gpu = config.rows.tiers, device.type == "cuda" and holder != "server"
    on_gpu = on_gpu and tiers.gpu != 0 and tiers.ssd is None
    over_host = on_gpu and tiers.gpu is not None and gpu_need(held_tables, optimizers) > tiers.gpu
    if over_host:
        shares = share_out(held_tables, optimizers, tiers.gpu, "rows.tiers.gpu")
    else:
        shares = share_out(held_tables, optimizers, tiers.host)
    lines: list[tuple[str, ...]] = [("table", "rows", "dim", "values", "state", "index", "where")]
    total = {"gpu": 0, "host": 0, "ssd": 0}
    memory_by_table: dict[str, int | None] = {}
    for name, table in held_tables.items():
        table_bytes = {"gpu": 0, "host": 0, "ssd": 0}
        lines.append(_line(table, optimizers[name], shares[name], on_gpu, table_bytes))
        total = {place: total[place] + size for place, size in table_bytes.items()}
        in_memory = (
            table_bytes["gpu"] + table_bytes["host"] + (table_bytes["ssd"] if over_host else 0)
        )
        memory_by_table[name] = None if table.rows is None else in_memory
    if over_host:  # slots are on the GPU, the other rows in host memory
        total = {"gpu": total["gpu"] + total["host"], "host": total["ssd"], "ssd": 0}
    elif device.type == "cuda" and holder != "server" and tiers.ssd is not None and tiers.gpu:
        total["gpu"] = min(tiers.gpu, gpu_need(held_tables, optimizers))  # over both
    return MemoryPlan(holder, num_holders, lines, memory_by_table, total)


def plan_tables_of(
    config: Config,
    tables: Mapping[str, Table],
    optimizers: Mapping[str, RowOptimizer],
    device: torch.device,
    machine: Machine,
) -> str:
    """The memory plan of the tables as text; ValueError where this machine has less."""
    plan, tiers = plan_memory(config, tables, optimizers, device), config.rows.tiers
    holder, num_holders, total, lines = plan.holder, plan.num_holders, plan.total, plan.lines
    text = in_columns(lines, left=(0, 6))
    place = ", ".join(f"{show_size(n)} of {key}" for key, n in total.items() if n) or "nothing yet"
    report = [
        f"each {holder} holds, {num_holders} of them on this machine:",
        text,
        f"each {holder}: {place}; this machine has {show_size(machine.host)} of host memory"
        + ("" if machine.gpu is None else f", a GPU {show_size(machine.gpu)}"),
    ]
    if tiers.ssd is not None:
        folders = [Path(tiers.ssd).absolute(), *Path(tiers.ssd).absolute().parents]
        free = shutil.disk_usage(next(one for one in folders if one.exists())).free
        report.append(
            f"{tiers.ssd}: {show_size(free)} free, up to {show_size(num_holders * total['ssd'])}"
        )
        if num_holders * total["ssd"] > free:
            raise ValueError(
                "\n".join(report)
                + f"\nrows.tiers.ssd: rows may take {show_size(num_holders * total['ssd'])} there, "
                f"and {show_size(free)} are free: name a larger disk, or raise rows.tiers.host"
            )
    _refuse_too_much(config, holder, num_holders, total, machine, report)
    return "\n".join(report)


def _holders(
    config: Config, tables: Mapping[str, Table], optimizers: Mapping[str, RowOptimizer]
) -> tuple[str, dict[str, Table], int]:
    """The kind of process that holds rows, the tables of the fullest, and how many are here."""
    launch, name = config.launch, config.strategy.name
    num_holders = max(1, launch.nproc)
    size = max(num_holders, launch.world_size)
    if name == "ps":
        section, copies = config.strategy.ps, config.strategy.ps.replicas
        servers = max(len(section.addresses) // copies if section.addresses else launch.servers, 1)
        part = {
            key: replace(table, rows=None if table.rows is None else -(-table.rows // servers))
            for key, table in tables.items()
        }
        return "server", part, max(1, launch.servers) * (1 if section.addresses else copies)
    if name != "sharded" or size == 1:
        return ("process" if size == 1 else "rank"), dict(tables), num_holders
    plan = plan_tables(tables, size, config.strategy, optimizers)
    fullest = max(range(size // config.strategy.groups), key=plan.bytes_on)
    part = {
        key: replace(
            sharding.table,
            dim=sharding.width(fullest),
            rows=None if sharding.grows else sharding.shares[fullest],
        )
        for key, sharding in plan.shardings.items()
        if sharding.holds(fullest)
    }
    return "rank", part, num_holders


def _line(
    table: Table, optimizer: RowOptimizer, share: BudgetShare, on_gpu: bool, total: dict[str, int]
) -> tuple[str, ...]:
    """The line of a table; adds its bytes to `total`."""
    bytes_per_row, rows = row_bytes(table, optimizer), table.rows
    values = value_bytes(table)
    state = bytes_per_row - values
    if share.slots is None and on_gpu and (lives_on_gpu(table, None, "cuda") or rows is not None):
        location, index = "gpu", INDEX_GROWING if rows is None else 0
        total["gpu"] += (rows or 0) * bytes_per_row
    elif share.slots is None:
        location, index = "host", INDEX_GROWING if rows is None else 0
        total["host"] += (rows or 0) * bytes_per_row
    else:
        location = f"{share.slots:,} rows in {'gpu, host' if on_gpu else 'host, ssd'}"
        index_of_row, index_of_slot = (INDEX_GPU, SLOT_GPU) if on_gpu else (INDEX_FIXED, SLOT)
        index = INDEX_GROWING if rows is None else index_of_row
        total["host"] += (
            share.slots * (bytes_per_row + index_of_slot) + (rows or share.slots) * index
        )
        # On disk they lie in a log, which may be twice as long (docs/understand/tiers.md).
        total["ssd"] += 2 * max(0, (rows or 0) - share.slots) * (bytes_per_row + 16)
    sizes = [values, state, index]
    shown = [f"{n} B a row" if rows is None else show_size(n * rows) for n in sizes]
    return table.name, "grows" if rows is None else f"{rows:,}", str(table.dim), *shown, location


def _refuse_too_much(
    config: Config,
    holder: str,
    num_holders: int,
    total: dict[str, int],
    machine: Machine,
    report: list[str],
) -> None:
    """Refuse rows that need more than a memory has; name the nearest configuration that fits."""
    size = max(1, config.launch.nproc, config.launch.world_size)
    # The rest of a memory is the model's, the data's and the system's.
    host_room, gpu_room = int(0.8 * machine.host), int(0.8 * (machine.gpu or 0))
    budget = show_size(host_room // num_holders).replace(" ", "")
    remedy = f"--rows.tiers.host={budget} --rows.tiers.ssd=FOLDER"
    if machine.gpu is not None and total["gpu"] > gpu_room:
        holders, kind, need, room = f"a {holder}", "GPU", total["gpu"], gpu_room
        groups = config.strategy.groups  # more than one under sharded alone
        shares = size // groups if config.strategy.name == "sharded" else 1
        gpus = groups * math.ceil(need * shares / gpu_room)
        spread = f"spread them over {gpus} GPUs (--strategy.name=sharded --launch.nproc={gpus})"
        if num_holders * need <= host_room:
            remedy = f"keep rows in host memory (--rows.tiers.gpu=0), or {spread}"
        else:
            remedy = f"{spread}, or {remedy}"
    elif num_holders * total["host"] > host_room:
        holders, kind = f"{num_holders} {holder}(s)", "host"
        need, room = num_holders * total["host"], host_room
        if holder == "server":
            servers = math.ceil(need / host_room)
            remedy = f"servers on {servers} such machines (strategy.ps.addresses)"
    else:
        return
    raise ValueError(
        "\n".join(report)
        + f"\nthe rows of {holders} need {show_size(need)} of {kind} memory, and there "
        f"is room for {show_size(room)}: {remedy}"
    )

"""What the rows of a run take of this machine: GPU memory, host memory, disk.

The data is read and the model is made, as for the run itself; rows are not. Tables that grow have
no size yet: what one of their rows takes is printed, and nothing of it is counted.
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
from torch import Tensor

from shoal.config.row_rules import show_size
from shoal.config.schema import Config, StrategySection
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
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.placements.planner import in_columns, plan_tables
from shoal.embedding.rows.table import Table
from shoal.embedding.service import RowService
from shoal.runs.build import build
from shoal.training.strategy import Strategy
from shoal.world.gpus import pick_device
from shoal.world.world import World


@dataclass(frozen=True)
class Machine:
    """What there is for rows, in bytes."""

    host: int
    gpu: int | None  # of each; None: the run computes on CPUs

    @classmethod
    def here(cls, device: torch.device) -> Machine:
        """This one."""
        host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        gpu = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None
        return cls(host, gpu)


class _Planned(Exception):
    """The tables of a model, instead of their rows."""

    def __init__(self, tables: dict[str, Table], optimizers: dict[str, RowOptimizer]):
        super().__init__()
        self.tables, self.optimizers = tables, optimizers


class _OnlyTables(Strategy):
    """Stops where a strategy would make rows."""

    name = "plan"

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        raise _Planned(tables, self.row_optimizers)

    def update(self, sums: object, lr: float) -> Tensor:
        raise NotImplementedError  # it never gets that far


def plan_run(config: Config, machine: Machine | None = None) -> str:
    """A table of what each process holds; ValueError with the nearest remedy if it cannot fit."""
    device = pick_device(config.run.device, 0)
    alone = StrategySection(name="single")
    try:
        build(
            config.model_copy(update={"strategy": alone}),
            World(torch.device("cpu")),
            lambda section, world, timeout: _OnlyTables(world),
        )
    except _Planned as found:
        tables, optimizers = found.tables, found.optimizers
    else:
        return f"{config.model.title} has no tables: there are no rows to place"
    return plan_tables_of(config, tables, optimizers, device, machine or Machine.here(device))


@dataclass(frozen=True)
class MemoryPlan:
    """What the fullest of those that hold rows takes, in bytes."""

    holder: str  # process, rank or server
    here: int  # how many of them are on this machine
    lines: list[tuple[str, ...]]  # a table each, in words
    tables: dict[str, int | None]  # in host and GPU memory; None: it grows
    total: dict[str, int]  # of gpu, host and ssd

    def facts(self) -> dict[str, Any]:
        """What result.json has of it."""
        return {"holder": self.holder, **self.total, "tables": self.tables}


def plan_memory(
    config: Config,
    tables: Mapping[str, Table],
    optimizers: Mapping[str, RowOptimizer],
    device: torch.device,
) -> MemoryPlan:
    """What rows take of memory and disk; ValueError where a budget is too small for any."""
    what, held, here = _holders(config, tables, optimizers)
    tiers, on_gpu = config.rows.tiers, device.type == "cuda" and what != "server"
    on_gpu = on_gpu and tiers.gpu != 0 and tiers.ssd is None
    over_host = on_gpu and tiers.gpu is not None and gpu_need(held, optimizers) > tiers.gpu
    if over_host:
        shares = share_out(held, optimizers, tiers.gpu, "rows.tiers.gpu")
    else:
        shares = share_out(held, optimizers, tiers.host)
    lines: list[tuple[str, ...]] = [("table", "rows", "dim", "values", "state", "index", "where")]
    total = {"gpu": 0, "host": 0, "ssd": 0}
    each: dict[str, int | None] = {}
    for name, table in held.items():
        mine = {"gpu": 0, "host": 0, "ssd": 0}
        lines.append(_line(table, optimizers[name], shares[name], on_gpu, mine))
        total = {place: total[place] + size for place, size in mine.items()}
        in_memory = mine["gpu"] + mine["host"] + (mine["ssd"] if over_host else 0)
        each[name] = None if table.rows is None else in_memory
    if over_host:  # slots are on the GPU, the other rows in host memory
        total = {"gpu": total["gpu"] + total["host"], "host": total["ssd"], "ssd": 0}
    elif device.type == "cuda" and what != "server" and tiers.ssd is not None and tiers.gpu:
        total["gpu"] = min(tiers.gpu, gpu_need(held, optimizers))  # over both
    return MemoryPlan(what, here, lines, each, total)


def plan_tables_of(
    config: Config,
    tables: Mapping[str, Table],
    optimizers: Mapping[str, RowOptimizer],
    device: torch.device,
    machine: Machine,
) -> str:
    """What the rows of known tables take, as text; refused where this machine has less."""
    plan, tiers = plan_memory(config, tables, optimizers, device), config.rows.tiers
    what, here, total, lines = plan.holder, plan.here, plan.total, plan.lines
    text = in_columns(lines, left=(0, 6))
    place = ", ".join(f"{show_size(n)} of {key}" for key, n in total.items() if n) or "nothing yet"
    told = [
        f"each {what} holds, {here} of them on this machine:",
        text,
        f"each {what}: {place}; this machine has {show_size(machine.host)} of host memory"
        + ("" if machine.gpu is None else f", a GPU {show_size(machine.gpu)}"),
    ]
    if tiers.ssd is not None:
        folders = [Path(tiers.ssd).absolute(), *Path(tiers.ssd).absolute().parents]
        free = shutil.disk_usage(next(one for one in folders if one.exists())).free
        told.append(f"{tiers.ssd}: {show_size(free)} free, up to {show_size(here * total['ssd'])}")
        if here * total["ssd"] > free:
            raise ValueError(
                "\n".join(told)
                + f"\nrows.tiers.ssd: rows may take {show_size(here * total['ssd'])} there, and "
                f"{show_size(free)} are free: name a larger disk, or raise rows.tiers.host"
            )
    _refuse_too_much(config, what, here, total, machine, told)
    return "\n".join(told)


def _holders(
    config: Config, tables: Mapping[str, Table], optimizers: Mapping[str, RowOptimizer]
) -> tuple[str, dict[str, Table], int]:
    """Who holds rows, what the fullest of them holds, and how many of them this machine has."""
    launch, name = config.launch, config.strategy.name
    here = max(1, launch.nproc)
    size = max(here, launch.world_size)
    if name == "ps":
        section, copies = config.strategy.ps, config.strategy.ps.replicas
        servers = max(len(section.addresses) // copies if section.addresses else launch.servers, 1)
        part = {
            key: replace(table, rows=None if table.rows is None else -(-table.rows // servers))
            for key, table in tables.items()
        }
        return "server", part, max(1, launch.servers) * (1 if section.addresses else copies)
    if name != "sharded" or size == 1:
        return ("process" if size == 1 else "rank"), dict(tables), here
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
    return "rank", part, here


def _line(
    table: Table, optimizer: RowOptimizer, share: BudgetShare, on_gpu: bool, total: dict[str, int]
) -> tuple[str, ...]:
    """A table's line; adds what it takes to `total`."""
    each, rows = row_bytes(table, optimizer), table.rows
    values = value_bytes(table)
    state = each - values
    if share.slots is None and on_gpu and (lives_on_gpu(table, None, "cuda") or rows is not None):
        where, index = "gpu", INDEX_GROWING if rows is None else 0
        total["gpu"] += (rows or 0) * each
    elif share.slots is None:
        where, index = "host", INDEX_GROWING if rows is None else 0
        total["host"] += (rows or 0) * each
    else:
        where = f"{share.slots:,} rows in {'gpu, host' if on_gpu else 'host, ssd'}"
        of_row, of_slot = (INDEX_GPU, SLOT_GPU) if on_gpu else (INDEX_FIXED, SLOT)
        index = INDEX_GROWING if rows is None else of_row
        total["host"] += share.slots * (each + of_slot) + (rows or share.slots) * index
        # On disk they lie in a log, which may be twice as long (docs/understand/tiers.md).
        total["ssd"] += 2 * max(0, (rows or 0) - share.slots) * (each + 16)
    sizes = [values, state, index]
    shown = [f"{n} B a row" if rows is None else show_size(n * rows) for n in sizes]
    return table.name, "grows" if rows is None else f"{rows:,}", str(table.dim), *shown, where


def _refuse_too_much(
    config: Config,
    what: str,
    here: int,
    total: dict[str, int],
    machine: Machine,
    told: list[str],
) -> None:
    """Refuse what takes more than a memory has, with the nearest configuration that fits."""
    size = max(1, config.launch.nproc, config.launch.world_size)
    # The rest of a memory is the model's, the data's and the system's.
    host_room, gpu_room = int(0.8 * machine.host), int(0.8 * (machine.gpu or 0))
    budget = show_size(host_room // here).replace(" ", "")
    remedy = f"--rows.tiers.host={budget} --rows.tiers.ssd=FOLDER"
    if machine.gpu is not None and total["gpu"] > gpu_room:
        who, kind, need, room = f"a {what}", "GPU", total["gpu"], gpu_room
        groups = config.strategy.groups  # more than one under sharded alone
        shares = size // groups if config.strategy.name == "sharded" else 1
        gpus = groups * math.ceil(need * shares / gpu_room)
        spread = f"spread them over {gpus} GPUs (--strategy.name=sharded --launch.nproc={gpus})"
        if here * need <= host_room:
            remedy = f"keep rows in host memory (--rows.tiers.gpu=0), or {spread}"
        else:
            remedy = f"{spread}, or {remedy}"
    elif here * total["host"] > host_room:
        who, kind, need, room = f"{here} {what}(s)", "host", here * total["host"], host_room
        if what == "server":
            servers = math.ceil(need / host_room)
            remedy = f"servers on {servers} such machines (strategy.ps.addresses)"
    else:
        return
    raise ValueError(
        "\n".join(told) + f"\nthe rows of {who} need {show_size(need)} of {kind} memory, and there "
        f"is room for {show_size(room)}: {remedy}"
    )

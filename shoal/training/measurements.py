"""What a run measured of itself when it ended, for result.json: memory of its processes, its rows.

All ranks call these together; every rank has the same answer.
"""

import resource
from typing import Any

import torch
from torch import Tensor

from shoal.config.schema import Config
from shoal.embedding.engines.init import initial_rows
from shoal.embedding.rows.table import Table
from shoal.embedding.service import Lookup
from shoal.training.strategies.base import Strategy

MOST_ROWS = 200_000  # of a table that are looked at: of a larger one, some that lie evenly
SOME_ROWS = 1 << 16  # at a time


def measure(strategy: Strategy, config: Config) -> dict[str, Any]:
    """Measurements of a run for result.json."""
    is_new = config.start.run is None and not config.start.pretrained
    return {
        "memory": peak_memory(strategy),
        "tables": table_figures(strategy, config.run.seed if is_new else None),
    }


def peak_memory(strategy: Strategy) -> list[dict[str, Any]]:
    """Per rank, in order: peak bytes of host memory and of a GPU, and bytes of the table rows that
    it holds now; None: the rank has no GPU, or its rows are elsewhere.
    """
    world, names = strategy.world, list(strategy.tables)
    gpu = torch.cuda.max_memory_reserved(world.device) if world.device.type == "cuda" else -1
    local_sizes = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, gpu]
    held_sizes = [strategy.rows.memory_of(name) for name in names]
    local_sizes += [-1 if size is None else size for size in held_sizes]
    all_sizes = world.stack(
        torch.tensor(local_sizes, dtype=torch.int64, device=world.device)
    ).tolist()
    sizes_by_rank = [[None if size < 0 else size for size in one] for one in all_sizes]
    return [
        {"host_peak": host, "gpu_peak": gpu, "tables": dict(zip(names, held))}
        for host, gpu, *held in sizes_by_rank
    ]


def table_figures(strategy: Strategy, seed: int | None) -> dict[str, dict[str, Any]]:
    """Per table: rows, dim, number of trained rows, norms of rows.

    seed: of the initial rows; None: rows began as rows of another run, so the number of trained
    rows is not known. Tables that grow have no number of rows, and no norms.
    """
    return {name: _figures(strategy, one, seed) for name, one in strategy.tables.items()}


def _figures(strategy: Strategy, table: Table, seed: int | None) -> dict[str, Any]:
    figures: dict[str, Any] = {"rows": table.rows, "dim": table.dim, "trained": None, "norm": None}
    if table.rows is None:
        return figures
    seen = min(table.rows, MOST_ROWS)
    if seen < table.rows:
        figures["sampled"] = seen
    # In half precision, rounding changes the initial values.
    has_initial = seed is not None and not table.half
    parts = []
    for start in range(0, seen, SOME_ROWS):
        places = torch.arange(start, min(start + SOME_ROWS, seen))
        first, last = strategy.world.slice(len(places))
        ids = places[first:last] * table.rows // seen
        if table.padding is not None:
            ids = ids[ids != table.padding]
        rows = _pull(strategy, table.name, ids)
        changed = torch.zeros(len(ids), dtype=torch.bool)
        if has_initial:
            initial = initial_rows(table, seed or 0, ids)
            changed = (rows - initial).abs().amax(dim=1) > 1e-6
        parts.append(torch.stack([rows.double().norm(dim=1), changed.double()], dim=1))
    world = strategy.world
    norms, changed = world.all_gather(torch.cat(parts).to(world.device)).cpu().unbind(1)
    if len(norms):
        order = norms.sort().values  # a sum in one order, however ranks share the rows
        values = {"mean": order.mean(), "min": order[0], "max": order[-1]}
        figures["norm"] = {key: float(f"{value.item():.6g}") for key, value in values.items()}
    if has_initial:
        figures["trained"] = round(int(changed.sum()) * table.rows / seen)
    return figures


def _pull(strategy: Strategy, name: str, ids: Tensor) -> Tensor:
    with torch.inference_mode():
        rows = strategy.rows.pull([Lookup(name, ids.to(strategy.rows.device))], learn=False)
        return rows[0].float().cpu()

"""Expectations of a run before it trains, for result.json; a page compares them with its results.

protocol  what is tested and among which items it is ranked, in a line
plan      what `shoal plan` computes of memory
hits      how often the id of each row stands in the training split, by table
"""

from typing import Any

import numpy as np

from shoal.data.dataset import Dataset
from shoal.embedding.placements.row_memory import plan_memory
from shoal.embedding.rows.table import Table
from shoal.runs.parts import Parts

ITEM_FIELDS = ("item", "history", "target", "shown", "output")  # as models call them


def expected(parts: Parts) -> dict[str, Any]:
    """The facts for result.json: protocol, plan of memory, hits."""
    strategy = parts.strategy
    plan = plan_memory(
        parts.config, strategy.tables, strategy.row_optimizers, strategy.world.device
    )
    return {"protocol": parts.protocol, "plan": plan.facts(), "hits": _hits(parts)}


def _hits(parts: Parts) -> dict[str, dict[str, float]]:
    """For tables whose rows are users or items: hits of a row (mean, max), rows without any.

    Negatives are not counted, nor the items of a history again in each sample.
    """
    data, hits = parts.dataset, {}
    if not isinstance(data, Dataset):  # of a log nothing is counted
        return {}
    users = np.bincount(data.user_ids("train"), minlength=data.num_users)
    items = np.bincount(data.item_ids("train"), minlength=data.num_items)
    counts = {data.user_field: users, "user": users, data.item_field: items}
    counts |= dict.fromkeys(ITEM_FIELDS, items)
    for module in parts.strategy.embeddings:
        for field, table in module.fields.items():
            if field in counts and _is_of(table, counts[field]):
                hits[table.name] = _figures(counts[field][1:])  # without the padding
    return hits


def _is_of(table: Table, counts: np.ndarray) -> bool:
    """True where row k is id k; some models have a row or two more, for what is masked."""
    return table.rows is not None and 0 <= table.rows - len(counts) <= 2


def _figures(counts: np.ndarray) -> dict[str, float]:
    mean = float(f"{counts.mean():.6g}") if len(counts) else 0.0
    return {"mean": mean, "max": int(counts.max(initial=0)), "none": int((counts == 0).sum())}

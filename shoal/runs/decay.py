"""Decay: rows of users and items that new data does not name any more shrink.

A run that goes on counts, for every user and item, the days (runs) since new data last named it,
and leaves the counts in its folder (ages.safetensors). From `start.value_decay.after` days on, what
a row holds is multiplied by `start.value_decay.factor` every day, before anything is trained.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor

from shoal.config.schema import ForgettingSection
from shoal.data.dataset import Dataset
from shoal.embedding.module import Embeddings
from shoal.files.durable import replace_durably
from shoal.runs.vocabulary_growth import read_tensors
from shoal.training.checkpoint.snapshot import table_of
from shoal.training.checkpoint.writing import Snapshot
from shoal.training.strategies.base import Strategy

log = logging.getLogger("shoal")
AGES = "ages.safetensors"
Ages = dict[str, np.ndarray]  # field -> days since each id was named, int32 [ids]


def ages_after(run: Path | None, dataset: Any) -> Ages:
    """Days since each user and item was named, today's data included; run: the day before's."""
    if not isinstance(dataset, Dataset):
        raise ValueError(
            "start.value_decay is for interactions; click models have rows.counter_decay and "
            "rows.shrink"
        )
    before = {} if run is None else _read(run / AGES)
    ages_by_field = {}
    for field in (dataset.user_field, dataset.item_field):
        ages = np.zeros(len(dataset.vocab[field]), np.int32)
        earlier_ages = before.get(field, ages[:0])
        ages[: len(earlier_ages)] = earlier_ages[: len(ages)] + 1
        if not len(earlier_ages):  # the run before counted nothing: all of its ids were named then
            ages += 1
        ages[np.unique(np.asarray(dataset.inter[field]))] = 0
        ages[0] = 0  # padding is nobody
        ages_by_field[field] = ages
    return ages_by_field


def save_ages(folder: Path, ages: Ages) -> None:
    """Leave the counts in a run's folder."""
    tensors = {field: torch.from_numpy(one) for field, one in ages.items()}
    replace_durably(folder / AGES, format_tensors(tensors))


def _read(file: Path) -> Ages:
    tensors = read_tensors(file) if file.exists() else {}
    return {field: ages.numpy() for field, ages in tensors.items()}


def fade(
    decay: ForgettingSection, snapshot: Snapshot, strategy: Strategy, dataset: Dataset, ages: Ages
) -> None:
    """Shrink rows in what was saved, before it is given to the model."""
    if strategy.saves_rows:
        raise ValueError(
            "start.value_decay does not work with parameter servers; use rows.counter_decay and "
            "rows.shrink"
        )
    whose = fields_of_tables(strategy, dataset)
    faded = dict.fromkeys(ages, 0)

    def shrink(table: str, tensors: dict[str, Tensor]) -> None:
        ids, field = tensors["ids"], whose[table]
        inside = ids < len(ages[field])  # behind them a table may have rows of its own
        old = torch.zeros(len(ids), dtype=torch.bool)
        old[inside] = torch.from_numpy(ages[field])[ids[inside]] >= decay.after
        tensors["values"][old] *= decay.factor
        faded[field] += int(old.sum())

    change_rows(snapshot, whose, shrink)
    for field, count in faded.items():
        log.info("%d rows of %s were not named for %d days", count, field, decay.after)


def change_rows(
    snapshot: Snapshot, tables: Container[str], change: Callable[[str, dict[str, Tensor]], None]
) -> None:
    """Change what a checkpoint has of the rows of these tables, before a model is given it."""
    for file, data in snapshot.files.items():
        table = table_of(file)
        if table is not None and table in tables and data is not None:
            tensors = parse_tensors(data if isinstance(data, bytes) else data.read_bytes())
            change(table, tensors)
            snapshot.files[file] = format_tensors(tensors)


def fields_of_tables(strategy: Strategy, dataset: Dataset) -> dict[str, str]:
    """Table -> the field of users or of items whose ids its rows are."""
    fields = {name: dataset.item_field for name in ("neg_item", "history", "target")}
    fields |= {dataset.item_field: dataset.item_field, dataset.user_field: dataset.user_field}
    return {
        table.name: fields[field]
        for module in strategy.model.modules()
        if isinstance(module, Embeddings)
        for field, table in module.fields.items()
        if field in fields
    }

"""Decay: rows of users and items that new data does not name any more shrink.

A run that goes on counts, for every user and item, the days (runs) since new data last named it,
and leaves the counts in its folder (ages.safetensors). From `start.decay.after` days on, what a row
holds is multiplied by `start.decay.factor` every day, before anything is trained.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors

from shoal.config.schema import DecaySection
from shoal.data.dataset import Dataset
from shoal.embedding.module import Embeddings
from shoal.training.checkpoint.snapshot import table_of
from shoal.training.checkpoint.writing import Snapshot
from shoal.training.strategy.base import Strategy
from shoal.world.durable import open_regular, replace_durably

log = logging.getLogger("shoal")
AGES = "ages.safetensors"
Ages = dict[str, np.ndarray]  # field -> days since each id was named, int32 [ids]


def ages_after(run: Path | None, dataset: Any) -> Ages:
    """Days since each user and item was named, today's data included; run: the day before's."""
    if not isinstance(dataset, Dataset):
        raise ValueError(
            "start.decay is for users and items of interactions; rows of click models come and go "
            "by rows.decay and rows.shrink"
        )
    before = {} if run is None else _read(run / AGES)
    found = {}
    for field in (dataset.user_field, dataset.item_field):
        ages = np.zeros(len(dataset.vocab[field]), np.int32)
        known = before.get(field, ages[:0])
        ages[: len(known)] = known[: len(ages)] + 1
        if not len(known):  # the run before counted nothing: all of its ids were named then
            ages += 1
        ages[np.unique(np.asarray(dataset.inter[field]))] = 0
        ages[0] = 0  # padding is nobody
        found[field] = ages
    return found


def save_ages(folder: Path, ages: Ages) -> None:
    """Leave the counts in a run's folder."""
    tensors = {field: torch.from_numpy(one) for field, one in ages.items()}
    replace_durably(folder / AGES, format_tensors(tensors))


def _read(file: Path) -> Ages:
    try:
        with open_regular(file, links=False) as text:
            return {field: ages.numpy() for field, ages in parse_tensors(text.read()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot read {file}: {error}") from error


def fade(
    decay: DecaySection, snapshot: Snapshot, strategy: Strategy, dataset: Dataset, ages: Ages
) -> None:
    """Shrink rows in what was saved, before it is given to the model."""
    if strategy.saves_rows:
        raise ValueError(
            "start.decay: parameter servers read their rows themselves; use another strategy, or "
            "rows.decay and rows.shrink"
        )
    whose = _tables(strategy, dataset)
    faded = dict.fromkeys(ages, 0)
    for file, data in snapshot.files.items():
        field = whose.get(table_of(file) or "")
        if field is None or data is None:
            continue
        tensors = parse_tensors(data if isinstance(data, bytes) else data.read_bytes())
        ids = tensors["ids"]
        inside = ids < len(ages[field])  # behind them a table may have rows of its own
        old = torch.zeros(len(ids), dtype=torch.bool)
        old[inside] = torch.from_numpy(ages[field])[ids[inside]] >= decay.after
        tensors["values"][old] *= decay.factor
        faded[field] += int(old.sum())
        snapshot.files[file] = format_tensors(tensors)
    for field, count in faded.items():
        log.info("%d rows of %s were not named for %d days", count, field, decay.after)


def _tables(strategy: Strategy, dataset: Dataset) -> dict[str, str]:
    """Table -> the field whose ids its rows are."""
    fields = {name: dataset.item_field for name in ("neg_item", "history", "target")}
    fields |= {dataset.item_field: dataset.item_field, dataset.user_field: dataset.user_field}
    return {
        table.name: fields[field]
        for module in strategy.model.modules()
        if isinstance(module, Embeddings)
        for field, table in module.fields.items()
        if field in fields
    }

"""Start: what training begins with, where that is not nothing: another run, or given vectors.

Rows and their optimizer's state, dense parameters and theirs come from the run's best checkpoint;
rows of new ids begin as rows do. The learning rate begins anew, and so does the count of epochs.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor

from shoal.config.errors import did_you_mean
from shoal.config.schema import (
    ForgettingSection,
    ModelSection,
    OptimizerSection,
    RowOptimizerOptions,
    StartSection,
)
from shoal.data.dataset import Dataset
from shoal.data.fingerprint import as_saved
from shoal.distributed.world import World
from shoal.embedding.rows.store import Rows
from shoal.files.durable import replace_durably
from shoal.models.own import code_of, is_own
from shoal.optimizers.selection import row_optimizer_of
from shoal.runs.decay import ages_after, change_rows, fade, fields_of_tables
from shoal.runs.run_files import metrics_of, read_object
from shoal.runs.vocabulary_growth import FILE, read_vocabularies
from shoal.training.checkpoint.writing import Checkpoints, Snapshot, restore_into
from shoal.training.evaluation import Evaluator
from shoal.training.run_folder import RunFolder
from shoal.training.strategies.base import Strategy
from shoal.training.trainer import Trainer

log = logging.getLogger("shoal")
BEFORE = "before.json"  # in a run's folder: a run that is resumed cannot find it out again


def begin(
    start: StartSection, model: ModelSection, strategy: Strategy, dataset: Any, world: World
) -> None:
    """Load what the section `start` names into a new model: a run, pretrained vectors."""
    known_counts = {}  # field -> words of the run before, which have learned since
    if start.run is not None:
        known_counts = _go_on(Path(start.run), start.value_decay, model, strategy, dataset, world)
    for table, entry in start.pretrained.items():
        options = {"file": entry} if isinstance(entry, str) else entry
        stays = {} if options.get("frozen", False) else known_counts
        _take_vectors(table, options["file"], strategy, dataset, stays)


def frozen_optimizer(section: OptimizerSection, pretrained: Mapping[str, Any]) -> OptimizerSection:
    """The optimizer section, with a learning rate of 0 for tables whose vectors are frozen."""
    tables = dict(section.tables)
    for table, entry in pretrained.items():
        if isinstance(entry, str) or not entry.get("frozen", False):
            continue
        if row_optimizer_of(section, table).name == "ftrl":
            raise ValueError(
                f"start.pretrained: table {table!r} cannot be frozen with ftrl; choose another "
                f"with train.optimizer.tables.{table}.name"
            )
        tables[table] = RowOptimizerOptions(**{**tables.get(table, {}), "lr": 0.0})
    return section.model_copy(update={"tables": tables})


def _go_on(
    run: Path,
    decay: ForgettingSection,
    model: ModelSection,
    strategy: Strategy,
    dataset: Any,
    world: World,
) -> dict[str, int]:
    """Load what a run has learned; return the number of users and items it knew, by field."""
    checkpoints = Checkpoints(run / "checkpoints", world, rows_apart=strategy.saves_rows)
    snapshot = checkpoints.load_newest()
    if snapshot is None:
        raise ValueError(f"start.run: {run} has no checkpoint to go on from; train it first")
    best = snapshot.state["best_step"]
    if best is not None and best != snapshot.state["step"]:
        snapshot = checkpoints.load_step(best)
    before = snapshot.state["fingerprint"]
    _check_model(run, before, model, strategy)
    if isinstance(dataset, Dataset):
        _make_room(snapshot, strategy, dataset, before["num_items"])
        log.info(
            "going on from %s (step %d): %d new users, %d new items",
            run,
            snapshot.state["step"],
            dataset.num_users - before["num_users"],
            dataset.num_items - before["num_items"],
        )
    else:
        log.info("going on from %s (step %d)", run, snapshot.state["step"])
    if decay.after:
        fade(decay, snapshot, strategy, dataset, ages_after(run, dataset))
    restore_into(strategy, snapshot)
    if not isinstance(dataset, Dataset):
        return {}
    return {
        dataset.user_field: before["num_users"],
        dataset.item_field: before["num_items"],
    }


def _check_model(
    run: Path, before: dict[str, Any], model: ModelSection, strategy: Strategy
) -> None:
    """Refuse a model other than that of the run, whose fingerprint was `before`."""
    name = model.name
    now = as_saved(before, {"model": model.title, "options": model.options}, strategy.model.options)
    if any(before[key] != value for key, value in now.items()):
        raise ValueError(
            f"start.run: {run} is {before['model']} with options {before['options']}, and this is "
            f"{model.title} with {model.options}; go on with the same model"
        )
    if not strategy.model.trainable:
        raise ValueError(
            f"{model.title} is computed from its data at once and has nothing to go on from; train "
            "it anew on all data, without --from"
        )
    code, kept = code_of(name) if is_own(name) else None, RunFolder(run).code_hashes()
    digest = "" if code is None else hashlib.sha256(code[1]).hexdigest()
    if code is not None and kept and digest not in kept.values():
        file, old = next(iter(kept.items()))
        raise ValueError(
            f"start.run: {run} was trained with a {file} of SHA-256 {old}, and {name} is of "
            f"{digest}; continue with its copy: --model={run}/model/{file}:{model.title}"
        )


def _make_room(snapshot: Snapshot, strategy: Strategy, dataset: Dataset, old: int) -> None:
    """Rows behind the last item (a mask token) come behind the new ones."""
    wider = {
        name
        for name, field in fields_of_tables(strategy, dataset).items()
        if field == dataset.item_field and (strategy.tables[name].rows or 0) > dataset.num_items
    }
    num_new = dataset.num_items - old
    if not wider or not num_new:
        return
    if strategy.saves_rows:
        raise ValueError(
            "start.run: a model with a mask token does not continue with parameter servers"
        )

    def move(table: str, tensors: dict[str, Tensor]) -> None:
        ids = tensors["ids"]
        tensors["ids"] = torch.where(ids >= old, ids + num_new, ids)

    change_rows(snapshot, wider, move)


def _take_vectors(
    name: str, file: str, strategy: Strategy, dataset: Any, known_counts: dict[str, int]
) -> None:
    """Read rows of a table from FILE.npy [n, dim]; FILE.txt holds their ids, one in a line.

    Rows of ids that a run before knew (so many of them, by field) stay as it left them.
    """
    stores = strategy.stores
    if name not in stores:
        near = did_you_mean(name, stores)
        raise ValueError(
            f"start.pretrained: no table is named {name!r}; there are {', '.join(stores)}{near}"
        )
    store = stores[name]
    try:
        with open(file, "rb") as opened:
            np.lib.format.read_magic(opened)  # an archive of arrays (.npz) has another
        vectors = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy raises many kinds, down to those of a tokenizer
        raise ValueError(f"start.pretrained: cannot read {file}: {error}") from error
    if vectors.ndim != 2 or vectors.shape[1] != store.table.dim or vectors.dtype.kind != "f":
        raise ValueError(
            f"start.pretrained: {file} is {vectors.dtype} {list(vectors.shape)}; table {name!r} "
            f"takes numbers [n, {store.table.dim}]"
        )
    if strategy.saves_rows:
        raise ValueError(
            "start.pretrained does not work with parameter servers; use another strategy"
        )
    if store.table.rows is None or not isinstance(dataset, Dataset):
        raise ValueError(f"start.pretrained: table {name!r} grows; only fixed ones take vectors")
    field = fields_of_tables(strategy, dataset).get(name, dataset.item_field)
    place = _places(name, file, len(vectors), store.table.rows, dataset.vocab[field])
    place[: known_counts.get(field, 0)] = -1
    changed = []  # rank 0 sees all rows of sharded tables, and sends them to every rank
    for rows in store.export(1 << 16):
        where = place[rows.ids.numpy()]
        kept = torch.from_numpy(where >= 0)
        chosen = np.ascontiguousarray(vectors[where[kept.numpy()]].astype(np.float32))
        if not np.isfinite(chosen).all():
            raise ValueError(f"start.pretrained: {file} holds NaN, or numbers beyond 32 bits")
        values = torch.from_numpy(chosen)
        state = {f"state/{key}": part[kept].contiguous() for key, part in rows.state.items()}
        changed.append(format_tensors({"ids": rows.ids[kept], "values": values, **state}))
    world, taken = strategy.world, 0
    for number in range(int(world.broadcast_bytes(str(len(changed)).encode()))):
        text = world.broadcast_bytes(changed[number] if world.is_main else None)
        tensors = parse_tensors(text)
        state = {key[6:]: one for key, one in tensors.items() if key.startswith("state/")}
        taken += len(tensors["ids"])
        if len(tensors["ids"]):
            store.restore(Rows(tensors["ids"], tensors["values"], state))
    log.info("table %s: %d rows begin as %s says", name, taken, file)


def _places(name: str, file: str, count: int, size: int, vocabulary: np.ndarray) -> np.ndarray:
    """For every id of a table its row in the file; -1: none."""
    ids = Path(file).with_suffix(".txt")
    place = np.full(size, -1, np.int64)
    if not ids.exists():
        if count != size:
            raise ValueError(
                f"start.pretrained: {file} has {count} rows and table {name!r} {size}; write the "
                f"ids that its rows belong to into {ids.name} beside it, one in a line"
            )
        return np.arange(size)
    words = ids.read_text().splitlines()
    if len(words) != count:
        raise ValueError(f"start.pretrained: {ids} has {len(words)} lines for {count} rows")
    number = {word: k for k, word in enumerate(vocabulary.tolist())}
    for row, word in enumerate(words):
        if number.get(word.strip(), 0) > 0:
            place[number[word.strip()]] = row
    return place


def known_words(folder: Path) -> dict[str, list[str]]:
    """The words of a run, as it left them."""
    file = folder / FILE
    if not file.is_file():
        raise ValueError(
            f"{folder} has no {FILE}: an older version left none; train that run once more"
        )
    return read_vocabularies(file)


# ---- progressive validation: how well what was known foretells new data, before it is seen -----


def validate_first(trainer: Trainer, dataset: Any) -> dict[str, float]:
    """Metrics of a model that goes on, on the new data's valid split; or on all of the new data."""
    config, evaluator = trainer.config, trainer.evaluator
    if config.start.run is None or not (config.train.eval_every or config.start.test_first):
        return {}
    # (With start.test_first the valid files of a click log are those that it trains on.)
    if config.start.test_first and isinstance(evaluator, Evaluator):
        none = np.zeros(0, np.int64)
        assert isinstance(dataset, Dataset)
        all_rows = np.sort(np.concatenate(list(dataset.splits.values())))
        unseen = replace(dataset, splits={"train": none, "valid": all_rows, "test": none})
        section = config.eval.model_copy(update={"valid_users": "all"})
        evaluator = Evaluator(
            unseen,
            section,
            trainer.world,
            config.run.seed,
            config.data.max_len,
            sequential=evaluator.sequential,
            timed=evaluator.timed,
        )
    evaluator.check(["valid"])
    values = evaluator.evaluate(trainer.model, "valid")
    log.info("before training: %s", values)
    return values


def keep_before(folder: Path, before: dict[str, float]) -> dict[str, float]:
    """Leave the metrics in a run's folder; where there are none, those that it has."""
    if before:
        replace_durably(folder / BEFORE, json.dumps(before).encode())
        return before
    return metrics_of({"before": read_object(folder / BEFORE)}, "before")

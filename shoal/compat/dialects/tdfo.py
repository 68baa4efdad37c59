"""The keys of tdfo's `config.toml` (BERT4Rec on Goodreads with TorchRec), translated.

A config is in this dialect when a source of it has a key that only this tool has and the model is
BERT4Rec, which is meant where none is named: then every source may use its keys. Keys that are not
given take the values of its file; what the tool does without a key (filters, split, candidates,
metrics) is a default below everything given.
"""

from __future__ import annotations

from typing import Any

from shoal.config.dialect import Dialect, Named, Row, Translation, free, per_process, same
from shoal.config.sources import Layer
from shoal.config.yaml_io import inline

MODEL = "BERT4Rec"
FOLDER = "prepared_bert4rec"  # under data_dir: what examples/pages/tdfo/preprocessing.py writes
# Keys that no other tool has.
OWN = [
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "model_parallel",
    "sliding_step",
    "data_dir",
]


def has_own_keys(source: Layer) -> bool:
    """Whether a source has keys that this tool alone has."""
    return any(key in source.values for key in OWN)


def _parts(value: Any) -> Translation:
    if not isinstance(value, str) or "*" not in value:
        raise ValueError(
            f"given {inline(value)}; give a pattern of all parts (train_part_*.parquet), or none"
        )
    return Translation()


def _strategy(value: Any) -> Translation:
    if not isinstance(value, bool):
        raise ValueError(f"given {inline(value)}; allowed: true (sharded tables) or false (ddp)")
    if not value:
        return Translation({"strategy.name": "ddp"})
    return Translation({"strategy.name": "sharded"}, SHARDS_ALL)


# TorchRec cuts every table that a module of its holds, however small.
SHARDS_ALL = {"strategy.replicate_below": 0}
SHARDED = "small tables too (`strategy.replicate_below` is 0 where it is not given)"
PARTS = "any pattern of all parts: the prepared folder under data_dir holds them"

TABLE: list[Row] = [
    Row(
        "data_dir",
        ("data.path",),
        f"the folder of goodreads_interactions.csv; `{FOLDER}` in it is trained from",
        lambda value: Translation(
            {"data.path": value}, {"data.name": FOLDER, "data.format": "prepared"}
        ),
    ),
    Row("train_data", (), PARTS, _parts),
    Row("eval_data", (), PARTS, _parts),
    same("n_epochs", "train.epochs"),
    same("learning_rate", "train.optimizer.lr"),
    same("weight_decay", "train.optimizer.weight_decay"),
    same("embed_dim", "model.hidden_size"),
    same("n_heads", "model.n_heads"),
    same("n_layers", "model.n_layers"),
    same("max_len", "data.max_len"),
    same("sliding_step", "model.window_stride", "at most max_len; windows start at the first item"),
    same("mask_prob", "model.mask_ratio", "besides, the last item of a window is always hidden"),
    per_process(
        "per_device_train_batch_size",
        "train.batch_size",
        "multiplied by the number of processes, once, and the log says so",
    ),
    same("per_device_eval_batch_size", "eval.batch_size", "per process; results do not change"),
    Row(
        "model_parallel",
        ("strategy.name",),
        f"true: sharded, on CPUs too, {SHARDED}; false: ddp",
        _strategy,
    ),
    free("num_workers", "batches are made whole from mapped columns, one thread ahead", note=True),
    same("seed", "run.seed"),
]

DEFAULTS: dict[str, Any] = {
    "n_epochs": 10,
    "learning_rate": 3e-4,
    "weight_decay": 1e-4,
    "embed_dim": 16,
    "max_len": 20,
    "sliding_step": 10,
    "mask_prob": 0.2,
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 16,
    "model_parallel": True,
    "seed": 42,
    # What the tool does without a key.
    "data.filter.user_inter_num": "[20,200]",
    "data.split.by": "leave_one_out",
    "data.split.order": "file",
    "eval.repeatable": True,
    "model.random_ratio": 0.0,
    "model.windows_from_start": True,
    "model.mask_last": True,
    "model.label_smoothing": 0.1,
    "eval.mode": "pop100",
    "eval.metrics": ["Recall", "NDCG"],
    "eval.topk": [10, 20, 50],
    "eval.valid_metric": "NDCG@10",
    "train.patience": 1_000_000,
}


class Tdfo(Dialect):
    tool, table, values = "tdfo", TABLE, DEFAULTS
    note = (
        "keys of tdfo's config.toml are given: others take its values, as `shoal config show` shows"
    )

    def name_model(self, named: Named | None) -> Named | None:
        own = [source for source in self.sources if has_own_keys(source)]
        return named or ((MODEL, own[0].origin(())) if own else None)

    def reads(self, source: Layer) -> bool:
        """All sources, where one of them has the tool's own keys."""
        return self.model == MODEL and any(map(has_own_keys, self.sources))

    def row(self, name: str) -> Row:
        if name == "sliding_step":  # windows further apart than they are long leave items out
            values = {**DEFAULTS}
            for source in self.sources:
                values |= {k: source.values[k] for k in ("max_len", name) if k in source.values}
            step, length = values[name], values["max_len"]
            if isinstance(step, int) and isinstance(length, int) and step > length:
                raise ValueError(
                    f"sliding_step is {step} and max_len is {length}; the step is at most max_len"
                )
        return self.rows[name]

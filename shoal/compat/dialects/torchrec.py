"""The flags of TorchRec's Bert4Rec example, translated. One table, as for RecBole.

A source (the command line, a file, a Python mapping) is in this dialect when the model is BERT4Rec
and it has a key that only the example has, or says `dialect: torchrec`. In such a source a key that
both tools have is the example's: train_batch_size is then the batch of one process. Flags that are
not given anywhere take the example's defaults, below everything that is given.
"""

from __future__ import annotations

from typing import Any

from shoal.compat.dialects import recbole, tdfo
from shoal.compat.dialects.tdfo import SHARDED, SHARDS_ALL
from shoal.config.dialect import (
    Dialect,
    Named,
    Row,
    Translation,
    free,
    given_only,
    per_process,
    read_as,
    same,
)
from shoal.config.errors import did_you_mean
from shoal.config.sources import Layer
from shoal.config.yaml_io import inline

MODEL = "BERT4Rec"
MODES = {"dmp": "sharded", "ddp": "ddp"}


def _dialect(value: Any) -> Translation:
    if value != "torchrec":
        hint = did_you_mean(str(value), ["torchrec"])
        need = "" if hint else "; keys of Shoal and of other tools need no dialect: leave it out"
        raise ValueError(f"given {inline(value)}; allowed: torchrec{hint}{need}")
    return Translation()


def _dialect_elsewhere(value: Any) -> Translation:
    _dialect(value)
    raise ValueError(f"torchrec is the dialect of {MODEL} alone; leave it out, or --model={MODEL}")


def _at_least(value: Any) -> Any:
    """A smallest count as an interval."""
    return f"[{value},inf)" if type(value) is int else value


def _min_rating(value: Any) -> Translation:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"given {inline(value)}; allowed: a number")
    kept = {} if value <= 0 else {"rating": f"[{value},inf)"}
    return Translation({"data.filter.values": kept})


def _mode(value: Any) -> Translation:
    if value not in MODES:
        hint = did_you_mean(str(value), MODES)
        raise ValueError(f"given {inline(value)}; allowed: dmp (sharded tables) or ddp{hint}")
    return Translation({"strategy.name": MODES[value]}, SHARDS_ALL if value == "dmp" else {})


TABLE: list[Row] = [
    Row("dialect", (), "only `torchrec`: these are the flags of one tool", _dialect),
    same("dataset_name", "data.name", "ml-1m, ml-20m or random; any data set of Shoal works"),
    given_only("dataset_path", "data.path", "the folder of ratings.dat or ratings.csv"),
    given_only("export_root", "run.root", "each run makes its own folder there"),
    same("random_user_count", "data.random.users"),
    same("random_item_count", "data.random.items"),
    same("random_size", "data.random.interactions"),
    Row("min_rating", ("data.filter.values",), "of the field `rating`; 0: all", _min_rating),
    read_as(
        "min_user_count",
        "data.filter.user_inter_num",
        _at_least,
        "repeated with min_item_count until both hold; there items once, then users once",
    ),
    read_as(
        "min_item_count",
        "data.filter.item_inter_num",
        _at_least,
        "repeated with min_user_count until both hold",
    ),
    same("max_len", "data.max_len"),
    same("mask_prob", "model.mask_ratio"),
    same("dupe_factor", "model.dupe_factor", "masks are new in every epoch; there they are kept"),
    same("emb_dim", "model.hidden_size"),
    same("nhead", "model.n_heads"),
    same("num_layers", "model.n_layers"),
    same("num_epochs", "train.epochs"),
    same("lr", "train.optimizer.lr"),
    same("weight_decay", "train.optimizer.weight_decay"),
    same("decay_step", "train.optimizer.decay_epochs"),
    same("gamma", "train.optimizer.gamma", "1: a constant rate"),
    per_process(
        "train_batch_size",
        "train.batch_size",
        "per process: multiplied by the number of processes, once, and the log says so",
    ),
    same("val_batch_size", "eval.batch_size", "per process, there as here; results do not change"),
    free("test_batch_size", "val_batch_size holds for both; results do not change"),
    Row("mode", ("strategy.name",), f"dmp: sharded, {SHARDED}; ddp: ddp", _mode),
]
# In a source that is not written for the example: the model is wrong, or the dialect's name.
UNSPOKEN: dict[str, Row] = {"dialect": Row("dialect", (), "", _dialect_elsewhere)}

DEFAULTS: dict[str, Any] = {
    "dataset_name": "ml-1m",
    "min_rating": 0,
    "min_user_count": 5,
    "min_item_count": 0,
    "random_user_count": 10,
    "random_item_count": 30,
    "random_size": 300,
    "max_len": 100,
    "mask_prob": 0.15,
    "dupe_factor": 3,
    "emb_dim": 256,
    "nhead": 2,
    "num_layers": 2,
    "num_epochs": 100,
    "lr": 1e-3,
    "weight_decay": 0.0,
    "decay_step": 25,
    "gamma": 1.0,
    "train_batch_size": 128,
    "mode": "dmp",
    # What the example does without a flag.
    "data.split.by": "leave_one_out",
    "data.split.order": "time",
    "eval.repeatable": True,
    "train.optimizer.schedule": "step",
    "train.patience": 1_000_000,
    "eval.metrics": ["Recall", "NDCG"],
    "eval.topk": [1, 5, 10],
    "eval.valid_metric": "NDCG@10",
}


class TorchRec(Dialect):
    tool, table, values = "TorchRec", TABLE, DEFAULTS
    note = (
        "flags of TorchRec's Bert4Rec example are given: others take its defaults, as "
        "`shoal config show` shows"
    )

    def name_model(self, named: Named | None) -> Named | None:
        own = [source for source in self.sources if "dialect" in source.values]
        return named or ((MODEL, own[0].origin(("dialect",))) if own else None)

    def defaults(self) -> dict[str, Any]:
        """The example's defaults; random data is evaluated against 10 uniform negatives."""
        if not self.used:
            return {}
        names = [source.values.get("dataset_name") for source in self.sources]
        name = [DEFAULTS["dataset_name"], *filter(None, names)][-1]
        return {**DEFAULTS, "eval.mode": "uni10" if name == "random" else "pop100"}

    def reads(self, source: Layer) -> bool:
        """Whether a source has a key of the example that neither RecBole nor the model has."""
        if self.model != MODEL or any(map(tdfo.has_own_keys, self.sources)):
            return False
        others = {row.key for row in recbole.TABLE}
        own = (key for key in source.values if key in self.rows and key not in others)
        return any(f"model.{key}" not in (self.options or ()) for key in own)

    def knows(self, key: str, source: Layer) -> bool:
        return key in (self.rows if self.reads(source) else UNSPOKEN)

    def row(self, name: str) -> Row:
        return (self.rows if self.model == MODEL else UNSPOKEN)[name]

    def words(self) -> dict[str, str]:
        return {"dialect": "dialect"} | (self.shown(TABLE) if self.model == MODEL else {})

"""RecBole's flat keys, translated. One table: what a key sets here, or why it is refused.

Facts are those of RecBole 1.2.1. Options of a model (embedding_size, n_layers, ...) are not in the
table: a flat key that is an option of the chosen model becomes model.KEY, and a model's class says
what else its keys of RecBole are here (`recbole_options` and its neighbours in models/base.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from shoal.compat.dialects import recbole_values as values
from shoal.compat.dialects.paddlerec_values import as_lower
from shoal.config.dialect import (
    Dialect,
    Row,
    Translation,
    free,
    only,
    read_as,
    refused,
    same,
)
from shoal.config.keys import options_of
from shoal.models import MODELS, find
from shoal.models.base import Model
from shoal.models.own import is_own

# The table ---------------------------------------------------------------------------------------

FIXED = "names inside a batch are fixed here; leave it out"
KNOWLEDGE = "columns of the knowledge graph have fixed names, and it is read as it is"
NO_ALIAS = "every token field has its own ids"
DROPPED = "RecBole dropped it too; use train_neg_sample_args"
CACHED = "prepared columns are kept by themselves (data.cache)"

TABLE: list[Row] = [
    # launch
    same("nproc", "launch.nproc"),
    read_as(
        "world_size",
        "launch.world_size",
        lambda value: -1 if type(value) is int and value <= 0 else value,
        "0 and less: as many as nproc",
    ),
    same("ip", "launch.ip"),
    read_as(
        "port",
        "launch.port",
        lambda value: int(value) if isinstance(value, str) and value.isdecimal() else value,
        "a number, or a number in quotes",
    ),
    same("group_offset", "launch.group_offset"),
    same("offset", "launch.group_offset", "as in the Python form"),
    # environment
    same("dataset", "data.name"),
    same("data_path", "data.path", "the data set is data_path/NAME/NAME.inter"),
    same("checkpoint_dir", "run.root", "each run makes its own folder there"),
    read_as("gpu_id", "run.gpu_ids", values.as_gpu_ids, "text, number or list; empty: no GPU"),
    read_as("use_gpu", "run.device", values.chosen("auto", "cpu"), "true: auto, false: cpu"),
    same("seed", "run.seed"),
    Row("state", ("run.log_level",), "in any case; critical is read as error", values.read_state),
    same("show_progress", "run.progress"),
    same("shuffle", "train.shuffle"),
    free("worker", "batches are made whole, without loader processes", note=True),
    Row("reproducibility", (), "any value: every run is reproducible", values.read_reproducibility),
    Row("log_wandb", ("run.trackers",), "true: tensorboard and wandb", values.read_log_wandb),
    same("wandb_project", "run.project"),
    *[only(key, [False, None], CACHED) for key in ("save_dataset", "save_dataloaders")],
    *[
        free(f"{kind}_save_path", f"read with save_{kind} only")
        for kind in ("dataset", "dataloaders")
    ],
    refused("device", "it is chosen by run.device (auto, cpu, cuda)"),
    refused("local_rank", "ranks are given by the launcher"),
    refused("single_spec", "the launcher decides it; set nproc"),
    *[refused(key, "name them on the command line") for key in ("config_file", "config_files")],
    # training
    same("epochs", "train.epochs"),
    same(
        "train_batch_size",
        "train.batch_size",
        "the global batch, there as here; of a sequence model that finds an item at every place of "
        "a window so many items, as there every item with what was before it is a sample",
    ),
    read_as("learner", "train.optimizer.name", as_lower, "in any case"),
    same("learning_rate", "train.optimizer.lr"),
    same("weight_decay", "train.optimizer.weight_decay"),
    Row(
        "train_neg_sample_args",
        ("train.negatives",),
        "null, or a distribution of none: no negatives; `{}`: one uniform negative, as there",
        values.read_negatives,
    ),
    *[refused(key, DROPPED) for key in ("neg_sampling", "training_neg_sample_num")],
    read_as(
        "eval_step",
        "train.eval_every",
        lambda value: max(value, 0) if type(value) is int else value,
        "epochs; 0 and less: never",
    ),
    same("stopping_step", "train.patience", "ends after more than so many evaluations"),
    read_as(
        "clip_grad_norm", "train.clip_grad_norm", values.as_clip, "its max_norm; norm_type 2 only"
    ),
    same("loss_decimal_place", "run.loss_decimals"),
    only("require_pow", [False], "unless it is an option of the model"),
    read_as(
        "enable_amp", "train.precision", values.chosen("bfloat16", "float32"), "true: bfloat16"
    ),
    only("enable_scaler", [False, None], "bfloat16 needs no scaling of the loss"),
    only("transform", [None], "batches are not transformed; masking belongs to the model"),
    # evaluation
    Row(
        "eval_args",
        ("data.split", "eval.mode"),
        "RS: ratio, LS: leave_one_out, RO: random, TO: time; a part left out takes RecBole's "
        "default even where the model has its own",
        values.read_eval_args,
    ),
    read_as("metrics", "eval.metrics", values.as_list, "a name or a list, in any case"),
    read_as("topk", "eval.topk", values.as_list, "a number or a list"),
    same("valid_metric", "eval.valid_metric", "in any case"),
    free("valid_metric_bigger", "the metric itself says which way is better, there as here"),
    same("eval_batch_size", "eval.batch_size"),
    same("metric_decimal_place", "eval.decimals"),
    same("repeatable", "eval.repeatable"),
    same("tail_ratio", "eval.tail_ratio"),
    # data: names
    same("field_separator", "data.separator"),
    same("seq_separator", "data.seq_separator"),
    same("USER_ID_FIELD", "data.fields.user"),
    same("ITEM_ID_FIELD", "data.fields.item"),
    same("RATING_FIELD", "data.fields.rating"),
    same("TIME_FIELD", "data.fields.time"),
    same("LABEL_FIELD", "data.fields.label"),
    same("MAX_ITEM_LIST_LENGTH", "data.max_len"),
    only("NEG_PREFIX", ["neg_"], FIXED),
    only("ITEM_LIST_LENGTH_FIELD", ["item_length"], FIXED),
    only("LIST_SUFFIX", ["_list"], FIXED),
    only("POSITION_FIELD", ["position_id"], FIXED),
    *[
        only(f"{kind.upper()}_ENTITY_ID_FIELD", [f"{kind}_id"], KNOWLEDGE)
        for kind in ("head", "tail")
    ],
    *[
        only(f"{kind.upper()}_ID_FIELD", [f"{kind}_id"], KNOWLEDGE)
        for kind in ("relation", "entity")
    ],
    only("kg_reverse_r", [False, None], KNOWLEDGE),
    *[
        only(f"{kind}_kg_num_interval", [None, "[0,inf)"], KNOWLEDGE)
        for kind in ("entity", "relation")
    ],
    # data: what is loaded and kept
    Row("load_col", ("data.load",), "suffix: columns; null: all of .inter", values.read_load_col),
    read_as("unload_col", "data.unload", values.as_columns, "suffix: columns"),
    only("unused_col", [None, {}], "a model reads the fields it names and no others"),
    read_as(
        "additional_feat_suffix",
        "data.extra_suffixes",
        lambda value: [] if value is None else values.as_list(value),
        "a suffix or a list",
    ),
    same("rm_dup_inter", "data.filter.duplicates", "first, last or null"),
    read_as(
        "val_interval", "data.filter.values", values.as_intervals, "intervals of float fields only"
    ),
    same("filter_inter_by_user_or_item", "data.filter.by_user_or_item"),
    read_as(
        "user_inter_num_interval",
        "data.filter.user_inter_num",
        values.as_interval,
        "an interval; null: all",
    ),
    read_as(
        "item_inter_num_interval",
        "data.filter.item_inter_num",
        values.as_interval,
        "an interval; null: all",
    ),
    same("threshold", "data.threshold", "one field; at or above the value the label is 1"),
    Row(
        "normalize_field",
        ("data.normalize",),
        "a list of float fields",
        lambda value: Translation() if value is None else Translation({"data.normalize": value}),
    ),
    Row("normalize_all", ("data.normalize",), "true: all", values.read_normalize_all),
    same("benchmark_filename", "data.presplit", "three name parts"),
    only("seq_len", [None, {}], "sequence fields are kept whole; data.max_len limits histories"),
    free("numerical_features", "float fields are features unless data.features leaves them out"),
    only("discretization", [None, {}], "say data.features.NAME.buckets"),
    only("preload_weight", [None, {}], "rows start from (seed, table, id) on every rank"),
    *[only(f"alias_of_{kind}_id", [None, []], NO_ALIAS) for kind in ("user", "item", "entity")],
    only("alias_of_relation_id", [None, []], NO_ALIAS),
    only("encoding", [None, "utf-8"], "files are UTF-8"),
]


# How RecBole splits, by the kind of the model.
RANDOM_SPLIT = {"data.split.by": "ratio", "data.split.order": "random", "eval.repeatable": False}
SPLIT_BY_TIME = {
    "data.split.by": "leave_one_out",
    "data.split.order": "time",
    "eval.repeatable": True,
}
# RecBole's train_batch_size and stopping_step; every validation takes all users.
TRAINING = {"train.batch_size": 2048, "train.patience": 10, "eval.valid_users": "all"}
ITEMS = read_as("train_batch_size", "train.batch_size", values.as_items, "so many items")


def rows_of(model: type[Model]) -> Iterator[Row]:
    """What RecBole's keys of a model are here.

    Of several rows of a key the last holds: that of the class before those of its bases, and one
    that sets an option before one that sets nothing.
    """
    options = options_of(model.Options)
    classes = [vars(base) for base in reversed(model.__mro__)]
    for own in classes:
        for key, (value, reason) in own.get("recbole_only", {}).items():
            yield only(key, [value], reason)
        for key, reason in own.get("recbole_without_effect", {}).items():
            yield free(key, reason, note=True)
    for own in classes:
        for key, option in own.get("recbole_options", {}).items():
            target = f"model.{option}"
            if target in options and options[target].kind is bool:
                yield read_as(key, target, values.as_switch, "1 is true and 0 is false")
            elif target in options:
                yield same(key, target)
        for key, (option, yes, no) in own.get("recbole_switches", {}).items():
            rule = f"true: {yes}, false: {no}"
            yield read_as(key, f"model.{option}", values.chosen(yes, no), rule)


class RecBole(Dialect):
    tool, table = "RecBole", TABLE
    has_windows = False  # samples of the model are windows, with an item to find at every place
    note = (
        "`dataset` is RecBole's word: the split, whether items may come again, batches of 2,048 "
        "and a patience of 10 are RecBole's for this kind of model; data.name leaves them to the "
        "data"
    )

    def meet(self, model: str, options: Collection[str] | None) -> None:
        super().meet(model, options)
        if options is not None and (model in MODELS or is_own(model)):
            self.rows |= {row.key: row for row in rows_of(find(model))}
            self.has_windows = find(model).samples == "windows"
            if self.has_windows:
                self.rows |= {ITEMS.key: ITEMS}

    @property
    def names_data(self) -> bool:
        """Whether a source names the data in RecBole's word."""
        return any(isinstance(source.values.get("dataset"), str) for source in self.sources)

    def defaults(self) -> Mapping[str, Any]:
        """RecBole's split and batches where a source names its data as RecBole does."""
        if not self.names_data:
            return {}
        training = dict(TRAINING)
        if self.has_windows:
            training["train.batch_size"] = values.as_items(training["train.batch_size"])
        return training | (SPLIT_BY_TIME if self.kind == "sequential" else RANDOM_SPLIT)

"""PaddleRec's keys in one table: what a key sets here, or why it is refused."""

from __future__ import annotations

from dataclasses import replace

from shoal.compat.dialects import paddlerec_values as values
from shoal.compat.dialects.paddlerec_values import as_bool, option, truth
from shoal.config.dialect import (
    Row,
    free,
    given_only,
    only,
    per_process,
    read_as,
    refused,
    same,
)

NOT_READ = "training does not read it, there as here"
EVALUATED = f"{NOT_READ}; test files are evaluated after every epoch (train.eval_every)"
NO_START = (
    "files of Paddle's parameters are not read; a run of Shoal goes on with "
    "`shoal train --resume RUN`"
)
NO_EXPORT = "no inference model of Paddle's is written; `shoal eval RUN` uses the run's checkpoints"
NO_PROCESSES = "files are parsed by threads (thread_num), not by processes"
NO_DEVICE = "devices are CPUs and CUDA GPUs (run.device)"
NO_REMOTE = "files are read from folders; mount the remote file system, or copy them"
NO_DUMP = "layers are not dumped during training"
THREADS = ("data.clicks.threads", "run.threads")
THREADS_RULE = (
    "threads of a worker that parse and, above 1, compute; 1: it computes with its share of the "
    "host's cores"
)
STARTS = ("model_init", "init_model", "warmup_model")
INFERENCE, HETER = "read with use_inference only", "read with sync_mode heter, which is refused"
BY_THE_HOUR = """
    days pass_per_day start_day end_day split_interval split_per_pass data_donefile
    checkpoint_per_pass save_delta_frequency
"""
ONLINE = (
    "a run trains on fixed files for runner.epochs; name them with runner.train_data_dir, and "
    "train run after run"
)


def aware(key: str, targets: tuple[str, ...], rule: str) -> Row:
    """A key whose meaning depends on others: the function of its name reads it."""
    return Row(key, targets, rule, getattr(values, key), with_context=True)


RUNNER = [
    # who trains, and where
    aware(
        "sync_mode",
        ("strategy.ps.mode", "strategy.name", "run.gpu_ids", "launch.nproc"),
        "sync, async, geo: the mode of the servers that `shoal launch` starts; without servers "
        "it has no effect. gpubox: strategy.name sharded, on the GPUs of FLAGS_selected_gpus "
        "where that is set. heter is refused",
    ),
    same("geo_step", "strategy.ps.geo_step", "batches between exchanges, in geo"),
    aware(
        "use_fleet",
        ("launch.nproc",),
        "true with use_gpu: a process for each visible GPU where no number is given; launched "
        "processes always train together (strategy auto, so ddp)",
    ),
    read_as("use_gpu", "run.device", values.use_gpu, "true or 1: cuda, false or 0: cpu"),
    *[only(key, [False, 0, None], NO_DEVICE) for key in ("use_xpu", "use_npu")],
    same("seed", "run.seed", "12345 where it is not given, as there"),
    # data
    given_only("train_data_dir", "data.clicks.train", "a folder, relative to the config's"),
    given_only(
        "test_data_dir",
        "data.clicks.test",
        "a folder, relative to the config's; evaluated after every epoch",
    ),
    aware(
        "reader_type",
        ("data.clicks.reader",),
        "QueueDataset: stream; InmemoryDataset: memory; "
        "DataLoader, RecDataset: memory, or custom with a train_reader_path of your own",
    ),
    free("infer_reader_type", "test files are read as training files"),
    aware(
        "train_reader_path",
        ("data.clicks.custom", "data.clicks.reader"),
        "criteo_reader, benchmark_reader and "
        "queuedataset_reader: not needed, Shoal reads slots itself; another: "
        "FOLDER/PATH.py:RecDataset, with DataLoader and RecDataset",
    ),
    aware("infer_reader_path", (), "as train_reader_path, or one of those three"),
    aware(
        "pipe_command",
        ("data.clicks.pipe_command",),
        "of QueueDataset and InmemoryDataset: a "
        "program that writes lines of slots; one of those three scripts that imports paddle "
        "or is not there is not run, another such is refused",
    ),
    read_as("dataset_debug", "data.clicks.profile", as_bool, "the reader's speed in the log"),
    read_as(
        "split_file_list",
        "data.clicks.split_files",
        as_bool,
        "each worker reads its block of the sorted files; false: its share of every batch",
    ),
    Row("thread_num", THREADS, THREADS_RULE, values.thread_num),
    Row("train_thread_num", THREADS, THREADS_RULE, values.thread_num),
    free("infer_thread_num", "thread_num holds for all files"),
    free("num_workers", NO_PROCESSES),
    free("loader.num_workers", NO_PROCESSES),
    only("batch_generator", [False, None], "batches have train_batch_size samples"),
    only("user_define_reader", [False, None], "name it with train_reader_path"),
    only("parse_ins_id", [False, None], "samples have no ids of their own"),
    only("parse_content", [False, None], "samples have no content besides slots"),
    *[only(key, ["", None], NO_REMOTE) for key in ("fs_name", "fs_ugi")],
    refused("fs_client", NO_REMOTE),
    # training
    same("epochs", "train.epochs"),
    per_process(
        "train_batch_size",
        "train.batch_size",
        "per worker: multiplied by the number of workers, once, and the log says so; not with "
        "servers in async, where every worker takes batches of its own",
    ),
    read_as(
        "print_interval",
        "train.print_every",
        lambda value: 0 if value is None else value,
        "steps; null: none",
    ),
    Row("use_auc", (), "true or false: AUC is always computed, over all workers", values.no_effect),
    only("auc_num", [1, None], "a model has one AUC"),
    read_as(
        "use_visual",
        "run.trackers",
        lambda value: ["tensorboard"] if truth(value) else [],
        "true: curves, for TensorBoard",
    ),
    only("pure_bf16", [False, None], "training is in float32"),
    only("model_path", [None, "static_model.py", "dygraph_model.py"], "the model is Shoal's"),
    only("user_define_net", [False, None], "the model is chosen with --model"),
    # saved models
    given_only("model_save_path", "run.root", "each run makes its own folder there"),
    same("save_checkpoint_interval", "checkpoint.every_epochs"),
    *[only(f"{key}_path", [None, ""], NO_START) for key in STARTS],
    # their separate command for evaluation
    same("infer_batch_size", "eval.batch_size", "results do not change"),
    free("infer_load_path", f"{NOT_READ}; `shoal eval RUN` evaluates a run again"),
    *[free(f"infer_{key}_epoch", EVALUATED) for key in ("start", "end")],
    free("use_inference", NO_EXPORT, note=True),
    only("inference", [False, None], NO_EXPORT),
    *[free(f"save_inference_{key}_varnames", INFERENCE) for key in ("feed", "fetch")],
    *[only(key, [False, None], NO_DUMP) for key in ("use_save_data", "use_out_vec", "need_dump")],
    *[free(key, "read with use_out_vec only") for key in ("out_vec_path", "emb_weight_name")],
    *[only(key, [[], None], NO_DUMP) for key in ("dump_fields", "dump_param")],
    free("dump_fields_path", "read with need_dump only"),
    *[only(f"{key}_sparse", [[], None], HETER) for key in ("local", "remote")],
    # training by the hour, on new files
    *[refused(key, ONLINE) for key in BY_THE_HOUR.split()],
]


RANK = "the cross layers have no mixture of experts; model.low_rank makes them of low rank"
OPTIONS = [
    option("sparse_feature_dim", "dim", "width of a row"),
    option("fc_sizes", "layers", "hidden layers; the output layer is not among them"),
    option("layer_sizes_dnn", "layers", "hidden layers; the output layer is not among them"),
    option("cross_num", "cross_layers", "cross layers of DCNV2"),
    option("is_Stacked", "structure", "true: stacked, false: parallel", values.structure),
    option(
        "bot_layer_sizes",
        "bottom_layers",
        "the last is sparse_feature_dim and left out",
        values.bottom_sizes,
    ),
    option(
        "top_layer_sizes",
        "top_layers",
        "the last is 2 and left out: one logit here",
        values.top_sizes,
    ),
]
HYPER = [
    read_as(
        "optimizer.class",
        "train.optimizer.name",
        values.as_lower,
        "in any case; most models there train with Adam whatever it says",
    ),
    same("optimizer.learning_rate", "train.optimizer.lr"),
    same("optimizer.weight_decay", "train.optimizer.weight_decay"),
    free("optimizer.strategy", "not read there; the mode is runner.sync_mode"),
    only("optimizer.adam_lazy_mode", [True, None], "rows that a batch does not touch rest"),
    same("optimizer.clip_by_norm", "train.clip_grad_norm", "of all gradients together"),
    same("clip_by_norm", "train.clip_grad_norm", "of all gradients together"),
    read_as(
        "sparse_inputs_slots",
        "data.clicks.slots",
        values.slots,
        "less one, the label: 27 is 26",
    ),
    same("sparse_feature_number", "data.clicks.rows", "larger ids are folded; there an error"),
    free("sparse_fea_num", "not used there; the number of rows is sparse_feature_number"),
    same("dense_input_dim", "data.clicks.dense"),
    *OPTIONS,
    aware("num_field", (), "only the number of slots (LR: and of dense values)"),
    free("distributed_embedding", "where rows are kept is said by the strategy"),
    free("is_sparse", "gradients of rows are always sparse"),
    only("use_low_rank_mixture", [False, None], RANK),
    free("low_rank", "read with use_low_rank_mixture only"),
    free("num_experts", "read with use_low_rank_mixture only"),
    free("l2_reg_cross", "not used there"),
    only("dnn_use_bn", [False, None], "layers have no batch norm"),
    only("reg", [0, 0.0, None], "there is no L1 penalty; optimizer.weight_decay is L2"),
]


TABLE = [
    *[replace(row, key=f"runner.{row.key}") for row in RUNNER],
    *[replace(row, key=f"hyper_parameters.{row.key}") for row in HYPER],
    Row("workspace", (), "put in the place of `{workspace}` in other values", values.nothing),
    free("loader.num_workers", NO_PROCESSES),
    free("config_abs_dir", "relative paths begin at the config's own folder, there as here"),
    refused(
        "table_parameters",
        "rows are made by the model's options and train.optimizer; admission, decay and "
        "eviction are said by rows.admission, rows.counter_decay and rows.shrink",
    ),
]
KEYS = [row.key for row in TABLE]

"""Configs of PaddleRec: each key honoured, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paddlerec_configs import DCN_V2, DLRM, DNN, PAGE, WIDE_DEEP, Write, errors_of, value_of, write

from shoal import config as room
from shoal.compat.dialects.paddlerec_keys import KEYS
from shoal.runs.run import resolve

__all__ = ["write"]  # used by being there


def test_the_block_of_the_page(write: Write) -> None:
    config = resolve([write(PAGE)]).config
    assert config.model.name == "DNN"
    assert (config.strategy.ps.mode, config.strategy.ps.geo_step) == ("async", 400)
    assert config.strategy.name == "auto"  # servers come with the launcher
    clicks = config.data.clicks
    assert (clicks.reader, clicks.threads, clicks.split_files) == ("stream", 1, False)
    assert clicks.pipe_command is None and clicks.profile is False  # Shoal reads slots itself


def test_the_block_of_the_page_beside_a_config(write: Write, tmp_path: Path) -> None:
    files = [write(DNN), write(PAGE, "other", "more.yaml")]
    resolved = resolve(files, ["--runner.sync_mode=geo"])
    assert resolved.config.model.name == "DNN"  # the only folder that names a model
    assert resolved.config.data.path == str(tmp_path / "dnn")  # where the data folders are said
    assert resolved.config.data.clicks.split_files is False
    assert resolved.config.strategy.ps.mode == "geo"
    assert resolved.config.train.epochs == 4


def test_a_config_of_dnn(write: Write, tmp_path: Path) -> None:
    config = resolve([write(DNN)]).config
    options = config.model.options
    assert (config.model.name, options["dim"], options["layers"]) == ("DNN", 11, [400, 300])
    assert config.data.format == "slots" and config.data.path == str(tmp_path / "dnn")
    clicks = config.data.clicks
    assert (clicks.train, clicks.test) == ("data/sample_data/train", "../test")
    assert (clicks.slots, clicks.dense, clicks.rows) == (26, 13, 1000001)
    assert (clicks.reader, clicks.custom, clicks.pipe_command) == ("memory", None, None)
    assert (clicks.split_files, clicks.threads, config.run.threads) == (True, 5, 5)
    assert resolve([write(DNN)], ["--run.threads=3"]).config.run.threads == 3
    assert resolve([write(DNN)], ["--runner.thread_num=1"]).config.run.threads == 0
    assert (config.train.epochs, config.train.batch_size, config.train.print_every) == (4, 512, 10)
    assert (config.train.optimizer.name, config.train.optimizer.lr) == ("adagrad", 0.01)
    assert config.eval.batch_size == 256
    assert (config.run.device, config.run.root) == ("cpu", "out")
    # What holds there where nothing is said.
    assert config.run.seed == 12345 and config.train.patience >= config.train.epochs


def test_a_config_of_wide_deep(write: Write) -> None:
    config = resolve([write(WIDE_DEEP, "wide_deep")]).config
    assert config.model.name == "WideDeep"
    assert config.model.options["layers"] == [512, 256, 128, 32]
    assert (config.train.batch_size, config.train.print_every) == (50, 2)


def test_a_newer_config_of_wide_deep(write: Write) -> None:
    text = WIDE_DEEP.replace("runner:\n", "runner:\n  use_inference: True\n", 1)
    for more in ("loader:\n  num_workers: 0\n", ""):
        resolved = resolve([write(text + more, "wide_deep")], ["--runner.loader.num_workers=0"])
        assert any("use_inference has no effect" in note for note in resolved.notes)


def test_a_config_of_dlrm(write: Write) -> None:
    path = write(DLRM, "dlrm")
    config = resolve([path]).config
    options = config.model.options
    assert config.model.name == "DLRM" and config.train.optimizer.name == "sgd"
    assert (options["bottom_layers"], options["dim"]) == ([512, 256, 64], 16)
    assert options["top_layers"] == [512, 256]
    assert "as wide as sparse_feature_dim, 8" in errors_of(
        path, "--hyper_parameters.sparse_feature_dim=8"
    )
    assert "the last layer must be 2" in errors_of(path, "--hyper_parameters.top_layer_sizes=[9]")
    assert "there are 26 fields" in errors_of(path, "--hyper_parameters.num_field=39")


def test_a_config_of_dcn_v2(write: Write) -> None:
    path = write(DCN_V2, "dcn_v2")
    config = resolve([path]).config
    options = config.model.options
    assert (options["structure"], options["cross_layers"]) == ("stacked", 3)
    assert (options["layers"], options["low_rank"]) == ([768, 700], None)
    assert config.train.clip_grad_norm == 10.0
    assert "no mixture of experts" in errors_of(path, "--hyper_parameters.use_low_rank_mixture=1")


@pytest.mark.parametrize(
    ("word", "key", "want"),
    [
        ("runner.sync_mode=sync", "strategy.ps.mode", "sync"),
        ("runner.sync_mode=geo", "strategy.ps.mode", "geo"),
        ("runner.sync_mode=gpubox", "strategy.name", "sharded"),
        ("runner.use_gpu=True", "run.device", "cuda"),
        ("runner.use_gpu=1", "run.device", "cuda"),
        ("runner.use_gpu=0", "run.device", "cpu"),
        ("runner.use_fleet=True", "strategy.name", "auto"),
        ("runner.reader_type=InmemoryDataset", "data.clicks.reader", "memory"),
        ("runner.reader_type=DataLoader", "data.clicks.reader", "memory"),
        ("runner.reader_type=RecDataset", "data.clicks.reader", "memory"),
        ("runner.reader_type=QueueDataset", "data.clicks.reader", "stream"),
        ("runner.dataset_debug=True", "data.clicks.profile", True),
        ("runner.pipe_command=awk -f x.awk", "data.clicks.pipe_command", "awk -f x.awk"),
        ("runner.train_data_dir=2020", "data.clicks.train", "2020"),
        ("runner.print_interval=null", "train.print_every", 0),
        ("runner.use_visual=False", "run.trackers", []),
        ("runner.seed=3", "run.seed", 3),
        ("runner.save_checkpoint_interval=2", "checkpoint.every_epochs", 2),
        ("runner.model_init_path=null", "run.output", None),
        ("hyper_parameters.optimizer.class=SGD", "train.optimizer.name", "sgd"),
        ("hyper_parameters.optimizer.weight_decay=0.1", "train.optimizer.weight_decay", 0.1),
        ("hyper_parameters.optimizer.clip_by_norm=5", "train.clip_grad_norm", 5.0),
        ("hyper_parameters.sparse_inputs_slots=301", "data.clicks.slots", 300),
        ("hyper_parameters.dropout=0.5", "model.options.dropout", 0.5),
        ("train.epochs=7", "train.epochs", 7),
    ],
)
def test_single_keys(write: Write, word: str, key: str, want: Any) -> None:
    assert value_of(resolve([write(DNN)], [f"--{word}"]), key) == want


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("runner.sync_mode=heter", "heter is refused"),
        ("runner.sync_mode=fast", "given fast; allowed: sync, async, geo, gpubox"),
        ("runner.sync_mode=asinc", "allowed: sync, async, geo, gpubox; did you mean async?"),
        ("runner.reader_type=QueueDatset", "RecDataset; did you mean QueueDataset?"),
        ("runner.reader_type=Queue", "given Queue; allowed: QueueDataset"),
        ("runner.use_gpu=maybe", "given maybe; allowed: true or false"),
        ("runner.use_fleet=maybe", "given maybe; allowed: true or false"),
        ("runner.use_xpu=True", "true is refused: devices are CPUs and CUDA GPUs"),
        ("runner.model_init_path=out/2", "files of Paddle's parameters are not read"),
        ("runner.warmup_model_path=out/2", "files of Paddle's parameters are not read"),
        ("runner.inference=True", "true is refused: no inference model"),
        ("runner.model_path=my_model.py", "my_model.py is refused"),
        ("runner.fs_name=hdfs://x", "is refused: files are read from folders"),
        ("runner.days={20200101..20200102}", "is refused: a run trains on fixed files"),
        ("runner.train_data_dir=[a, b]", "it is one folder, file or pattern"),
        ("runner.train_reader_path=criteo_lr_reader", "ids with weights"),
        ("runner.infer_reader_path=mine", "one reader reads all files"),
        ("runner.pipe_command='awk \"'", "No closing quotation"),
        ("hyper_parameters.cross_num=2", "is refused: DNN has no option cross_layers"),
        ("hyper_parameters.reg=0.001", "0.001 is refused: there is no L1 penalty"),
        ("hyper_parameters.sparse_inputs_slots=1", "allowed: a whole number ≥ 2"),
        ("hyper_parameters.optimizer.adam_lazy_mode=False", "rows that a batch does not touch"),
        ("table_parameters={}", "is refused: rows are made by the model's options"),
    ],
)
def test_what_cannot_be_is_refused_by_name(write: Write, word: str, text: str) -> None:
    error = errors_of(write(DNN), f"--{word}")
    assert f"PaddleRec key {word.partition('=')[0]}: " in error and text in error


def test_wrong_types_name_both_keys(write: Write) -> None:
    assert errors_of(write(DNN), "--runner.epochs=many") == (
        "command line --runner.epochs=many (PaddleRec key runner.epochs): train.epochs: given many "
        "(text); allowed: a whole number ≥ 0"
    )
    error = errors_of(write(DNN), "--hyper_parameters.optimizer.class=Adagard")
    assert "did you mean adagrad?" in error


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("runner.epoch=3", "runner.epochs"),
        ("runner.sync_mod=geo", "runner.sync_mode"),
        ("runner.learning_rate=1", "hyper_parameters.optimizer.learning_rate"),
        ("hyper_parameters.optimizer.learning_rat=1", "hyper_parameters.optimizer.learning_rate"),
        ("hyper_parameters.fc_size=[1]", "hyper_parameters.fc_sizes"),
        ("hyper_parameters.dropot=0.1", "hyper_parameters.dropout"),
    ],
)
def test_a_typo_is_an_error_that_names_the_nearest_key(write: Write, word: str, meant: str) -> None:
    key = word.partition("=")[0]
    error = errors_of(write(DNN), f"--{word}")
    assert error.endswith(f"unknown PaddleRec key {key}; did you mean {meant}?")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("runer.epochs=3", "runner.epochs (PaddleRec's spelling of train.epochs)"),
        ("sync_mode=geo", "runner.sync_mode (PaddleRec's spelling of strategy.ps.mode, strategy."),
        ("fc_size=[1]", "hyper_parameters.fc_sizes (PaddleRec's spelling of model.layers)"),
        ("workspac=a", "workspace?"),
        ("epoch=3", "epochs (RecBole's spelling of train.epochs)?"),
    ],
)
def test_a_key_outside_its_section_names_the_one_inside(
    write: Write, word: str, meant: str
) -> None:
    key = word.partition("=")[0]
    assert f"unknown key {key}; did you mean {meant}" in errors_of(write(DNN), f"--{word}")


def test_all_errors_come_at_once_with_their_lines(write: Write) -> None:
    path = write(
        "runner:\n  epoch: 3\n  sync_mode: heter\n  thread_num: many\nhyper_parameters: 5\n"
    )
    error = errors_of(path)
    assert "4 errors" in error
    assert f"{path}:2: unknown PaddleRec key runner.epoch" in error
    assert f"{path}:3: PaddleRec key runner.sync_mode: heter is refused" in error
    assert f"{path}:4 (PaddleRec key runner.thread_num): data.clicks.threads: given many" in error
    assert f"{path}:5: hyper_parameters: given 5 (whole number); it is a section" in error
    error = errors_of(write("runer: {epochs: 3}\n"))
    assert "unknown key runer; did you mean runner, a section of PaddleRec's?" in error


def test_config_show_names_the_paddlerec_key_that_set_a_value(write: Write) -> None:
    path = write(DNN)
    shown = room.show(resolve([path], ["--runner.epochs=3"]))
    lines = {line.partition("#")[0].strip(): line.partition("# ")[2] for line in shown.split("\n")}
    assert lines["epochs: 3"] == "command line --runner.epochs=3 (PaddleRec key runner.epochs)"
    assert lines["batch_size: 512"] == f"{path}:6 (PaddleRec key runner.train_batch_size)"
    assert (
        lines["lr: 0.01"] == f"{path}:26 (PaddleRec key hyper_parameters.optimizer.learning_rate)"
    )
    assert lines["format: slots"] == "default of PaddleRec"
    assert lines["name: DNN"] == "default of PaddleRec"


def test_the_strongest_source_of_a_key_is_the_only_one_read(write: Write) -> None:
    text = "runner: {sync_mode: gpubox, use_fleet: True, model_init_path: old}"
    path = write(text)
    words = ["--runner.sync_mode=async", "--runner.model_init_path=null"]
    config = resolve([path], words).config
    assert (config.strategy.name, config.strategy.ps.mode) == ("auto", "async")
    note = resolve([path], words[1:]).notes[1]
    assert "sync_mode gpubox" in note and "strategy sharded" in note


def test_a_setting_spelled_twice_in_one_source_is_an_error(write: Write) -> None:
    path = write("runner: {epochs: 3}\ntrain.epochs: 4\n")
    assert "train.epochs is set twice" in errors_of(path)
    path = write("runner: {epochs: 3}\nrunner.epochs: 3\n")
    assert "train.epochs is set twice" in errors_of(path)


def test_configs_without_paddlerec_keys_are_not_changed() -> None:
    resolved = resolve((), ["--model=DNN", "--epochs=3", "--train_batch_size=8", "--nproc=2"])
    assert resolved.config.train.batch_size == 8 and resolved.config.run.seed == 2020
    assert not any("PaddleRec" in note for note in resolved.notes)


def test_every_key_of_the_configs_above_is_in_the_table() -> None:
    import yaml

    for text in (PAGE, DNN, WIDE_DEEP, DLRM, DCN_V2):
        for section, keys in yaml.safe_load(text).items():
            for key, value in keys.items():
                names = [f"{key}.{name}" for name in value] if key == "optimizer" else [key]
                assert {f"{section}.{name}" for name in names} <= set(KEYS)

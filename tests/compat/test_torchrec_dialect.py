"""The flags of TorchRec's Bert4Rec example: each honoured, or refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from shoal.compat.dialects import torchrec
from shoal.config import ConfigError
from shoal.config.schema import Config
from shoal.data.loading.load import load_dataset
from shoal.embedding.placements.row_memory import Machine
from shoal.planning.plan import plan_memory
from shoal.planning.step_counter import parts_of
from shoal.runs.run import resolve

EXAMPLE = yaml.safe_load((Path(__file__).parent / "torchrec_defaults.yaml").read_text())
PAGE = (
    "--dataset_name random --random_user_count 3000 --random_item_count 500000 "
    "--random_size 8000000 --lr 0.001 --mask_prob 0.2 --train_batch_size 8 --val_batch_size 8 "
    "--max_len 16 --emb_dim 128 --num_epochs 1 --mode dmp"
)


def config_of(words: str, *more: str, values: dict[str, Any] | None = None) -> Config:
    return resolve((), ["--model=BERT4Rec", *words.split(), *more], values).config


def errors_of(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve((), ["--model=BERT4Rec", *words])
    return str(caught.value)


def test_every_flag_of_the_example_is_in_the_table() -> None:
    assert {row.key for row in torchrec.TABLE} == {*EXAMPLE, "dialect"}
    for flag, default in torchrec.DEFAULTS.items():
        if "." not in flag:
            assert default == EXAMPLE[flag], flag


def test_the_command_of_the_page() -> None:
    config = config_of(PAGE)
    assert config.data.name == "random"
    random = config.data.random
    assert (random.users, random.items, random.interactions) == (3000, 500_000, 8_000_000)
    assert config.train.optimizer.lr == 0.001
    assert config.model.options["mask_ratio"] == 0.2
    assert config.model.options["hidden_size"] == 128
    assert (config.train.batch_size, config.eval.batch_size) == (8, 8)
    assert (config.data.max_len, config.train.epochs, config.strategy.name) == (16, 1, "sharded")


def test_flags_left_out_take_the_examples_defaults() -> None:
    config = config_of("--mode ddp")
    options = config.model.options
    assert (options["hidden_size"], options["n_heads"], options["n_layers"]) == (256, 2, 2)
    assert (options["mask_ratio"], options["dupe_factor"], options["inner_size"]) == (0.15, 3, None)
    assert (options["hidden_act"], options["tied"], options["random_ratio"]) == ("relu", False, 0.2)
    assert (options["hidden_dropout_prob"], options["attn_dropout_prob"]) == (0.1, 0.1)
    assert config.data.name == "ml-1m" and config.data.max_len == 100
    assert config.data.filter.user_inter_num == "[5,inf)" and config.data.filter.values == {}
    assert (config.data.split.by, config.data.split.order) == ("leave_one_out", "time")
    assert (config.train.epochs, config.train.batch_size) == (100, 128)
    assert config.train.optimizer.schedule == "step" and config.train.optimizer.gamma == 1.0
    assert config.eval.mode == "pop100" and config.eval.topk == [1, 5, 10]
    assert config_of("--dataset_name random").eval.mode == "uni10"
    assert config_of("--dataset_name random --eval.mode full").eval.mode == "full"


@pytest.mark.parametrize(
    ("words", "key", "want"),
    [
        ("--min_rating 4", "data.filter.values", {"rating": "[4,inf)"}),
        ("--min_user_count 7", "data.filter.user_inter_num", "[7,inf)"),
        ("--min_item_count 3", "data.filter.item_inter_num", "[3,inf)"),
        ("--decay_step 10", "train.optimizer.decay_epochs", 10),
        ("--gamma 0.5", "train.optimizer.gamma", 0.5),
        ("--weight_decay 0.01 --num_layers 3", "train.optimizer.weight_decay", 0.01),
        ("--dataset_path folder", "data.path", "folder"),
        ("--export_root out", "run.root", "out"),
        ("--dupe_factor 5 --lr 0.1", "model.options", {"dupe_factor": 5}),
        ("--mode ddp", "strategy.name", "ddp"),
        ("--mode dmp", "strategy.replicate_below", 0),
        ("--mode dmp --strategy.replicate_below=1MiB", "strategy.replicate_below", 1 << 20),
        ("--test_batch_size 64", "eval.batch_size", 4096),
    ],
)
def test_single_flags(words: str, key: str, want: Any) -> None:
    value: Any = config_of(words)
    for name in key.split("."):
        value = getattr(value, name)
    assert want.items() <= value.items() if isinstance(want, dict) and want else value == want


def test_a_batch_per_process_is_multiplied_once_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["--model=BERT4Rec", "--mode=ddp", "--train_batch_size", "8"]
    resolved = resolve((), [*words, "--nproc=4"])
    assert resolved.config.train.batch_size == 32
    assert any("8 × 4 processes = train.batch_size: 32" in note for note in resolved.notes)
    for name, value in {"RANK": "1", "WORLD_SIZE": "3"}.items():  # started by torchrun
        monkeypatch.setenv(name, value)
    assert resolve((), words).config.train.batch_size == 24
    # A Shoal key is global as ever, and so is RecBole's where no flag of the example stands.
    assert resolve((), [*words[:2], "--train.batch_size=8"]).config.train.batch_size == 8
    assert resolve((), [words[0], "--train_batch_size=8"]).config.train.batch_size == 8


def test_a_dumped_config_is_not_multiplied_again(tmp_path: Path) -> None:
    from shoal import config as room

    resolved = resolve((), ["--model=BERT4Rec", "--mode=ddp", "--nproc=2"])
    (tmp_path / "config.yaml").write_text(room.dump(resolved.config))
    again = resolve([tmp_path / "config.yaml"])
    assert again.config == resolved.config and again.config.train.batch_size == 256


def test_a_file_is_stronger_than_the_examples_defaults(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: {name: BERT4Rec, hidden_size: 64}\ndata.max_len: 30\n")
    config = resolve([tmp_path / "a.yaml"], ["--num_epochs", "3"]).config
    assert (config.model.options["hidden_size"], config.data.max_len) == (64, 30)
    assert config.train.epochs == 3 and config.model.options["dupe_factor"] == 3


def test_the_dialect_may_be_named() -> None:
    config = resolve((), ["--dialect=torchrec", "--train_batch_size=16", "--nproc=2"]).config
    assert config.model.name == "BERT4Rec" and config.train.batch_size == 32


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve((), ["--dialect", "torchrek", "--dataset_name", "random"])
    assert str(caught.value) == (
        "command line --dialect=torchrek: TorchRec key dialect: given torchrek; allowed: torchrec; "
        "did you mean torchrec?"
    )
    assert "given recbole; allowed: torchrec; keys of Shoal and of" in errors_of(
        "--dialect=recbole"
    )
    with pytest.raises(ConfigError, match="given torchrek; allowed: torchrec"):
        resolve((), ["--model=BPR", "--dialect=torchrek"])
    with pytest.raises(ConfigError, match="torchrec is the dialect of BERT4Rec alone"):
        resolve((), ["--model=BPR", "--dialect=torchrec"])
    with pytest.raises(ConfigError, match="unknown key dialec; did you mean dialect"):
        resolve((), ["--dialec=torchrec"])


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("--dataset_name random --mode ddp --emb_dmi 3", "emb_dim (TorchRec's spelling of model."),
        ("--emb_dmi 3", "emb_dim (TorchRec's spelling of model.hidden_size)?"),
        ("--dataset_nam random --mode ddp", "dataset_name (TorchRec's spelling of data.name)?"),
        ("--mode ddp --num_epoch 3", "num_epochs (TorchRec's spelling of train.epochs)?"),
        ("--mode ddp --test_batchsize 3", "test_batch_size?"),
        ("--mode ddp --learning_rat 3", "learning_rate (RecBole's spelling of"),
        ("--mode ddp --n_head 3", "model.n_heads?"),
    ],
)
def test_a_typo_is_an_error_that_names_the_nearest_flag(words: str, meant: str) -> None:
    assert f"; did you mean {meant}" in errors_of(*words.split())


def test_flags_of_the_example_are_not_offered_to_other_models() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve((), ["--model=BPR", "--dataset_nam=random"])
    assert "did you mean dataset (RecBole's spelling of data.name)?" in str(caught.value)


def test_without_such_flags_nothing_changes() -> None:
    config = resolve((), ["--model=BERT4Rec", "--hidden_size=32", "--epochs=7"]).config
    assert config.data.name is None and config.data.max_len == 50
    assert config.eval.mode == "full" and config.strategy.name == "auto"
    with pytest.raises(ConfigError, match="unknown key emb_dim"):
        resolve((), ["--model=BPR", "--emb_dim=32"])


def test_what_cannot_be_is_refused_by_name() -> None:
    assert "TorchRec key mode: given both; allowed: dmp" in errors_of("--mode=both")
    assert "(sharded tables) or ddp; did you mean ddp?" in errors_of("--mode=dddp")
    assert "TorchRec key min_rating: given high" in errors_of("--min_rating=high")
    text = errors_of("--nhead=two", "--random_size=0", "--mode=ddp")
    assert "(TorchRec key nhead): model.n_heads: given two (text)" in text
    assert "data.random.interactions: given 0" in text


@pytest.mark.parametrize("words", ["--dialect=torchrec --mode=dmp", "--model_parallel=true"])
def test_sharding_flags_shard_small_tables_too(words: str) -> None:
    """The page's own command: 30 items, of which no process holds all."""
    random = ["--data.name=random", "--data.format=auto", "--data.random.items=30"]
    split = ["--data.split.order=time", "--data.filter.user_inter_num=[0,inf)"]
    config = resolve((), [*words.split(), *random, *split, "--nproc=2"]).config
    plan = plan_memory(config, parts_of(config), Machine(host=10**9, gpu=None))
    for table in ("item", "output", "output_bias"):
        assert re.search(rf"^{table} +16 ", plan, re.MULTILINE), plan


def test_random_data_is_uniform_and_the_same_for_all() -> None:
    words = (
        "--dataset_name random --random_user_count 40 --random_item_count 25 --random_size 20000"
    )
    data = config_of(words).data
    dataset = load_dataset(data, seed=1)
    again = load_dataset(data, seed=2)
    for field in (dataset.user_field, dataset.item_field, dataset.time_field):
        assert np.array_equal(dataset.inter[field], again.inter[field])
    for field, count in ((dataset.user_field, 40), (dataset.item_field, 25)):
        counts = np.bincount(dataset.inter[field])[1:]
        assert len(counts) == count and counts.sum() == 20_000
        expected = 20_000 / count
        assert ((counts - expected) ** 2 / expected).sum() < count + 5 * (2 * count) ** 0.5
    assert (np.diff(dataset.inter[dataset.time_field]) == 1).all()
    data = config_of(f"{words} --data.random.seed=8").data
    assert not np.array_equal(dataset.inter["user_id"], load_dataset(data, 1).inter["user_id"])

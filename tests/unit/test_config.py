"""Loading: precedence, origins, every kind of error, and YAML that reads back as it was."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field

from shoal.config import (
    Config,
    ConfigError,
    Interval,
    Resolved,
    dump,
    json_schema,
    load,
    parse_intervals,
    show,
)
from shoal.config.yaml_io import inline
from shoal.config.yaml_io import read as read_yaml


@dataclass
class BPROptions:
    embedding_size: int = 64


@dataclass
class DeepOptions:
    DEFAULTS: ClassVar[dict[str, Any]] = {
        "data.split.by": "leave_one_out",
        "data.split.order": "time",
        "train.negatives": None,
    }
    layers: Annotated[int, Field(ge=1)] = 2
    dropout: float = 0.5
    loss: Literal["CE", "BPR"] = "CE"
    sizes: list[int] = field(default_factory=lambda: [128, 64])
    steps: tuple[int, ...] = (1, 2)
    tied: bool = True
    note: str | None = None

    def __post_init__(self) -> None:
        if self.layers == 13:
            raise ValueError("layers: 13 brings bad luck")


@dataclass
class NeedyOptions:
    path: str


MODELS: dict[str, type] = {"BPR": BPROptions, "Deep": DeepOptions, "Needy": NeedyOptions}


def models(name: str) -> tuple[str, type]:
    for known, options in MODELS.items():
        if known.lower() == name.lower():
            return known, options
    raise ValueError(f"there is no model {name}; models are: {', '.join(MODELS)}")


def resolve(*overrides: str, **values: Any) -> Resolved:
    return load([], overrides, values, models=models)


def errors(*overrides: str, **values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load([], overrides, values, models=models)
    return caught.value.errors


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str | bytes, name: str = "recipe.yaml") -> str:
        Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    return write


def file_errors(*files: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(files, models=models)
    return caught.value.errors


# Precedence and origins --------------------------------------------------------------------------


def test_defaults() -> None:
    resolved = resolve()
    config = Config()
    config.model.options = {"embedding_size": 64}
    assert resolved.config == config
    assert set(resolved.origins.values()) == {"default"} and resolved.notes == []


def test_precedence_and_origins(write) -> None:
    first = write("train:\n  epochs: 1\n  patience: 1\n  batch_size: 1\nrun.seed: 1\n", "a.yaml")
    second = write("# over the first\ntrain_batch_size: 2\ntrain.patience: 2\n", "b.yaml")
    resolved = load(
        [first, second],
        ["--train.batch_size=3"],
        {"train": {"patience": 4}, "epochs": 5},
        models=models,
    )
    train, origins = resolved.config.train, resolved.origins
    assert (train.epochs, train.patience, train.batch_size) == (5, 4, 3)
    assert resolved.config.run.seed == 1
    assert origins["train.epochs"] == "python (RecBole key epochs)"
    assert origins["train.patience"] == "python"
    assert origins["train.batch_size"] == "command line --train.batch_size=3"
    assert origins["run.seed"] == "a.yaml:5"
    assert origins["train.shuffle"] == "default"
    assert load([first, second], models=models).origins["train.batch_size"] == (
        "b.yaml:2 (RecBole key train_batch_size)"
    )


def test_defaults_of_the_model(write) -> None:
    resolved = load([write("model: deep\ndata.split.order: random\n")], models=models)
    config, origins = resolved.config, resolved.origins
    assert config.model.name == "Deep" and config.train.negatives is None
    assert (config.data.split.by, config.data.split.order) == ("leave_one_out", "random")
    assert origins["data.split.by"] == "default of Deep"
    assert origins["train.negatives"] == "default of Deep"
    assert origins["data.split.order"] == "recipe.yaml:2"
    assert "train.negatives.num" not in origins


def test_null_section_comes_back_to_life() -> None:
    resolved = resolve("--train.negatives.num=3", model="Deep")
    assert resolved.config.train.negatives is not None
    assert resolved.config.train.negatives.num == 3
    assert resolved.origins["train.negatives.alpha"] == "default"
    assert "train.negatives" not in resolved.origins
    assert resolve("--train.negatives={}", model="Deep").config.train.negatives is not None
    assert resolve("--train.negatives=null").config.train.negatives is None


def test_model_options() -> None:
    config = resolve(
        "--model.layers=3", "--loss=BPR", "--steps=[4]", model={"name": "Deep", "dropout": 0}
    ).config
    assert config.model.options == {
        "layers": 3,
        "dropout": 0.0,
        "loss": "BPR",
        "sizes": [128, 64],
        "steps": (4,),
        "tied": True,
        "note": None,
    }
    assert resolve(model="bpr").config.model.name == "BPR"


def test_names_stand_for_their_sections() -> None:
    config = resolve("--strategy=ddp", "--train.optimizer=sgd", "--dataset=ml-100k").config
    assert config.strategy.name == "ddp" and config.train.optimizer.name == "sgd"
    assert config.data.name == "ml-100k"


def test_empty_files_and_sections(write) -> None:
    files = [write("", "a.yaml"), write("# nothing\n", "b.yaml"), write("train:\nmodel: {}\n")]
    assert load(files, models=models).config == resolve().config


def test_values_from_python_are_made_plain() -> None:
    config = resolve(
        **{
            "eval.topk": (np.int64(5), 10),
            "train": {"optimizer": {"lr": np.float32(0.5)}},
            "run.output": Path("a") / "b",
        }
    ).config
    assert config.eval.topk == [5, 10] and config.train.optimizer.lr == 0.5
    assert config.run.output == "a/b"


def test_note_on_global_batches() -> None:
    notes = resolve("--launch.nproc=4", "--train.batch_size=100").notes
    assert notes == ["batch sizes are global: each batch of 100 samples is split over 4 processes"]


# Overrides ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["--train.epochs=5"],
        ["train.epochs=5"],
        ["--train.epochs", "5"],
        ["--epochs=5"],
        ["--epochs", "5"],
        ["--epochs=5", "--epochs=5"],
    ],
)
def test_spellings_of_an_override(words: list[str]) -> None:
    assert resolve(*words).config.train.epochs == 5


def test_values_of_overrides() -> None:
    config = resolve(
        "--eval.topk=[5, 10]",
        "--data.load={inter: [a, b]}",
        "--train.optimizer.lr=1e-3",
        "--data.max-len=7",
        "--data.name=2020",
        "--run.output=a #b",
        "--data.seq_separator=|",
        "--data.separator=,",
        "--launch.world_size",
        "-1",
    ).config
    assert config.eval.topk == [5, 10] and config.data.load == {"inter": ["a", "b"]}
    assert config.train.optimizer.lr == 0.001 and config.data.max_len == 7
    assert config.data.name == "2020" and config.run.output == "a #b"
    assert (config.data.seq_separator, config.data.separator) == ("|", ",")
    assert config.launch.world_size == -1
    assert resolve("--run.output=null").config.run.output is None
    assert resolve("--run.output='null'").config.run.output == "null"
    assert resolve("--run.output=[x]").config.run.output == "[x]"


def test_bare_flags() -> None:
    config = resolve(
        "--repeatable", "--tied", "--data.cache", "train.epochs=2", model="Deep"
    ).config
    assert config.eval.repeatable and config.model.options["tied"] and config.data.cache
    assert config.train.epochs == 2
    assert errors("--train.epochs") == [
        "command line --train.epochs: train.epochs has no value; write --train.epochs=VALUE"
    ]
    assert errors("--epochs", "--data.cache") == [
        "command line --epochs: has no value; write --epochs=VALUE"
    ]
    assert "no value" in errors("--train")[0]


@pytest.mark.parametrize("word", ["train.epochs", "-e=5", "--=5", "---x=5", ""])
def test_words_that_are_no_overrides(word: str) -> None:
    assert errors(word) == [f"command line {word}: not an override; write --section.key=value"]


def test_override_given_twice() -> None:
    assert "epochs is given twice" in errors("--epochs=5", "--epochs=6")[0]
    assert "train.epochs is set twice" in errors("--epochs=5", "--train.epochs=6")[0]


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"train: {epochs: 5\nx: 1\n", "recipe.yaml:2: not valid YAML"),
        (b"train:\n\tepochs: 5\n", "recipe.yaml:2: not valid YAML"),
        (b"- a\n", "recipe.yaml:1: a config is a mapping"),
        (b"hello\n", "recipe.yaml:1: a config is a mapping"),
        (b"a: 1\n---\nb: 2\n", "recipe.yaml:2: not valid YAML"),
        (b"a: \xff\n", "recipe.yaml: not UTF-8 text (byte 3)"),
        (b"a: \x01\n", "recipe.yaml: not valid YAML"),
        (
            b"run:\n  seed: 1\n\n  seed: 2\n",
            "recipe.yaml:4: key seed stands twice, first in line 2",
        ),
        (b"1: a\n", "recipe.yaml:1: a key must be text, given '1'"),
        (b"yes: a\n", "recipe.yaml:1: a key must be text"),
        (b"[a]: b\n", "recipe.yaml:1: a key must be text"),
        (b"x: !!python/object/apply:os.getcwd []\n", "recipe.yaml:1: tag !!python/object/apply"),
        (b"x: !!int abc\n", "recipe.yaml:1: 'abc' is no int"),
        (b"x: &a [*a]\n", "recipe.yaml:1: an alias (*) stands inside what it names"),
        (b"a: &a {b: 1}\n<<: *a\n", "recipe.yaml:2: merge keys (<<) are not supported"),
        (b"x: " + b"[" * 600, "recipe.yaml: nested too deep"),
    ],
)
def test_unreadable_files(write, text: bytes, expected: str) -> None:
    (error,) = file_errors(write(text))
    assert error.startswith(expected)


def test_missing_files(write, tmp_path: Path) -> None:
    assert file_errors("a.yaml", "b.yaml") == [
        "a.yaml: no such config file",
        "b.yaml: no such config file",
    ]
    assert file_errors(str(tmp_path))[0].startswith(f"{tmp_path}: cannot be read: ")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("train.epoch", "did you mean train.epochs?"),
        ("train.seed", "did you mean run.seed?"),
        ("trian.epochs", "did you mean train.epochs?"),
        ("trian", "did you mean train?"),
        ("rows.admision.threshold", "did you mean rows.admission.threshold?"),
        ("rows.threshold", "did you mean rows.admission.threshold?"),
        ("epoch", "did you mean epochs (RecBole's spelling of train.epochs)?"),
        ("Train.Epochs", "did you mean train.epochs?"),
        ("model.embeding_size", "did you mean model.embedding_size?"),
        ("embeding_size", "did you mean model.embedding_size?"),
        ("model.options", "the model's options are: embedding_size"),
        ("strategy.zzz", "keys of strategy are: name"),
        (
            "zzz.yyy",
            "the sections are: model, data, train, eval, rows, checkpoint, strategy, launch, run",
        ),
        ("data.threshold.rating", "data.threshold holds one value: a mapping of texts to numbers"),
        (
            "strategy.tables.item.place",
            "strategy.tables holds one value: a mapping of texts to map",
        ),
        ("batch_size", "did you mean train.batch_size?"),
        ("server_nun", "did you mean --server_num, an option of `shoal launch`?"),
        ("workers_num", "did you mean --worker_num, an option of `shoal launch`?"),
        ("worker_num", "did you mean --worker_num, an option of `shoal launch`?"),
        ("workrs", "did you mean --workers, an option of `shoal launch`?"),
        ("server", "did you mean --servers, an option of `shoal launch`?"),
        ("rol", "did you mean --role, an option of `shoal launch`?"),
        ("indx", "did you mean --index, an option of `shoal launch`?"),
        ("resum", "did you mean --resume, an option of `shoal train` and `shoal launch`?"),
        ("nprc", "did you mean nproc (RecBole's spelling of launch.nproc)?"),
        ("launch.server", "did you mean launch.servers?"),
        ("runer.epochs", "did you mean runner.epochs?"),
        ("n_layers", "neither a key of Shoal or RecBole nor an option of BPR"),
    ],
)
def test_unknown_keys(write, key: str, expected: str) -> None:
    (error,) = file_errors(write(f"\n{key}: 5\n"))
    assert error.startswith(f"recipe.yaml:2: unknown key {key}") and expected in error


def test_place_of_a_nested_key(write) -> None:
    assert file_errors(write("train:\n  optimizer:\n    lr: 1\n    momentum: 2\n")) == [
        "recipe.yaml:4: unknown key train.optimizer.momentum; keys of train.optimizer are: "
        "name, lr, weight_decay, schedule, warmup_steps, decay_epochs, gamma"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.epochs: '5'", "'5' (text); allowed: a whole number ≥ 0; leave out the quotes"),
        ("train.epochs: 5.5", "5.5 (number); allowed: a whole number ≥ 0"),
        ("train.epochs: 1e2", "100.0 (number); allowed: a whole number ≥ 0; write 100"),
        ("train.epochs: -1", "-1 (whole number); allowed: a whole number ≥ 0"),
        ("train.epochs: true", "true (true or false); allowed: a whole number ≥ 0"),
        ("train.epochs:", "null; allowed: a whole number ≥ 0"),
        ("train.epochs: 010", "'010' (text); allowed: a whole number ≥ 0"),
        ("train.optimizer.lr: 0", "0 (whole number); allowed: a number > 0"),
        ("train.optimizer.lr: .inf", ".inf (number); allowed: a finite number"),
        ("train.optimizer.lr: .nan", ".nan (number); allowed: a number > 0"),
        ("train.shuffle: 1", "1 (whole number); allowed: true or false"),
        ("train.shuffle: 'true'", "'true' (text); allowed: true or false; leave out the quotes"),
        ("train.clip_grad_norm: x", "x (text); allowed: a number > 0 or null"),
        ("launch.port: 70000", "70000 (whole number); allowed: a whole number ≥ 0 and ≤ 65535"),
        ("data.name: 5", "5 (whole number); allowed: text; put it in quotes if text is meant"),
        ("data.name: no", "false (true or false); allowed: text; put it in quotes"),
        ("data.split.ratio: [1]", "[1] (list); allowed: a 3-element list of numbers"),
        ("data.load: [a]", "[a] (list); allowed: a mapping of texts to lists of texts or null"),
        ("data.normalize: some", "some (text); allowed: a list of texts or one of all"),
        ("eval.mode: 3", "3 (whole number); allowed: text or a mapping of valid or test to texts"),
        ("data.filter.duplicates: frst", "one of first, last or null; did you mean first?"),
        ("train.precision: bf16", "allowed: one of float32, bfloat16; did you mean bfloat16?"),
        ("strategy.tables: row", "a mapping of texts to mappings of place, by, rank"),
        (
            "train.optimizer.name: adm",
            "adm (text); allowed: one of adam, adamw, sgd, adagrad, rmsprop, sparse_adam; did you "
            "mean adam?",
        ),
    ],
)
def test_wrong_values(write, text: str, expected: str) -> None:
    key = text.partition(":")[0]
    (error,) = file_errors(write(f"{text}\n"))
    assert error.startswith(f"recipe.yaml:1: {key}: given ") and expected in error


def test_options_that_are_offered_exist() -> None:
    import inspect

    from shoal.cli import launch_command, train
    from shoal.config.spelling import COMMANDS

    assert set(COMMANDS) <= set(inspect.signature(launch_command).parameters)
    assert "resume" in COMMANDS and "resume" in inspect.signature(train).parameters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "strategy.tables: {user: {place: row}, item: {place: colum}}",
            "strategy.tables.item.place: given colum (text); allowed: one of auto, row, table, "
            "column, replicate; did you mean column?",
        ),
        (
            "strategy.tables: {item: {plce: row}}",
            "unknown key strategy.tables.item.plce; allowed: place, by, rank; did you mean place?",
        ),
        (
            "strategy.tables: {item: {by: hsh}}",
            "strategy.tables.item.by: given hsh (text); allowed: one of hash, range; did you mean "
            "hash?",
        ),
        (
            "strategy.tables: {item: row}",
            "strategy.tables.item: given row (text); allowed: a mapping of place, by, rank",
        ),
        (
            "rows.tables: {item: {order: lrv}}",
            "rows.tables.item.order: given lrv (text); allowed: one of lfu, lru; did you mean lru?",
        ),
        (
            "eval.mode: {vlid: full, test: full}",
            "unknown key eval.mode.vlid; allowed: valid, test; did you mean valid?",
        ),
        (
            "data.filter.values: {rating: 3}",
            "data.filter.values.rating: given 3 (whole number); allowed: text; put it in quotes if "
            "text is meant",
        ),
    ],
)
def test_a_wrong_entry_of_a_mapping_is_named(write, text: str, expected: str) -> None:
    assert file_errors(write(f"{text}\n")) == [f"recipe.yaml:1: {expected}"]


def test_wrong_sections_and_objects(write) -> None:
    assert file_errors(write("train: 5\n")) == [
        "recipe.yaml:1: train: given 5 (whole number); it is a section of epochs, batch_size, "
        "shuffle, negatives, optimizer, clip_grad_norm, eval_every, patience, print_every, "
        "precision, accumulate, compile"
    ]
    assert (
        "given an object of Python type object; allowed: text"
        in errors(**{"data.name": object()})[0]
    )
    assert "it is a section of name, its options" in errors(model=5)[0]
    long = errors(**{"train.epochs": "x" * 500})[0]
    assert len(long) < 200 and "..." in long


def test_errors_of_models() -> None:
    assert errors("--model=BRP", "--any_option=1", "--train.epoch=1") == [
        "command line --model=BRP: there is no model BRP; models are: BPR, Deep, Needy",
        "command line --train.epoch=1: unknown key train.epoch; did you mean train.epochs?",
    ]
    for word in ("--model=5", "--model.name=5"):
        assert errors(word)[0].startswith(f"command line {word}: there is no model 5")
    assert "model.name: given 5 (whole number)" in errors(model={"name": 5})[0]
    assert errors(model={"name": "Deep", "layers": 0, "loss": "ce"}) == [
        "python: model.layers: given 0 (whole number); allowed: a whole number ≥ 1",
        "python: model.loss: given ce (text); allowed: one of CE, BPR; did you mean CE?",
    ]
    assert errors(model="Deep", layers=13) == ["options of Deep: layers: 13 brings bad luck"]
    assert errors(model="Needy") == ["model.path must be given: Needy has no default for it"]
    assert resolve(model="Needy", path="x").config.model.options == {"path": "x"}


def test_options_of_the_model_that_was_replaced(write) -> None:
    path = write("model: {name: BPR, embedding_size: 8}\n")
    with pytest.raises(ConfigError) as caught:
        load([path], ["--model=Deep"], models=models)
    assert "recipe.yaml:1: unknown key model.embedding_size" in str(caught.value)
    assert "layers" in str(caught.value)


def test_set_twice_in_one_file(write) -> None:
    assert file_errors(write("epochs: 1\ntrain:\n  epochs: 2\n")) == [
        "recipe.yaml:3: train.epochs is set twice, first at recipe.yaml:1 (RecBole key epochs); "
        "keep one of them"
    ]
    (error,) = file_errors(write("train.negatives: null\ntrain: {negatives: {num: 2}}\n"))
    assert "train.negatives.num is set twice" in error


def test_all_errors_at_once(write) -> None:
    path = write("train: {epoch: 5, batch_size: 0}\nlog_wandb: True\neval.metrics: [recal]\n")
    found = file_errors(path)
    assert [text.split(":")[1] for text in found] == ["1", "1", "2", "3"]
    with pytest.raises(ConfigError, match=r"^4 errors in the config:\n  recipe.yaml:1: unknown"):
        load([path], models=models)


def test_docs_show_a_real_message(write) -> None:
    path = write(
        "# a\n# recipe\n# with\n# three\n# mistakes\ntrain:\n  epoch: 5\n\n  batch_size: 4k\n"
    )
    with pytest.raises(ConfigError) as caught:
        load([path], ["--learner=adm"], models=models)
    page = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
    assert f"```\n{caught.value}\n```" in page


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"data.split.ratio": [0, 0, 0]}, "data.split.ratio: given [0.0, 0.0, 0.0]"),
        ({"data.split.ratio": [2, -1, 1]}, "must not be negative"),
        ({"data.presplit": ["a", "b"]}, "data.presplit: given 2 name parts (a, b)"),
        ({"data.threshold": {"a": 1, "b": 2}}, "data.threshold: given 2 fields"),
        ({"data.filter.values": {"rating": "3"}}, "data.filter.values: rating: '3' is no interval"),
        ({"data.filter.user_inter_num": "[5,"}, "data.filter.user_inter_num: '[5,' is no interval"),
        ({"data.filter.item_inter_num": "[5,1]"}, "its low end is above its high end"),
        ({"data.separator": "::"}, "data.separator: given '::'; it must be one character"),
        ({"data.seq_separator": ""}, "data.seq_separator: is empty"),
        ({"train.negatives.dynamic": True}, "train.negatives.candidates: given 0; dynamic"),
        ({"eval.mode": "uni"}, "eval.mode: given uni; allowed: full, labeled, uniN or popN"),
        ({"eval.mode": "uni"}, "did you mean uni100?"),
        ({"eval.mode": "ful"}, "uniN or popN (uni100); did you mean full?"),
        ({"eval.mode": "unni10"}, "uniN or popN (uni100); did you mean uni10?"),
        ({"eval.mode": {"valid": "Labeled", "test": "full"}}, "did you mean labeled?"),
        ({"eval.mode": "uni0"}, "eval.mode: given uni0; allowed: full, labeled, uniN or popN"),
        ({"eval.mode": {"valid": "x", "test": "full"}}, "eval.mode: valid: given x"),
        ({"eval.mode": {"valid": "full"}}, "eval.mode: has no mode for test"),
        ({"eval.mode": {}}, "eval.mode: given an empty mapping"),
        ({"eval.metrics": ["MRR", "NDGC"]}, "no metric NDGC; did you mean NDCG?"),
        ({"eval.metrics": ["MRR", "Zzz"]}, "no metric Zzz; metrics are: Recall, MRR, NDCG"),
        ({"eval.metrics": []}, "eval.metrics: is empty"),
        ({"eval.topk": [10, 0]}, "eval.topk: given 0; each must be at least 1"),
        ({"eval.metrics": ["MRR", "AUC"]}, "AUC compare scores with labels"),
        ({"eval.topk": [5]}, "MRR@10 is not computed (did you mean MRR@5?)"),
        ({"eval.metrics": ["NDCG", "GAUC"]}, "eval.metrics and eval.topk give: NDCG@10, GAUC"),
        ({"eval.valid_metric": "MRR"}, "MRR is not computed (did you mean MRR@10?)"),
        ({"launch": {"nproc": 4, "world_size": 6, "group_offset": 4}}, "it must be at least 8"),
        ({"launch": {"nproc": 2, "group_offset": 1}}, "ranks 1 to 2"),
        ({"launch.world_size": 0}, "allowed: -1 (nproc) or a whole number ≥ 1"),
        ({"launch": {"nproc": 2, "world_size": 4}}, "launch.port: must be named"),
        (
            {"strategy": "single", "nproc": 2},
            "python: strategy.name: strategy single cannot run on 2 processes; use ddp or sharded",
        ),
        (
            {"strategy": "single", "launch": {"world_size": 3, "port": 5678}},
            "strategy single cannot run on 3 processes",
        ),
    ],
)
def test_checks_of_values_together(values: dict[str, Any], expected: str) -> None:
    (error,) = errors(**values)
    assert expected in error


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("place", "row"),
        ("row_by", "range"),
        ("tables", {"item": {"place": "row"}}),
        ("replicate_below", 1.0),
        ("memory", 2.0),
        ("overlap", False),
    ],
)
def test_keys_of_sharded_under_other_strategies(key: str, value: Any, write) -> None:
    assert resolve(**{"strategy.name": "sharded", f"strategy.{key}": value}).notes == []
    for name in ("auto", "single", "ddp", "ps"):
        resolved = resolve(**{"strategy.name": name, f"strategy.{key}": value})
        assert resolved.notes == [
            f"strategy.{key} has no effect under strategy {name}; it is read under "
            "strategy.name=sharded"
        ]
        # The ranks read the config as it was dumped; they must say the same, so it is said once.
        again = load([write(dump(resolved.config))], models=models)
        assert again.notes == resolved.notes


def test_keys_of_single_under_other_strategies() -> None:
    for name in ("auto", "single"):
        assert resolve(**{"strategy.name": name, "strategy.graph": True}).notes == []
    (note,) = resolve(**{"strategy.name": "ddp", "strategy.graph": True}).notes
    assert note.endswith("no effect under strategy ddp; it is read under strategy.name=single")


def test_one_process_may_be_single() -> None:
    assert resolve(strategy="single").config.strategy.name == "single"
    assert resolve(strategy="auto", nproc=2).config.strategy.name == "auto"


def test_names_in_any_case() -> None:
    config = resolve(
        **{
            "eval.metrics": ["RECALL", "itemcoverage", "logloss", "gauc"],
            "eval.mode": "labeled",
            "eval.valid_metric": "LOGLOSS",
        }
    ).config
    assert config.eval.metrics == ["Recall", "ItemCoverage", "LogLoss", "GAUC"]
    assert config.eval.valid_metric == "LogLoss"


def test_check_of_unusable_values_is_left_out() -> None:
    (error,) = errors(**{"eval.topk": ["x"], "eval.valid_metric": "MRR@5"})
    assert "eval.topk: given" in error


# YAML out and in again ---------------------------------------------------------------------------


def test_show_has_an_origin_for_every_value(write) -> None:
    path = write("model: Deep\nepochs: 7\nrun: {output: 'a # b'}\n")
    resolved = load([path], ["--data.separator=\\t"], models=models)
    text = show(resolved)
    lines = {line.split(":")[0].strip(): line for line in text.splitlines()}
    assert lines["epochs"].split("  # ") == [
        lines["epochs"].split("  # ")[0],
        "recipe.yaml:2 (RecBole key epochs)",
    ]
    assert lines["by"].endswith("  # default of Deep") and lines["layers"].endswith("  # default")
    assert all("  # " in line for line in text.splitlines() if not line.endswith(":"))
    again = load([write(text, "shown.yaml")], models=models)
    assert again.config == resolved.config
    dumped = load([write(dump(resolved.config), "config.yaml")], models=models)
    assert dumped.config == resolved.config
    # Any YAML reader sees the same, not only ours.
    assert yaml.safe_load(dump(resolved.config))["run"]["output"] == "a # b"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
words = st.sampled_from(
    ["yes", "null", "1e-3", "010", "12:30", "2020-01-01", "~", "a: b", "[", "#"]
)
names = texts | words


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    output=st.none() | names,
    load_columns=st.none() | st.dictionaries(names, st.lists(names, max_size=3), max_size=3),
    lr=st.floats(min_value=1e-300, allow_infinity=False, allow_nan=False),
    threshold=st.none() | st.dictionaries(names, st.floats(-1e9, 1e9), min_size=1, max_size=1),
    seed=st.integers(),
    negatives=st.none() | st.integers(1, 9).map(lambda num: {"num": num}),
)
def test_whatever_loads_reads_back(
    write, output, load_columns, lr, threshold, seed, negatives
) -> None:
    values = {"run.output": output, "data.load": load_columns, "train.optimizer.lr": lr}
    values |= {"data.threshold": threshold, "run.seed": seed, "train.negatives": negatives}
    resolved = resolve(**values)
    assert (resolved.config.run.output, resolved.config.data.load) == (output, load_columns)
    for text in (show(resolved), dump(resolved.config)):
        assert load([write(text)], models=models).config == resolved.config


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        names | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(names, inner),
        max_leaves=8,
    )
)
def test_one_line_of_yaml_reads_back(value: Any) -> None:
    text = inline(value)
    assert "\n" not in text
    hidden_merge = "<<" in text  # a key of that name is refused, see above
    if not hidden_merge:
        assert read_yaml(f"key: {text}  # comment", "text")[0] == {"key": value}
        assert yaml.safe_load(f"key: {text}") == {"key": value}


@settings(deadline=None)
@given(st.lists(st.sampled_from(["--epochs", "=", "5", "train.epochs=5", "--run.seed", "[", "x"])))
def test_any_words_load_or_are_refused(words: list[str]) -> None:
    try:
        resolve(*words)
    except ConfigError as error:
        assert error.errors


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_data_or_refused(text: str) -> None:
    try:
        read_yaml(text, "text")
    except ConfigError as error:
        assert str(error).startswith("text")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-3", 0.001),
        ("1E5", 1e5),
        (".5", 0.5),
        ("-1.5e+3", -1500.0),
        ("1_000", 1000),
        ("0x1f", 31),
        ("-7", -7),
        (".inf", math.inf),
        ("True", True),
        ("off", False),
        ("~", None),
        ("12:30", "12:30"),
        ("2020-01-01", "2020-01-01"),
        ("010", "010"),
        ("=", "="),
        ("1e", "1e"),
    ],
)
def test_scalars(text: str, expected: Any) -> None:
    value = read_yaml(f"x: {text}", "text")[0]["x"]
    assert value == expected and type(value) is type(expected)


# Schema for editors ------------------------------------------------------------------------------


def test_json_schema() -> None:
    schema = json_schema(MODELS)
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == list(Config.model_fields)
    forms = schema["properties"]["model"]["anyOf"]
    assert forms[0]["enum"] == ["BPR", "Deep", "Needy"]
    bpr = next(form for form in forms if form.get("title") == "BPR")
    assert bpr["properties"]["name"] == {"const": "BPR"}
    assert bpr["properties"]["embedding_size"]["type"] == "integer"
    assert bpr["additionalProperties"] is False
    deep = next(form for form in forms if form.get("title") == "Deep")
    assert deep["properties"]["layers"]["minimum"] == 1
    assert deep["properties"]["loss"]["enum"] == ["CE", "BPR"]
    assert "options" not in str(schema["properties"]["model"]["anyOf"][1]["properties"])
    epochs = schema["$defs"]["TrainSection"]["properties"]["epochs"]
    assert (epochs["minimum"], epochs["default"]) == (0, 300)
    negatives = schema["$defs"]["TrainSection"]["properties"]["negatives"]["anyOf"]
    assert {"type": "null"} in negatives
    assert "ModelSection" not in schema["$defs"] and json_schema()["properties"]["model"]


# Intervals ---------------------------------------------------------------------------------------


def test_intervals() -> None:
    assert parse_intervals("[3,inf)") == [Interval(3.0, math.inf, True, False)]
    assert parse_intervals(" (0, 5] ; [7,9]") == [
        Interval(0.0, 5.0, False, True),
        Interval(7.0, 9.0, True, True),
    ]
    assert parse_intervals("(-inf,-1.5e1)") == [Interval(-math.inf, -15.0, False, False)]
    assert parse_intervals("[2,2]") == [Interval(2.0, 2.0, True, True)]


@pytest.mark.parametrize("text", ["", "3", "[3]", "[3,4", "{3,4}", "[a,b]", "[3,4];", "[nan,1]"])
def test_no_intervals(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no interval; write \[LOW,HIGH\]"):
        parse_intervals(text)


@pytest.mark.parametrize("text", ["[4,3]", "(3,3]", "[3,3)", "(3,3)"])
def test_empty_intervals(text: str) -> None:
    with pytest.raises(ValueError, match="is empty"):
        parse_intervals(text)


def test_interval_holds() -> None:
    numbers = np.array([-1.0, 0.0, 2.5, 5.0, 6.0])
    assert Interval(0, 5, True, False).holds(numbers).tolist() == [0, 1, 1, 0, 0]
    assert Interval(0, 5, False, True).holds(numbers).tolist() == [0, 0, 1, 1, 0]
    assert Interval(3, math.inf).holds(3) is True and Interval(3, math.inf).holds(2.9) is False

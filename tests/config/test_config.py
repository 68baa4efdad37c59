"""Loading: precedence, origins, overrides, and YAML that reads back as it was."""

import math
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from config_models import MODELS, errors, models, resolve, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shoal.config import (
    Command,
    Config,
    ConfigError,
    Interval,
    dump,
    json_schema,
    load,
    parse_intervals,
    show,
)
from shoal.config.schema import EvalSection, ModelSection
from shoal.config.yaml_io import inline
from shoal.config.yaml_io import read as read_yaml

__all__ = ["write"]  # used by being there


# Precedence and origins --------------------------------------------------------------------------


def test_defaults() -> None:
    resolved = resolve()
    model, judged = ModelSection(options={"embedding_size": 64}), EvalSection(valid_metric="MRR@10")
    assert resolved.config == Config(model=model, eval=judged)
    assert set(resolved.origins.values()) == {"default"} and resolved.notes == []


@pytest.mark.parametrize(
    ("words", "metric"),
    [
        (["--topk=100"], "MRR@100"),
        (["--topk=[5, 10]"], "MRR@10"),
        (["--topk=[20, 50]", "--valid_metric=ndcg"], "NDCG@20"),
        (["--topk=[20, 50]", "--valid_metric=ndcg@50"], "NDCG@50"),
    ],
)
def test_the_metric_that_decides_takes_its_cut_off_from_topk(words: list[str], metric: str) -> None:
    assert resolve(*words).config.eval.valid_metric == metric


def test_nothing_changes_a_resolved_config() -> None:
    resolved = resolve("--train.epochs=5")
    with pytest.raises(ValidationError, match="frozen"):
        resolved.config.train.epochs = 6
    with pytest.raises(ValidationError, match="frozen"):
        resolved.config.train.optimizer.lr = 1.0
    with pytest.raises(ValidationError, match="frozen"):
        resolved.config.run = resolved.config.run
    with pytest.raises(FrozenInstanceError):
        resolved.config = Config()  # type: ignore[misc]


def test_a_derived_copy_tells_its_origins(write) -> None:
    resolved = load([write("model: Deep\nepochs: 5\n")], models=models)
    values = {"run.output": "here", "strategy.ps.addresses": ["a:1"], "launch.nproc": 3}
    copy = resolved.with_values(values, "the launcher")
    assert resolved.config.run.output is None and resolved.origins["run.output"] == "default"
    assert (copy.config.run.output, copy.config.launch.nproc) == ("here", 3)
    assert {copy.origins[key] for key in values} == {"the launcher"}
    assert copy.origins["train.epochs"] == "recipe.yaml:2 (RecBole key epochs)"
    assert copy.config.model == resolved.config.model and copy.config.data == resolved.config.data
    lines = [line for line in show(copy).splitlines() if line.strip().startswith("output:")]
    assert lines[0].endswith("# the launcher")
    assert any("split over 3 processes" in note for note in copy.notes)
    assert not any("split over" in note for note in resolved.notes)
    with pytest.raises(ValueError, match=r"launch.nproc: given -2 \(whole number\); allowed"):
        resolved.with_values({"launch.nproc": -2}, "the launcher")
    with pytest.raises(ConfigError, match=r"the launcher: strategy.name: strategy single cannot"):
        copy.with_values({"strategy.name": "single"}, "the launcher")


def test_null_section_in_several_files(write) -> None:
    files = [write("train.negatives: {num: 3}\n", "a.yaml"), write("train.negatives.alpha: 2\n")]
    negatives = load(files, models=models).config.train.negatives
    assert negatives is not None and (negatives.num, negatives.alpha) == (3, 2.0)


def test_what_a_command_decides(write) -> None:
    path = write("strategy.name: auto\nlaunch: {nproc: 7, world_size: 7}\n")
    decided = {"launch.nproc": 2, "launch.world_size": 2, "launch.servers": 1}
    command = Command("shoal launch", decided, {"strategy.name": ("ps", "needs servers")})
    resolved = load([path], models=models, command=command)
    assert (resolved.config.launch.nproc, resolved.config.strategy.name) == (2, "ps")
    for key in (*decided, "strategy.name"):
        assert resolved.origins[key] == "shoal launch"
    with pytest.raises(ConfigError, match=r"strategy.name is ddp \(command line .*needs servers"):
        load([path], ["--strategy.name=ddp"], models=models, command=command)
    with pytest.raises(ConfigError, match=r"nproc=3: launch.nproc is decided by shoal launch"):
        load([path], ["--launch.nproc=3"], models=models, command=command)


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


@pytest.mark.parametrize(
    ("words", "key", "expected"),
    [
        (["--data.files.inter=2020"], "data.files", {"inter": "2020", "user": "u.csv"}),
        (
            ["--data.files.item=./b", "--data.files.user=c"],
            "data.files",
            {"user": "c", "item": "./b"},
        ),
        (["--data.files={item: b}"], "data.files", {"item": "b"}),  # as a whole
        (["--train.optimizer.rows.name=sgd"], "train.optimizer.rows", {"name": "sgd", "lr": 0.5}),
        (["--data.features.User-ID.dim=8"], "data.features", {"User-ID": {"kind": "id", "dim": 8}}),
        (["--data.filter.values.a-b=[3,inf)"], "data.filter.values", {"a-b": "[3,inf)"}),
        (["--data.load.inter=[a, b]"], "data.load", {"inter": ["a", "b"]}),
        (
            ["--eval.mode.valid=full", "--eval.mode.test=uni9"],
            "eval.mode",
            {"valid": "full", "test": "uni9"},
        ),
        (
            ["--start.pretrained.item.frozen=true"],
            "start.pretrained",
            {"item": {"file": "x", "frozen": True}},
        ),
    ],
)
def test_dotted_keys_reach_into_mappings(words: list[str], key: str, expected: Any, write) -> None:
    """An entry of a stronger source leaves the others as they are."""
    text = "data: {files: {user: u.csv}, features: {User-ID: {kind: id}}}\n"
    text += "train.optimizer.rows.lr: 0.5\nstart: {pretrained.item.file: x}\n"
    resolved = load([write(text)], words, models=models)
    found: Any = resolved.config
    for part in key.split("."):
        found = getattr(found, part)
    assert found == expected and resolved.origins[key].startswith("command line --")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--train.optimizer.rows.nam=x"], "unknown key train.optimizer.rows.nam; allowed: name"),
        (["--data.path.x=1"], "unknown key data.path.x; data.path holds one value"),
        (["--data.files.inter.x=1"], "unknown key data.files.inter.x; data.files holds one value"),
        (["--data.threshold.rating=x"], "data.threshold.rating: given x (text); allowed: a number"),
        (["--data.files.inter=a", "--data.files={inter: b}"], "data.files is set twice"),
        (["--data.files.inter"], "data.files.inter has no value"),
        (["--start.pretrained.item.frozen=true"], "start.pretrained.item: given {frozen: true}"),
    ],
)
def test_entries_that_are_wrong(words: list[str], said: str) -> None:
    (error,) = errors(*words)
    assert said in error


def test_null_section_comes_back_to_life() -> None:
    resolved = resolve("--train.negatives.num=3", model="Deep")
    assert resolved.config.train.negatives is not None
    assert resolved.config.train.negatives.num == 3
    assert resolved.origins["train.negatives"].startswith("command line")
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
    seed=st.integers(-(2**63), 2**63 - 1),
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
    assert "ModelSection" not in schema["$defs"]


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
    with pytest.raises(ValueError, match=r"is not an interval; write \[LOW,HIGH\]"):
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

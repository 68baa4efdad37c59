"""RecBole's keys: the page that must run as it is, and every row of the table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.compat.dialects.recbole import TABLE
from shoal.config import Config, ConfigError, load
from shoal.config.schema import NegativesSection
from shoal.runs.run import resolve

# The two files of RecBole's page on distributed training, as they stand there.
FROM_API = (Path(__file__).parent / "recbole_page.yaml").read_text()
FROM_SOURCE = FROM_API.removeprefix("gpu_id: '0,1,2,3'\n")


@dataclass
class BPROptions:
    embedding_size: int = 64


@dataclass
class GraphOptions:
    require_pow: bool = False


def models(name: str) -> tuple[str, type]:
    return {"BPR": ("BPR", BPROptions), "LightGCN": ("LightGCN", GraphOptions)}[name]


def read(*overrides: str, **values: Any) -> Config:
    return load([], overrides, values, models=models).config


def refusal(*overrides: str, **values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load([], overrides, values, models=models)
    return str(caught.value)


def write(folder: Path, text: str) -> Path:
    path = folder / "test.yaml"
    path.write_text(text)
    return path


def check_page(config: Config) -> None:
    assert config.model.name == "BPR" and config.model.options == {"embedding_size": 64}
    assert config.data.name == "ml-100k"
    assert (config.data.fields.user, config.data.fields.item) == ("user_id", "item_id")
    assert config.data.load == {"inter": ["user_id", "item_id"]}
    assert (config.train.epochs, config.train.batch_size) == (500, 4096)
    assert config.eval.batch_size == 4096
    assert config.train.negatives == NegativesSection()
    assert (config.data.split.by, config.data.split.ratio) == ("ratio", [0.8, 0.1, 0.1])
    assert (config.data.split.order, config.data.split.group_by) == ("random", "user")
    assert (config.eval.mode, config.eval.topk) == ("full", [10])
    assert config.eval.metrics == ["Recall", "MRR", "NDCG", "Hit", "Precision"]
    assert (config.eval.valid_metric, config.eval.decimals) == ("MRR@10", 4)


def test_page_one_node(tmp_path: Path) -> None:
    path = write(tmp_path, FROM_SOURCE)
    config = load([path], ["--model=BPR", "--dataset=ml-100k", "--nproc=4"], models=models).config
    check_page(config)
    assert (config.launch.nproc, config.launch.world_size) == (4, -1)


@pytest.mark.parametrize("offset", [0, 4])
def test_page_two_nodes(tmp_path: Path, offset: int) -> None:
    # Quotes stay when the words do not pass through a shell.
    words = ["--model=BPR", "--dataset=ml-100k", "--ip='183.174.228.81'", "--port='5678'"]
    words += ["--nproc=4", "--world_size=8", f"--group_offset={offset}"]
    path = write(tmp_path, FROM_SOURCE)
    for given in (words, [word.replace("'", "") for word in words]):
        config = load([path], given, models=models).config
        check_page(config)
        assert config.launch.ip == "183.174.228.81" and config.launch.port == 5678
        assert (config.launch.nproc, config.launch.world_size) == (4, 8)
        assert config.launch.group_offset == offset


def test_page_python_form(tmp_path: Path) -> None:
    values = {"model": "BPR", "dataset": "ml-100k", "world_size": 8, "ip": "123.456.789.21"}
    values |= {"port": "5678", "nproc": 4, "offset": 4}
    config = load([write(tmp_path, FROM_API)], values=values, models=models).config
    check_page(config)
    assert config.run.gpu_ids == "0,1,2,3"
    assert (config.launch.port, config.launch.group_offset) == (5678, 4)


DEFAULTS = yaml.safe_load((Path(__file__).parent / "recbole_defaults.yaml").read_text())


def test_defaults_of_recbole_are_accepted_and_are_ours() -> None:
    # The split, what may be recommended again, batches and patience: the data decides here.
    there = {"data.split.by": "ratio", "data.split.order": "random", "eval.repeatable": False}
    there |= {"train.batch_size": 2048, "train.patience": 10}
    ours = load([], values=there, models=models).config
    # What differs is a matter of place, not of training.
    places = {"run.root": "runs", "run.gpu_ids": None, "data.path": "dataset"}
    places |= {"launch.port": 0, "data.load": None, "run.project": None}
    theirs = load([], (), DEFAULTS, models=models).with_values(places, "test")
    assert theirs.config == ours


def test_a_batch_counts_the_items_to_find_as_there() -> None:
    """RecBole makes a sample of each item with those before it; SASRec finds one at each place."""
    sizes = {
        model: resolve(values={"model": model, "dataset": "ml-100k", **sizes}).config.train
        for model, sizes in {
            "SASRec": {"train_batch_size": 512},
            "GRU4Rec": {},
            "STAMP": {"train_batch_size": 512},
            "BPR": {"train_batch_size": 512},
        }.items()
    }
    assert {model: train.batch_size for model, train in sizes.items()} == {
        "SASRec": "512 items",
        "GRU4Rec": "2048 items",
        "STAMP": 512,
        "BPR": 512,
    }


@pytest.mark.parametrize(
    ("key", "value", "target", "expected"),
    [
        ("world_size", 0, "launch.world_size", -1),
        ("gpu_id", 0, "run.gpu_ids", "0"),
        ("gpu_id", (0, 1), "run.gpu_ids", "0,1"),
        ("gpu_id", "", "run.gpu_ids", ""),
        ("gpu_id", None, "run.gpu_ids", ""),
        ("use_gpu", False, "run.device", "cpu"),
        ("state", "WARNING", "run.log_level", "warning"),
        ("log_wandb", True, "run.trackers", ["tensorboard", "wandb"]),
        ("log_wandb", True, "run.project", "recbole"),
        ("wandb_project", "fish", "run.project", "fish"),
        ("state", "critical", "run.log_level", "error"),
        ("learner", "SGD", "train.optimizer.name", "sgd"),
        ("eval_step", -1, "train.eval_every", 0),
        ("clip_grad_norm", {"max_norm": 5, "norm_type": 2}, "train.clip_grad_norm", 5.0),
        ("train_neg_sample_args", None, "train.negatives", None),
        ("train_neg_sample_args", "None", "train.negatives", None),
        ("train_neg_sample_args", {"distribution": None}, "train.negatives", None),
        ("train_neg_sample_args", {}, "train.negatives.num", 1),
        ("train_neg_sample_args", {"sample_num": 4}, "train.negatives.num", 4),
        ("metrics", "MRR", "eval.metrics", ["MRR"]),
        ("metrics", ["mrr", "gauc"], "eval.metrics", ["MRR", "GAUC"]),
        ("topk", [5, 10], "eval.topk", [5, 10]),
        ("valid_metric", "ndcg@10", "eval.valid_metric", "NDCG@10"),
        ("load_col", None, "data.load", None),
        ("additional_feat_suffix", "ent", "data.extra_suffixes", ["ent"]),
        ("val_interval", {"rating": "[3,inf)"}, "data.filter.values", {"rating": "[3,inf)"}),
        ("user_inter_num_interval", "[5,inf)", "data.filter.user_inter_num", "[5,inf)"),
        ("item_inter_num_interval", [5, 10], "data.filter.item_inter_num", "[5,10]"),
        ("normalize_field", ["rating"], "data.normalize", ["rating"]),
        ("normalize_all", True, "data.normalize", "all"),
    ],
)
def test_translation(key: str, value: Any, target: str, expected: Any) -> None:
    found: Any = read(**{key: value})
    for name in target.split("."):
        found = getattr(found, name)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"split": {"LS": "valid_only"}, "order": "TO"}, ("leave_one_out", "time", "user", "full")),
        ({"split": {"RS": [8, 1, 1]}, "group_by": None}, ("ratio", "random", "none", "full")),
        ({"group_by": "none", "mode": "uni100"}, ("ratio", "random", "none", "uni100")),
        # Leave-one-out is by user whatever group_by says, as it is there.
        (
            {"split": {"LS": "test_only"}, "group_by": "none", "mode": {"test": "pop9"}},
            ("leave_one_out", "random", "user", {"valid": "pop9", "test": "pop9"}),
        ),
    ],
)
def test_eval_args(given: dict[str, Any], expected: tuple[Any, ...]) -> None:
    config = read(eval_args=given)
    split = config.data.split
    assert (split.by, split.order, split.group_by, config.eval.mode) == expected


def test_eval_args_parts_left_out_are_recboles_defaults(tmp_path: Path) -> None:
    below = write(tmp_path, "data: {split: {by: leave_one_out, order: time}}\n")
    resolved = load([below], values={"eval_args": {"mode": "uni100"}}, models=models)
    assert resolved.config.data.split.by == "ratio"
    assert resolved.config.data.split.order == "random"
    assert any("does not name split, order" in note for note in resolved.notes)
    # In one source the spelled-out key wins over what eval_args only implies.
    config = read(**{"eval_args": {"mode": "uni100"}, "data.split.by": "leave_one_out"})
    assert (config.data.split.by, config.eval.mode) == ("leave_one_out", "uni100")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("enable_amp", 1, "true or false"),
        ("clip_grad_norm", {"max_norm": 5, "norm_type": 1}, "L2 norm"),
        ("clip_grad_norm", {"norm_type": 2}, "max_norm is missing"),
        ("clip_grad_norm", 5, "write {max_norm: 5}"),
        ("load_col", {"inter": "*"}, "name the columns of .inter"),
        ("val_interval", {"city": ["Rome"]}, "of a float field"),
        ("normalize_all", "yes!", "true or false"),
        ("use_gpu", 1, "true or false"),
        ("log_wandb", 0, "true or false"),  # a number is not a truth value
        ("eval_args", {"split": {"TS": [1]}}, "splits are RS (by ratio) and LS"),
        ("eval_args", {"split": "RS"}, "{RS: [0.8, 0.1, 0.1]}"),
        ("eval_args", {"order": "time"}, "one of RO, TO"),
        ("eval_args", {"groupby": "user"}, "did you mean group_by?"),
        ("eval_args", "RO_RS", "it is a mapping of split, group_by, order, mode"),
        ("eval_args", {"mode": {"train": "full"}}, "eval.mode.train; allowed: valid, test"),
        ("eval_args", {"group_by": "item"}, "one of user, none"),
        ("train_neg_sample_args", {"uniform": 1}, "has no key uniform"),
        ("train_neg_sample_args", {"distribution": "zipf"}, "one of uniform, popularity"),
        ("train_neg_sample_args", {"dynamic": True, "candidate_num": 1}, "choose among at least 2"),
        ("learner", "adm", "did you mean adam?"),
        ("port", "http", "a whole number ≥ 0 and ≤ 65535"),
        ("topk", 0, "a list of whole numbers ≥ 1"),
    ],
)
def test_refusal_names_key_and_reason(key: str, value: Any, reason: str) -> None:
    text = refusal(**{key: value})
    assert f"RecBole key {key}" in text and reason in text
    assert "python" in text  # the place


@pytest.mark.parametrize("key", ["worker", "reproducibility"])
def test_keys_without_effect_are_noted(key: str) -> None:
    value = {"worker": 4, "reproducibility": False}[key]
    notes = load([], values={key: value}, models=models).notes
    assert any(key in note and "no effect" in note for note in notes)


def test_option_of_the_model_wins_over_a_refusal() -> None:
    assert read(model="LightGCN", require_pow=True).model.options == {"require_pow": True}


def test_flat_option_of_another_model_is_an_error() -> None:
    text = refusal(model="LightGCN", embedding_size=64)
    assert (
        "embedding_size" in text and "nor an option of LightGCN (its options: require_pow)" in text
    )


def test_two_spellings_of_one_target() -> None:
    assert "launch.group_offset is set twice" in refusal(offset=0, group_offset=0)
    assert "data.normalize is set twice" in refusal(normalize_field=["rating"], normalize_all=True)
    assert read(normalize_field=["rating"], normalize_all=False).data.normalize == ["rating"]


def test_later_source_takes_back(tmp_path: Path) -> None:
    path = write(tmp_path, "normalize_all: True\ntrain_neg_sample_args: None\n")
    config = load([path], ["--normalize_all=False"], models=models).config
    assert config.data.normalize == [] and config.train.negatives is None
    words = ["--train_neg_sample_args={'distribution':'popularity'}"]
    negatives = load([path], words, models=models).config.train.negatives
    assert negatives is not None and negatives.distribution == "popularity" and negatives.num == 1


def test_python_literals_on_the_command_line() -> None:
    config = read(
        "--eval_args={'split':{'LS':'valid_and_test'},'order':'TO','mode':'full'}",
        "--train_neg_sample_args=None",
        "--metrics=['Recall','NDCG']",
        "--valid_metric=NDCG@10",
        "--learning_rate=1e-3",
        "--user_inter_num_interval=[5,10]",
        "--field_separator=\\t",
    )
    assert config.data.split.by == "leave_one_out" and config.train.negatives is None
    assert config.eval.metrics == ["Recall", "NDCG"] and config.train.optimizer.lr == 0.001
    assert config.data.filter.user_inter_num == "[5,10]" and config.data.separator == "\t"


def test_every_known_key_is_in_the_table() -> None:
    assert set(DEFAULTS) <= {row.key for row in TABLE}

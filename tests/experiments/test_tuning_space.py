"""Spaces: files of YAML and of RecBole, what is refused, and a default for every model."""

import math
from pathlib import Path
from typing import Any

import pytest

from shoal.config import ConfigError
from shoal.experiments.tuning.default_space import default_space
from shoal.experiments.tuning.space import (
    Parameter,
    checked,
    grid,
    read_space,
    space_text,
    value_in,
)
from shoal.models import MODELS
from shoal.runs.run import resolve

SPACE = """
train:
  optimizer:
    lr: {low: 1e-4, high: 1e-1, log: true}
model.embedding_size: [32, 64]
model.n_layers: {low: 1, high: 4}
model.dropout_prob: {low: 0.0, high: 0.3, step: 0.1}
"""
RECBOLE = """
learning_rate loguniform -8,0
embedding_size choice [64,96 , 128]
n_layers quniform 1,4,1
reg_weight uniform 0.1,0.5   # a comment
mlp_hidden_size choice ['[64, 64]','[128,128]']
"""


def file(folder: Path, text: str, name: str = "space.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_yaml_nested_or_dotted(tmp_path: Path) -> None:
    space = read_space(file(tmp_path, SPACE))
    assert space == [
        Parameter("train.optimizer.lr", (), 1e-4, 1e-1, None, True),
        Parameter("model.embedding_size", (32, 64)),
        Parameter("model.n_layers", (), 1, 4),
        Parameter("model.dropout_prob", (), 0.0, 0.3, 0.1),
    ]
    assert read_space(file(tmp_path, space_text(space), "again.yaml")) == space


def test_a_space_in_the_form_of_recbole(tmp_path: Path) -> None:
    space = read_space(file(tmp_path, RECBOLE, "hyper.test"))
    assert space == [
        Parameter("learning_rate", (), math.exp(-8), 1.0, None, True),  # powers of e
        Parameter("embedding_size", (64, 96, 128)),
        Parameter("n_layers", (), 1, 4, 1),
        Parameter("reg_weight", (), 0.1, 0.5),
        Parameter("mlp_hidden_size", ([64, 64], [128, 128])),
    ]
    assert space[2].is_whole and not space[3].is_whole


def test_keys_of_other_tools_become_config_keys(tmp_path: Path) -> None:
    space = [Parameter("learning_rate", (), 1e-4, 0.1), Parameter("embedding_size", (8, 16))]
    named = checked(space, lambda values: resolve((), (), {"model": "BPR", **values}))
    assert [one.key for one in named] == ["train.optimizer.lr", "model.embedding_size"]
    resolved = resolve((), (), {"model": "BPR", "embedding_size": 16})
    assert value_in(resolved, "model.embedding_size") == 16
    assert value_in(resolved, "train.negatives.num") == 1
    assert value_in(resolved, "train.nothing") is None


@pytest.mark.parametrize(
    "text, why",
    [
        ("model.embedding_size: 64", "write a list of values"),
        ("model.embedding_size: []", "nothing to choose"),
        ("model.embedding_size: [64, 64]", "twice"),
        ("lr: {low: 1, high: 0.1}", "not below high"),
        ("lr: {low: 0, high: 1, log: true}", "log needs low above 0"),
        ("lr: {low: 0.1, high: 1, lgo: true}", "unknown lgo; allowed: low, high, step, log"),
        ("lr: {low: a, high: 1}", "are numbers"),
        ("lr: {low: 0.0, high: .inf}", "are numbers"),
        ("lr: {low: 0.0, high: 1.0, step: 2.0}", "does not fit"),
        ("lr: {low: 0.1}", "write a list of values"),
        ("", "names no key"),
        ("- 1", "is a mapping"),
    ],
)
def test_errors_of_a_space_name_the_mistake(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_space(file(tmp_path, text))


def test_lines_in_the_form_of_recbole_are_not_evaluated(tmp_path: Path) -> None:
    for line in ("lr choice __import__('os').getcwd()", "lr uniform 1", "lr normal 1,2"):
        path = file(tmp_path, f"embedding_size choice [1]\n{line}\n", "hyper.test")
        with pytest.raises(ConfigError, match=r"hyper\.test:2: lr"):
            read_space(path)
    with pytest.raises(ConfigError, match="no such config file"):
        read_space(tmp_path / "missing.test")


def test_values_are_checked_against_the_config() -> None:
    def check(key: str, *values: Any) -> None:
        checked([Parameter(key, values)], lambda v: resolve((), (), {"model": "BPR", **v}, "space"))

    with pytest.raises(ConfigError, match=r"embeding_size.*did you mean"):
        check("model.embeding_size", 64)
    with pytest.raises(ConfigError, match="epochs: given -3"):
        check("train.epochs", 64, -3)
    with pytest.raises(ConfigError, match="twice"):
        space = [Parameter("learning_rate", (0.1,)), Parameter("train.optimizer.lr", (0.2,))]
        checked(space, lambda values: resolve((), (), {"model": "BPR", **values}))


def test_a_grid_is_every_combination() -> None:
    space = [Parameter("a", (), 1, 2), Parameter("b", (), 0.1, 0.3, 0.1), Parameter("c", ([1],))]
    points = grid(space)
    assert points[:2] == [{"a": 1, "b": 0.1, "c": [1]}, {"a": 1, "b": 0.2, "c": [1]}]
    assert [one["b"] for one in points] == [0.1, 0.2, 0.3] * 2
    with pytest.raises(ValueError, match="range without steps"):
        grid([Parameter("a", (), 0.1, 0.2)])
    with pytest.raises(ValueError, match="points"):
        grid([Parameter(str(k), (), 1, 100) for k in range(9)])


@pytest.mark.parametrize("model", sorted(set(MODELS) - {"Pop"}))
def test_every_model_has_a_space(model: str) -> None:
    space = default_space(model)
    for k in (0, -1):  # its smallest and its largest values, all together
        values = {one.key: one.extremes[k] for one in space}
        resolved = resolve((), (), {"model": model, **values})
        assert {key: value_in(resolved, key) for key in values} == values
    assert read_space({one.key: dict_of(one) for one in space}) == space


def dict_of(one: Parameter) -> Any:
    if one.choices:
        return list(one.choices)
    found = {"low": one.low, "high": one.high, "log": one.log}
    return found if one.step is None else {**found, "step": one.step}


def test_nothing_to_search() -> None:
    with pytest.raises(ValueError, match="Pop has no option"):
        default_space("Pop")

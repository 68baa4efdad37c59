"""train.optimizer.rows and train.optimizer.tables: what they choose, and what they refuse."""

from typing import Any

import pytest
import torch
from ps_cluster import make_spec
from small import small_config

from shoal.config import ConfigError
from shoal.config.output import json_schema
from shoal.config.schema import OptimizerSection
from shoal.data.fingerprint import mismatch
from shoal.distributed.world import World
from shoal.embedding.engines.device import Device
from shoal.embedding.engines.local import make_local
from shoal.embedding.rows.store import EVERY
from shoal.embedding.rows.table import Table
from shoal.optimizers.row_optimizer import DEFINITIONS, RowOptimizer
from shoal.optimizers.selection import (
    check_tables,
    row_optimizer_names_of,
    row_optimizer_of,
)
from shoal.ps.spec import parse_spec
from shoal.ps.wire import WireError
from shoal.runs.build import build


def section(**given: Any) -> OptimizerSection:
    return OptimizerSection(**given)


def test_without_a_word_rows_are_updated_as_dense_parameters_are() -> None:
    chosen = row_optimizer_of(section(name="adamw", lr=0.1, weight_decay=0.0), "item")
    assert chosen == RowOptimizer("adamw", weight_decay=0.0, lr_factor=1.0)
    assert row_optimizer_of(section(name="sparse_adam"), "item") == RowOptimizer("sparse_adam")


def test_what_is_left_out_is_as_above_as_long_as_the_name_is_the_same() -> None:
    given = section(
        name="adam",
        lr=0.1,
        weight_decay=0.3,
        rows={"name": "adagrad", "eps": 1e-3},
        tables={"item": {"lr": 0.4}, "user": {"name": "adam", "betas": [0.5, 0.5]}},
    )
    assert row_optimizer_of(given, "other") == RowOptimizer("adagrad", eps=1e-3)
    assert row_optimizer_of(given, "item") == RowOptimizer("adagrad", eps=1e-3, lr_factor=4.0)
    # Another optimizer than that of all rows begins with its own defaults.
    assert row_optimizer_of(given, "user") == RowOptimizer("adam", betas=(0.5, 0.5))
    only_lr = section(name="adam", lr=0.1, weight_decay=0.3, rows={"lr": 0.05})
    assert row_optimizer_of(only_lr, "item") == RowOptimizer(
        "adam", weight_decay=0.3, lr_factor=0.5
    )


@pytest.mark.parametrize("name", DEFINITIONS)
@pytest.mark.parametrize("backend", ["native", "reference", "device", "whole table"])
def test_every_leaf_scales_the_rate_of_its_step(name: str, backend: str) -> None:
    table, ids = Table("t", 4, 6), torch.tensor([1, 4, 1])
    rows = []
    for factor, lr in ((1.0, 0.05), (0.25, 0.2)):
        optimizer = RowOptimizer(name, lr_factor=factor, weight_decay=0.1)
        if backend == "whole table":
            store: Any = Device(table, optimizer, 3, "cpu")
        else:
            store = make_local(table, optimizer, 3, backend=backend)  # type: ignore[arg-type]
        whole = backend == "whole table"
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            grads = torch.randn(6 if whole else len(ids), 4, generator=generator)
            store.push(EVERY if whole else ids, grads, lr)
        rows.append(store.pull(torch.arange(6)))
    torch.testing.assert_close(*rows, rtol=1e-6, atol=1e-7)
    assert not torch.equal(rows[0], make_local(table, RowOptimizer("sgd"), 3).pull(torch.arange(6)))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rows": {"name": "adagard"}}, r"rows.name: given adagard.*did you mean adagrad"),
        ({"rows": {"epss": 1.0}}, r"unknown key train.optimizer.rows.epss.*did you mean eps"),
        (
            {"rows": {"momentum": 0.5}},
            r"^python: train.optimizer.rows: adam has no momentum; it has .*betas, eps",
        ),
        ({"rows": {"name": "ftrl", "betas": [0.5, 0.5]}}, r"ftrl has no betas.*did you mean beta"),
        ({"rows": {"betas": [0.5, 1.0]}}, r"rows: adam: betas is .*it must be in \[0, 1\)"),
        ({"rows": {"lr": 0}}, r"rows.lr: given 0 .*> 0"),
        ({"tables": {"item": {"l1": 0.5}}}, r"optimizer.tables.item: adam has no l1"),
        ({"tables": {"item": {"eps": -1.0}}}, r"tables.item: adam: eps is -1.0; it must be 0 or"),
    ],
)
def test_what_an_optimizer_does_not_have_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        small_config("BPR", train__optimizer=given)


def test_a_table_that_the_model_does_not_have_is_refused() -> None:
    config = small_config("BPR", train__optimizer__tables={"itme": {"lr": 0.1}})
    with pytest.raises(ValueError, match=r"table 'itme'.*did you mean item.*are: user, item"):
        build(config, World())
    with pytest.raises(ValueError, match="its tables are: none"):
        check_tables(section(tables={"item": {}}), [])


def test_servers_hear_of_it_and_refuse_what_cannot_be() -> None:
    optimizer = section(name="sgd", lr=0.1, tables={"word": {"name": "ftrl", "l1": 0.5}})
    plain = make_spec()

    def told(some: OptimizerSection) -> dict[str, Any]:
        return plain.model_copy(update={"optimizer": some}).model_dump(mode="json")

    spec = parse_spec(told(optimizer))
    assert spec.row_optimizer_of("word") == RowOptimizer("ftrl", l1=0.5)
    assert spec.row_optimizer_of("user") == RowOptimizer("sgd")
    geo = parse_spec(told(optimizer) | {"mode": "geo"})
    assert geo.row_optimizer_of("word") == RowOptimizer("sgd")
    for tables in ({"wrod": {}}, {"word": {"l1": 0.5}}):
        with pytest.raises(WireError, match=r"train\.optimizer\.tables"):
            parse_spec(told(section(name="sgd", tables=tables)))


def test_a_checkpoint_knows_its_row_optimizers() -> None:
    plain, rows = section(name="adam"), section(name="adam", rows={"name": "ftrl"})
    own = section(name="adam", tables={"item": {"name": "sgd"}, "user": {"lr": 0.5}})
    assert row_optimizer_names_of(plain) is None
    assert row_optimizer_names_of(section(rows={"lr": 0.5, "name": "adam"})) is None
    assert row_optimizer_names_of(rows) == {"rows": "ftrl"}
    assert row_optimizer_names_of(own) == {"tables": {"item": "sgd"}}
    prints = [{"row_optimizers": row_optimizer_names_of(one)} for one in (plain, rows)]
    assert mismatch({}, prints[0]) is None  # of a run from before there was the choice
    for before, now in ((prints[0], prints[1]), (prints[1], prints[0])):
        assert "train.optimizer was" in str(mismatch(before, now))


def test_the_schema_shows_them() -> None:
    definitions = json_schema({})["$defs"]
    options = definitions["RowOptimizerOptions"]["properties"]
    assert "rowwise_adagrad" in options["name"]["enum"] and options["alpha"]["type"] == "number"
    assert {"rows", "tables"} <= definitions["OptimizerSection"]["properties"].keys()

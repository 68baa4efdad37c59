"""strategy.groups, groups_every and exchange: what cannot be is refused, with the remedy."""

from typing import Any

import pytest

from shoal.config.schema import StrategySection
from shoal.embedding.placements.table_plan import plan_tables
from shoal.embedding.rows.table import Table
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.runs.run import resolve

GROUPS = {"strategy.name": "sharded", "strategy.groups": 2}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"strategy.groups": 2}, r"strategy\.groups: .*strategy\.name=sharded"),
        (
            {"strategy.name": "ddp", "strategy.wire_dtype": "bfloat16"},
            r"strategy\.name=sharded or ps",
        ),
        (
            {"strategy.name": "ps", "strategy.wire_dtype": "float16"},
            "servers take float32 or bfloat16",
        ),
        ({"strategy.name": "sharded", "strategy.groups_every": 4}, "strategy.groups to 2 or more"),
        ({**GROUPS, "launch.encrypt": True}, "leave out one of the two"),
        (
            {**GROUPS, "strategy.groups_every": 2, "rows.admission.threshold": 2.0},
            r"set strategy\.groups_every=1",
        ),
        (
            {**GROUPS, "strategy.groups_every": 2, "train.clip_grad_norm": 1.0},
            r"train\.clip_grad_norm\), which groups must agree upon",
        ),
        ({**GROUPS, "strategy.groups": 0}, r"strategy\.groups"),
        ({**GROUPS, "strategy.wire_dtype": "int8"}, r"strategy\.wire_dtype"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        resolve(values=values)


def test_what_can_be_is_taken() -> None:
    given = {**GROUPS, "strategy.groups_every": 8, "strategy.wire_dtype": "float16"}
    section = resolve(values=given).config.strategy
    assert (section.groups, section.groups_every, section.wire_dtype) == (2, 8, "float16")


def test_processes_are_a_multiple_of_groups() -> None:
    tables, optimizers = {"t": Table("t", 4, 100)}, {"t": RowOptimizer("sgd")}
    section = StrategySection(name="sharded", place="row", groups=2)
    assert plan_tables(tables, 4, section, optimizers).shardings["t"].shares == [50, 50]
    with pytest.raises(ValueError, match=r"given 2, and 3 processes .* a number that divides 3"):
        plan_tables(tables, 3, section, optimizers)

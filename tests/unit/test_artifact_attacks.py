"""What the author of an artifact can write into it: nothing runs, grows or takes for ever.

Graphs are written by hand here; those of whole artifacts are in test_artifact.py.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from shoal.embedding.store import Rows
from shoal.embedding.table import Init, Table
from shoal.runs.artifact.files import ArtifactError
from shoal.runs.artifact.graph import Graph
from shoal.runs.artifact.histories import FILE, Told
from shoal.runs.artifact.tables import RowTable, write_table

X = {"node": "x"}
INTS = {"dtype": {"dtype": "int64"}}


def node(name: str, operation: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"name": name, "op": operation, "args": list(args), "kwargs": kwargs}


def read(name: str) -> dict[str, str]:
    return {"node": name}


def graph(*nodes: dict[str, Any], shape: Any = (None, 4)) -> Graph:
    asked = [{"name": "x", "dtype": "float32", "shape": list(shape), "used": True}]
    document = {"inputs": asked, "dense": {}, "tables": [], "nodes": list(nodes)}
    found = Graph({**document, "output": nodes[-1]["name"]}, {}, "graph.json")
    found.check({})
    return found


def test_the_objects_of_operators_lead_nowhere(tmp_path: Path) -> None:
    """Their methods led to the interpreter's own functions: this chain ended in `eval`."""
    witness = tmp_path / "witness"
    chain = [
        node("a", "aten.relu.__reduce_ex__", 2),
        node("b", "operator.getitem", read("a"), 0),
        node("c", "aten.relu.__setattr__", "_op", read("b")),
        node("d", "aten.relu.__getattr__", "__globals__"),
        node("e", "operator.getitem", read("d"), "__builtins__"),
        node("f", "operator.getitem", read("e"), "eval"),
        node("g", "aten.relu.__setattr__", "_op", read("f")),
        node("h", "aten.relu.__call__", f"__import__('os').mkdir({str(witness)!r})"),
    ]
    before = torch.ops.aten.relu._op
    try:
        with pytest.raises(ArtifactError, match="no operator of a graph"):
            graph(*chain)
        assert not witness.exists() and torch.ops.aten.relu._op is before
    finally:
        torch.ops.aten.relu._op = before


@pytest.mark.parametrize(
    "operation",
    [
        "aten.relu.__getattribute__",
        "aten.relu.__class__",
        "aten.relu.overloads",
        "aten.relu.out",  # writes into what it is given
        "aten.add.out",
        "aten.zeros.out",
    ],
)
def test_only_overloads_that_write_nothing(operation: str) -> None:
    with pytest.raises(ArtifactError, match=r"no operator of a graph|is damaged"):
        graph(node("a", operation, X))


def doubled(first: Any, operation: str, times: int) -> list[dict[str, Any]]:
    nodes = [node("n0", operation, first, first)]
    nodes += [node(f"n{k}", operation, *[read(f"n{k - 1}")] * 2) for k in range(1, times)]
    return nodes


ONES = node("a", "aten.ones.default", [1 << 15, 1 << 15])
GROWING = {
    "lists": [node("a", "operator.mul", [0], 1 << 40)],
    "text": [node("a", "operator.mul", "x", 1 << 40)],
    "lists added": doubled([1], "operator.add", 60),
    "numbers": doubled(3, "operator.mul", 60),
    "a place": [node("a", "aten.new_full.default", X, [1 << 30], 1.0, device="cpu")],
    "a place of zeros": [node("a", "aten.zeros.default", [1 << 30], device="cpu")],
    "a tensor": [node("a", "aten.zeros.default", [1 << 40])],
    "a negative one": [node("a", "aten.zeros.default", [-(1 << 40)])],
    "many tensors": [node(f"m{k}", "aten.zeros.default", [1 << 29]) for k in range(100)],
    "products": [ONES, *[node(f"m{k}", "aten.mm.default", *[read("a")] * 2) for k in range(100)]],
    "a window": [
        node("a", "aten.ones.default", [1, 1, 1 << 28]),
        node("b", "aten.avg_pool1d.default", read("a"), [1 << 27], [1]),
    ],
}


@pytest.mark.parametrize("how", GROWING)
def test_nothing_grows_without_bound(how: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArtifactError, match=r"graph\.json"):
        graph(*GROWING[how])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.parametrize("shape", [[1 << 40, 1 << 40], [-1], ["x"], [None, 1.5], None])
def test_inputs_have_shapes(shape: Any) -> None:
    with pytest.raises((ArtifactError, TypeError)):
        graph(node("a", "aten.relu.default", X), shape=shape)


def test_sizes_are_still_computed() -> None:
    nodes = [
        node("n", "aten.sym_size.int", X, 0),
        node("m", "operator.floordiv", read("n"), 2),
        node("half", "aten.view.default", X, [read("m"), -1]),
        node("two", "aten.split.Tensor", read("half"), 4, 1),
        node("last", "operator.getitem", read("two"), 1),
        node("made", "aten.arange.start_step", 0, 4, 1, **INTS),
        node("sum", "aten.add.Tensor", read("last"), read("made")),
    ]
    given = torch.arange(16.0).view(4, 4)
    found = graph(*nodes)({"x": given}, lambda table, ids: torch.zeros(0))
    assert torch.equal(found, given.view(2, 8)[:, 4:] + torch.arange(4))


@pytest.mark.parametrize(
    "change",
    [
        {"offsets": None},
        {"items": None},
        {"offsets": torch.tensor(2)},
        {"offsets": torch.tensor([0, 2, 1])},
        {"items": torch.tensor([[1, 2]])},
        {"items": torch.tensor([1.0, 2.0])},
        {"items": torch.tensor([1, 9])},
    ],
)
def test_histories_that_are_none(change: dict[str, Any], tmp_path: Path) -> None:
    found = {"items": torch.tensor([1, 2]), "offsets": torch.tensor([0, 1, 2]), **change}
    save_file({name: one for name, one in found.items() if one is not None}, tmp_path / FILE)
    with pytest.raises(ArtifactError, match="is damaged: its histories"):
        Told(tmp_path, {"files": {FILE: {}}}, num_users=2, num_items=5)


@pytest.mark.parametrize("ids", [torch.tensor([0.0]), torch.tensor([True]), torch.tensor([1j])])
def test_ids_that_are_no_whole_numbers(ids: torch.Tensor, tmp_path: Path) -> None:
    rows = Rows(torch.arange(6), torch.rand(6, 3))
    table = Table("item", 3, 6, Init("uniform", 0.1))
    facts = write_table(tmp_path, table, iter([rows]), "float32")
    found = RowTable(
        tmp_path, {"files": {name: {} for name in os.listdir(tmp_path)}}, "item", facts
    )
    assert found.rows(torch.tensor([5])).shape == (1, 3)
    with pytest.raises(ArtifactError, match="not whole numbers"):
        found.rows(ids)

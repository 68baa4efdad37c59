"""Artifacts written by hand: as small as can be, and with any graph, as a stranger may send one."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Init, Table
from shoal.serving.artifact import files
from shoal.serving.artifact.files import write_words
from shoal.serving.artifact.tables import write_table


def node(name: str, operation: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """One node of a graph."""
    return {"name": name, "op": operation, "args": list(args), "kwargs": kwargs}


def read(name: str) -> dict[str, str]:
    """The value of a node as an argument."""
    return {"node": name}


def graph(*nodes: dict[str, Any], name: str = "x", **facts: Any) -> dict[str, Any]:
    """A graph of one input that answers with its last node; `w` is a matrix [3, 3] of its own."""
    asked = {"name": name, "dtype": "float32", "shape": [None, 4], "used": True, **facts}
    found = {"inputs": [asked], "dense": {"w": "weight"}, "tables": ["item"], "nodes": list(nodes)}
    return {**found, "output": nodes[-1]["name"]}


MEAN = graph(  # of the rows of a history, through a matrix
    node("rows", "shoal.lookup", read("history"), "item", 3),
    node("n", "aten.sym_size.int", read("rows"), 0),
    node("mean", "aten.mean.dim", read("rows"), [1]),
    node("flat", "aten.view.default", read("mean"), [read("n"), 3]),
    node("out", "aten.mm.default", read("flat"), read("w")),
    name="history",
    dtype="int64",
)


def write_artifact(home: Path, document: dict[str, Any], **signature: Any) -> Path:
    """A retrieval artifact of users a, b and items v to z with this graph."""
    home.mkdir()
    tables = {}
    for name, kind in (("item", "int8"), ("item_vectors", "float32")):
        rows = Rows(torch.arange(6), torch.rand(6, 3))
        table = Table(name, 3, 6, Init("uniform", 0.1))
        tables[name] = write_table(home, table, iter([rows]), kind)  # type: ignore[arg-type]
    write_words(home, "users", ["[PAD]", "a", "b"])
    write_words(home, "items", ["[PAD]", *"vwxyz"])
    taken = {"items": torch.tensor([1, 2, 3]), "offsets": torch.tensor([0, 0, 2, 3])}
    save_file(taken, home / "histories.safetensors")
    save_file({"weight": torch.eye(3)}, home / "dense.safetensors")
    facts = {"model": "M", "kind": "retrieval", "query": "graph", "graph": "graph.json"}
    facts |= {"base": None, "tables": tables, "max_len": 4, "repeatable": False}
    facts |= {"user_field": "user_id", "item_field": "item_id", **signature}
    (home / "graph.json").write_text(json.dumps(document))
    (home / files.SIGNATURE).write_text(json.dumps(facts))
    files.write_manifest(home)
    return home


def write_vectors(home: Path) -> Path:
    """A retrieval artifact that was trained with vectors of two numbers; an item's row is W v."""
    entry = {"width": 2, "normalise": "none", "tables": ["item"]}
    write_artifact(home, MEAN, item_vectors=entry)
    row = graph(
        node("row", "shoal.lookup", read("items"), "item", 3),
        name="items",
        dtype="int64",
        shape=[None],
    )
    (home / "items.json").write_text(json.dumps({**row, "dense": {}}))
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    save_file({"weight.item": weight}, home / "vectors.safetensors")
    files.write_manifest(home)
    return home


def write_clicks(home: Path, *nodes: dict[str, Any]) -> Path:
    """A click artifact of slots p and q, ids [b, 2] at node `slots`."""
    layout = {"slots": ["p", "q"], "dense": [], "label": "click", "rows": None, "others": 0}
    return write_artifact(
        *(home, graph(*nodes, name="slots", dtype="int64", shape=[None, 2])),
        **{"kind": "clicks", "layout": layout, "format": "slots", "separator": " "},
        **{"labels": [["click", "logistic"]], "apart": {}, "rows": "float32"},
    )

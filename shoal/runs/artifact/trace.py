"""Trace: from a model to the graph of one of its answers, by torch.export.

While it is traced, the model's embeddings read from `Cut`, which puts a node where rows come in.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.service import Gradients, Lookup, RowService
from shoal.embedding.store import Every
from shoal.runs.artifact.graph import DTYPES, ELSEWHERE, LOOKUP, OPERATORS, PLAIN

ASSERTIONS = ("_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range")
_library = torch.library.Library("shoal", "DEF")
_library.define("lookup(Tensor ids, str table, int dim) -> Tensor")


@torch.library.register_fake("shoal::lookup", lib=_library)
def _(ids: Tensor, table: str, dim: int) -> Tensor:
    return ids.new_empty([*ids.shape, dim], dtype=torch.float32)


class Cut(RowService):
    """Where rows come in, a node of the graph."""

    def pull(self, lookups: Any, learn: bool) -> list[Tensor]:
        return [self._node(one) for one in lookups]

    def _node(self, one: Lookup) -> Tensor:
        if isinstance(one.ids, Every):
            raise ValueError(f"it reads all rows of table {one.table!r} for every answer")
        dim = self.stores[one.table].table.dim
        return torch.ops.shoal.lookup(one.ids, one.table, dim)

    def collect(self, scale: float = 1.0, notes: float = 0.0) -> Gradients:
        raise NotImplementedError  # nothing is trained

    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        raise NotImplementedError  # nothing is trained


class _Answer(nn.Module):
    def __init__(self, model: nn.Module, call: Callable[..., Tensor]):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, fields: dict[str, Tensor]) -> Tensor:
        return self.call(fields)


Traced = tuple[dict[str, Any], dict[str, Tensor]]


def trace(
    model: nn.Module,
    batch: Batch,
    answer: Callable[[Batch], Tensor],
    more: dict[str, Tensor] | None = None,
) -> Traced:
    """The graph of answer(batch), for batches of any size like the given one; and its tensors.

    `more` are further inputs [b], which answer finds among the batch's ids.
    """
    ids = {name: batch.tensor(name) for name in batch.ids} | (more or {})
    fields = {**ids, **batch.dense}
    embeddings = [one for one in model.modules() if isinstance(one, Embeddings)]
    services = [one.service for one in embeddings]
    numbers = [one._numbers for one in embeddings]
    was_training = model.training
    model.eval()
    try:
        for one, service in zip(embeddings, services):
            one.attach(Cut(service.stores))
        failures = []
        for whole in (True, False):  # some models plan their blocks by the size of a batch

            def call(given: dict[str, Tensor], whole: bool = whole) -> Tensor:
                size = next(iter(given.values())).shape[0] if whole else 1
                mine = {name: given[name] for name in ids}
                return answer(Batch(size, dict(mine), {k: given[k] for k in batch.dense}))

            try:
                return _export(_Answer(model, call), fields)
            except Exception as error:
                failures.append(str(error).split("\n\n")[0][:600])
        raise ValueError(
            f"torch.export cannot take {type(model).__name__}: {failures[0]}. A model that is "
            "exported takes batches of any size: x.shape[0], not len(x) nor a plain number, and no "
            "branch on a tensor's values"
        )
    finally:
        for one, service, own in zip(embeddings, services, numbers):
            one.attach(service, min(own.values(), default=0))
        model.train(was_training)


def _export(module: nn.Module, fields: dict[str, Tensor]) -> Traced:
    dynamic = {name: {0: torch.export.Dim.DYNAMIC} for name in fields}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, (fields,), dynamic_shapes=(dynamic,), strict=False)
        program = program.run_decompositions({})  # functional, and otherwise as the model has it
        if any(not _is_known(node) for node in program.graph.nodes):
            program = program.run_decompositions()
    return _write(program, fields)


def _is_known(node: Any) -> bool:
    if node.op != "call_function":
        return True
    name = _name_of(node.target)
    if any(word in name for word in ASSERTIONS):  # left out when it is written
        return True
    return name == LOOKUP or name in PLAIN or name.split(".")[1] in OPERATORS


def _name_of(target: Any) -> str:
    """`aten.linear.default`, `operator.mul`, `shoal.lookup`"""
    if isinstance(target, torch._ops.OpOverload):
        name = str(target)
        return LOOKUP if name == "shoal.lookup.default" else name
    room = "operator" if getattr(operator, target.__name__, None) is target else "torch"
    return f"{room}.{target.__name__}"


def _write(program: Any, fields: dict[str, Tensor]) -> Traced:
    """A program as the document of a graph, and the tensors that it reads."""
    graph = program.graph
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and any(word in str(node.target) for word in ASSERTIONS):
            graph.erase_node(node)
    graph.eliminate_dead_code()
    stored = {**program.state_dict, **program.constants}
    tensors: dict[str, Tensor] = {}
    inputs: list[dict[str, Any]] = []
    dense, nodes, tables = {}, [], []
    asked = iter(fields.items())
    output = ""
    for node, spec in zip(graph.nodes, program.graph_signature.input_specs):
        if spec.kind is torch.export.graph_signature.InputKind.USER_INPUT:
            name, field = next(asked)
            shape = [None, *field.shape[1:]]
            kind = str(field.dtype).removeprefix("torch.")
            inputs.append({"name": name, "dtype": kind, "shape": shape, "used": bool(node.users)})
            node._rename(f"input_{name}")
        elif node.users:
            dense[node.name] = spec.target
            tensors[spec.target] = stored[spec.target].detach().clone()
    names = {f"input_{one['name']}": one["name"] for one in inputs}
    for node in graph.nodes:
        if node.op == "call_function":
            operation = _name_of(node.target)
            args = [_encode(one, names) for one in node.args]
            if operation == LOOKUP:
                tables.append(node.args[1])
            elif not _is_known(node):
                raise ValueError(f"it calls {operation}, which the graph of an artifact has not")
            kwargs = {
                key: _encode(value, names)
                for key, value in node.kwargs.items()
                if key not in ELSEWHERE
            }
            nodes.append({"name": node.name, "op": operation, "args": args, "kwargs": kwargs})
        elif node.op == "output":
            found = node.args[0][-1] if isinstance(node.args[0], (list, tuple)) else node.args[0]
            output = names.get(found.name, found.name)
    document = {
        "inputs": inputs,
        "dense": dense,
        "tables": sorted(set(tables)),
        "nodes": nodes,
        "output": output,
    }
    return document, tensors


def _encode(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"node": names.get(value.name, value.name)}
    if isinstance(value, (list, tuple)):
        return [_encode(one, names) for one in value]
    if isinstance(value, torch.dtype) and str(value).removeprefix("torch.") in DTYPES:
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.device):
        return None
    raise ValueError(f"it has {value!r} as an argument, which the graph of an artifact cannot hold")

"""Trace: from a model to the graph of one of its answers, by torch.export.

While it is traced, the model's embeddings read from `TracingRows`, which puts a node where rows
come in. A field that holds a list for each sample is one input; what is read of it is a node, too.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shoal.data.batch import Batch, Jagged
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.store import Every
from shoal.embedding.rows.table import Table
from shoal.embedding.service import Collected, Gradients, RowService
from shoal.models.nn.item_features import ItemFeatures
from shoal.serving.artifact.graph import OURS, PADDED
from shoal.serving.artifact.operators.table import DTYPES, ELSEWHERE, NUMBERS, OPERATORS

ASSERTIONS = ("_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range")
FEATURES = "item_features"  # the table of what a model makes of items' features
_library = torch.library.Library("shoal", "DEF")


def _define(name: str, arguments: str, behind: Callable[..., list[int]], rows: bool = True) -> None:
    """An operator on ids, whose answer has their shape and these axes behind it."""
    _library.define(f"{name}(Tensor ids, {arguments}) -> Tensor")

    def fake(ids: Tensor, *rest: Any) -> Tensor:
        kind = torch.float32 if rows else ids.dtype
        return ids.new_empty([*ids.shape, *behind(*rest)], dtype=kind)

    torch.library.register_fake(f"shoal::{name}", fake, lib=_library)


_define("lookup", "str table, int dim", lambda table, dim: [dim])
_define("pooled", "str table, int dim, str how", lambda table, dim, pooling: [dim])
_define("listed", "str table, int dim, int length", lambda table, dim, length: [length, dim])
_define("padded", "int length", lambda length: [length], rows=False)


@dataclass(frozen=True)
class _List(Jagged):
    """A list for each sample while a graph is traced: `values` stands for all of it, [b]."""

    def padded(self, length: int) -> Tensor:
        return torch.ops.shoal.padded(self.values, length)


def _each_pooled(embed: Embeddings, batch: Batch, pooling: Mapping[str, Any]) -> dict[str, Tensor]:
    rows = {}
    for field, way in pooling.items():
        ids, table = batch.ids[field], embed.fields[field]
        if isinstance(ids, _List):
            rows[field] = torch.ops.shoal.pooled(ids.values, table.name, table.dim, way)
        else:
            rows |= Embeddings.each_pooled(embed, batch, {field: way})
    return rows


def _listed(embed: Embeddings, field: str, batch: Batch, length: int) -> Tensor:
    ids, table = batch.ids[field], embed.fields[field]
    if isinstance(ids, _List):
        return torch.ops.shoal.listed(ids.values, table.name, table.dim, length)
    return Embeddings.listed(embed, field, batch, length)


def _of_features(name: str, features: ItemFeatures, ids: Tensor) -> Tensor:
    rows = torch.ops.shoal.lookup(ids, name, features.number * features.dim)
    return rows.view(*ids.shape, features.number, features.dim)


def item_features(model: nn.Module) -> dict[str, ItemFeatures]:
    """Table of the artifact -> what makes its rows of items' features."""
    modules = [one for one in model.modules() if isinstance(one, ItemFeatures)]
    return {FEATURES + (str(k) if k else ""): one for k, one in enumerate(modules)}


class TracingRows(RowService):
    """A row service that puts a node into the graph wherever rows come in."""

    def __init__(self, tables: dict[str, Table]):
        super().__init__({})
        self.read = tables

    def pull(self, lookups: Any, learn: bool) -> list[Tensor]:
        nodes = []
        for lookup in lookups:
            table, ids = self.read[lookup.table], lookup.ids
            if isinstance(ids, Every):
                rows = table.rows or 0
                if rows > 1 << 16:
                    raise ValueError(
                        f"it reads all {rows} rows of {lookup.table!r} for every answer"
                    )
                ids = torch.arange(rows)
            nodes.append(torch.ops.shoal.lookup(ids, lookup.table, table.dim))
        return nodes

    def collect(self, dense: Any = ()) -> Collected:
        raise NotImplementedError  # nothing is trained

    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        raise NotImplementedError  # nothing is trained


class _Answer(nn.Module):
    def __init__(self, model: nn.Module, call: Callable[..., Tensor]):
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, fields: list[Tensor]) -> Tensor:
        return self.call(fields)


Traced = tuple[dict[str, Any], dict[str, Tensor]]


def trace(
    model: nn.Module,
    batch: Batch,
    answer: Callable[[Batch], Tensor],
    extra_inputs: dict[str, Tensor] | None = None,
    lists: Collection[str] = (),
    alone: bool = True,
) -> Traced:
    """The graph of answer(batch), for batches of any size like the given one; and its tensors.

    `extra_inputs` are further inputs [n], which answer finds among the batch's ids; `lists` are
    the fields that hold a list for each sample, of which the batch given here has one id each;
    `alone`: no other process is needed to look rows up.
    """
    ids = {name: batch.tensor(name) for name in batch.ids} | (extra_inputs or {})
    fields = {**ids, **batch.dense}
    with ExitStack() as stack:
        stack.callback(model.train, model.training)
        model.eval()
        if alone and not lists:  # what a model keeps is made of numbers then, not of shapes
            answer(Batch(batch.size, dict(ids), batch.dense))
        _cut(model, stack)
        failures = []
        for whole in (True, False):  # some models plan their blocks by the size of a batch

            def call(values: list[Tensor], whole: bool = whole) -> Tensor:
                tensors = dict(zip(fields, values))
                size = next(iter(tensors.values())).shape[0] if whole else 1
                batch_ids: dict[str, Tensor | Jagged] = {name: tensors[name] for name in ids}
                batch_ids |= {name: _List(tensors[name], tensors[name]) for name in lists}
                return answer(Batch(size, batch_ids, {k: tensors[k] for k in batch.dense}))

            try:
                return _export(_Answer(model, call), fields, lists)
            except Exception as error:
                failures.append(str(error).split("\n\n")[0][:600])
        raise ValueError(
            f"torch.export cannot take {type(model).__name__}: {failures[0]}. Batches are of any "
            "size: write x.shape[0], not len(x), and do not branch on a tensor's values"
        )


def _cut(model: nn.Module, stack: ExitStack) -> None:
    """Put nodes where rows come in, until the stack is left."""
    for module in model.modules():
        if isinstance(module, Embeddings):
            stack.callback(module.attach, module.service, min(module._numbers.values(), default=0))
            module.attach(TracingRows(module.tables))
            stack.enter_context(module.without_vectors())  # a table of the artifact has both
            for name, stands_in in (("each_pooled", _each_pooled), ("listed", _listed)):
                setattr(module, name, partial(stands_in, module))
                stack.callback(delattr, module, name)
    for name, features in item_features(model).items():
        features.__dict__["forward"] = partial(_of_features, name, features)
        stack.callback(delattr, features, "forward")


def _export(module: nn.Module, fields: dict[str, Tensor], lists: Collection[str]) -> Traced:
    # By place, not by name: the name of a column may be any text.
    values, dynamic = list(fields.values()), [{0: torch.export.Dim.DYNAMIC} for _ in fields]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, (values,), dynamic_shapes=(dynamic,), strict=False)
        program = program.run_decompositions({})  # functional, and otherwise as the model has it
        if any(not _is_known(node) for node in program.graph.nodes):
            # Torch writes operators that a graph does not know by simpler ones.
            table = torch.export.default_decompositions()
            for operation in [one for one in table if str(one) in OPERATORS]:
                del table[operation]
            program = program.run_decompositions(table)
    return _write(program, fields, lists)


def _is_known(node: Any) -> bool:
    if node.op != "call_function":
        return True
    name = _name_of(node.target)
    if any(word in name for word in ASSERTIONS):  # left out when it is written
        return True
    return name in OURS or name in NUMBERS or name in OPERATORS


def _name_of(target: Any) -> str:
    """`aten.linear.default`, `operator.mul`, `shoal.lookup`"""
    if isinstance(target, torch._ops.OpOverload):
        name = str(target)
        return name.removesuffix(".default") if name.startswith("shoal.") else name
    room = "operator" if getattr(operator, target.__name__, None) is target else "torch"
    return f"{room}.{target.__name__}"


def _write(program: Any, fields: dict[str, Tensor], lists: Collection[str]) -> Traced:
    """A program as the document of a graph, and the tensors that it reads."""
    # Assertions compute nothing, and stay out.
    graph = program.graph
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and any(word in str(node.target) for word in ASSERTIONS):
            graph.erase_node(node)
    graph.eliminate_dead_code()
    stored = {**program.state_dict, **program.constants}
    tensors: dict[str, Tensor] = {}
    inputs: list[dict[str, Any]] = []
    dense, nodes, tables = {}, [], []
    names: dict[Any, str] = {}  # of nodes: inputs have those of their fields, whatever they are
    field_items = iter(fields.items())

    def name_of(node: Any) -> str:
        if node not in names:
            name = node.name
            while name in fields or name in names.values():
                name += "_"
            names[node] = name
        return names[node]

    # Inputs, and the tensors that the graph reads.
    output = ""
    for node, spec in zip(graph.nodes, program.graph_signature.input_specs):
        if spec.kind is torch.export.graph_signature.InputKind.USER_INPUT:
            name, field = next(field_items)
            shape = [None, *field.shape[1:]]
            kind = str(field.dtype).removeprefix("torch.")
            facts = {"name": name, "dtype": kind, "shape": shape, "used": bool(node.users)}
            inputs.append(facts | ({"list": True} if name in lists else {}))
            names[node] = name
        elif node.users:
            dense[name_of(node)] = spec.target
            tensors[spec.target] = stored[spec.target].detach().clone()
    # Calls, in order, and the node that is the answer.
    for node in graph.nodes:
        if node.op == "call_function":
            operation = _name_of(node.target)
            args = [_encode(one, name_of) for one in node.args]
            if operation in OURS:
                tables += [node.args[1]] if operation != PADDED else []
            elif not _is_known(node):
                raise ValueError(f"it calls {operation}, which the graph of an artifact has not")
            kwargs = {
                key: _encode(value, name_of)
                for key, value in node.kwargs.items()
                if key not in ELSEWHERE
            }
            nodes.append({"name": name_of(node), "op": operation, "args": args, "kwargs": kwargs})
        elif node.op == "output":
            result = node.args[0][-1] if isinstance(node.args[0], (list, tuple)) else node.args[0]
            output = name_of(result)
    document = {
        "inputs": inputs,
        "dense": dense,
        "tables": sorted(set(tables)),
        "nodes": nodes,
        "output": output,
    }
    return document, tensors


def _encode(value: Any, name_of: Callable[[Any], str]) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"node": name_of(value)}
    if isinstance(value, (list, tuple)):
        return [_encode(one, name_of) for one in value]
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

"""Graph: a model's dense computation as plain JSON, run node by node.

torch.export makes it (trace.py). Torch's own files of exported programs may hold pickles, and
reading them evaluates text; so the graph is written as a list of calls of operators, of which those
in operators/ alone are known, and each only computes tensors from tensors:

    {"name": "linear", "op": "aten.linear.default", "args": [{"node": "x"}, {"node": "w"}]}

The author of a graph may be anybody. So before every call its operator's rule checks the arguments,
and its cost must be within bounds. When a graph is opened, it is run once with shapes
alone, by the same rules.

Rows come in at nodes `shoal.lookup`: ids in, rows of a table out. The tables stay outside. Of a
list for each sample, `shoal.pooled` has one row each, `shoal.listed` the rows of the last ids and
`shoal.padded` those ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.data.batch import Jagged
from shoal.runs.artifact.files import ArtifactError, damaged
from shoal.runs.artifact.operators.rule import Cost, Meter, TooLarge, cost, need
from shoal.runs.artifact.operators.table import (
    DTYPES,
    ELSEWHERE,
    FORMATS,
    MOST_AXES,
    NUMBERS,
    OPERATORS,
    Operator,
    operator,
)
from shoal.runs.artifact.tables import RowTable

LOOKUP, POOLED, LISTED = "shoal.lookup", "shoal.pooled", "shoal.listed"
PADDED = "shoal.padded"
OURS = (LOOKUP, POOLED, LISTED, PADDED)
# (table, ids, how rows of lists are pooled): rows
Lookup = Callable[[str, "Tensor | Jagged", str], Tensor]
Fields = Mapping[str, "Tensor | Jagged"]


class JaggedIds:
    """Ids of several per place, in the place of a tensor [b] or [b, s]: lookups sum their rows."""

    def __init__(self, jagged: Jagged, places: list[int]):
        self.jagged, self.shape = jagged, (len(jagged) // max(1, math.prod(places)), *places)


class Step(NamedTuple):
    """One node: what it calls, and its arguments, in which names stand for other nodes' values."""

    name: str
    call: Callable | Operator | str
    args: Any  # by name for an operator, else in order
    used: set[str]


class ExportedGraph:
    """A graph that was read, ready to run."""

    def __init__(
        self,
        document: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        dims: Mapping[str, int],
        where: str,
    ):
        """`tensors`: what it reads, by name; `dims`: the width of each table's rows."""
        self.where, self.dims = where, dims
        with damaged(self.where):
            self._build(document, tensors)

    def _build(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.inputs: dict[str, dict[str, Any]] = {one["name"]: one for one in document["inputs"]}
        self.tables: list[str] = list(document["tables"])
        self.constants = {name: tensors[key] for name, key in document["dense"].items()}
        for one in self.constants.values():
            need(
                one.dtype in DTYPES.values() and one.dim() <= MOST_AXES, "a tensor of %s", one.dtype
            )
        self.output: str = document["output"]
        nodes = document["nodes"]
        need(len(nodes) <= 100_000, "%s nodes; 100000 are the most", len(nodes))
        known = {name for name, facts in self.inputs.items() if facts["used"]} | {*self.constants}
        self.steps: list[Step] = []
        for node in nodes:
            step = self._step(node, known)
            need(step.name not in known, "two nodes are named %r", step.name)
            self.steps.append(step)
            known.add(step.name)
        need(self.output in known, "it has no node %r to answer with", self.output)
        # What no later node reads is let go of.
        self.last: list[list[str]] = [[] for _ in self.steps]
        seen = {self.output, *self.inputs, *self.constants}
        for number in range(len(self.steps) - 1, -1, -1):
            used = self.steps[number].used
            self.last[number] = list(used - seen)
            seen |= used

    def _step(self, node: Mapping[str, Any], known: set[str]) -> Step:
        name, operation = str(node["name"]), node["op"]
        used: set[str] = set()
        args: Any = _decode(list(node["args"]), known, used)
        kwargs = {key: _decode(value, known, used) for key, value in node["kwargs"].items()}
        if kwargs.keys() & set(ELSEWHERE):
            raise ArtifactError(f"{self.where} says where a tensor lies: {min(kwargs)}")
        call: Callable | Operator | str
        if operation in OPERATORS:
            call = operator(operation)
            args = call.named(args, kwargs)
        elif operation in OURS or operation in NUMBERS:
            call = operation if operation in OURS else NUMBERS[operation]
            need(not kwargs, "%s takes no %s", operation, list(kwargs))
        else:
            raise ArtifactError(
                f"{self.where} calls {operation!r}, which is no operator of a graph"
            )
        return Step(name, call, args, used)

    # ---- running --------------------------------------------------------------------------------

    def __call__(self, inputs: Fields, lookup: Lookup, checked: bool = True) -> Tensor:
        """The answer for inputs by name; `lookup` gives rows.

        checked=False: without rules and bounds, for torch.export, where sizes are symbols.
        """
        values = {**self.constants, **self._given(inputs)}
        meter = Meter(self.where, values.values()) if checked else None
        return self._run(values, lookup, meter)

    def _given(self, inputs: Fields) -> dict[str, Tensor | JaggedIds]:
        given: dict[str, Tensor | JaggedIds] = {}
        for name, facts in self.inputs.items():
            if facts["used"]:
                one = inputs[name]
                given[name] = JaggedIds(one, facts["shape"][1:]) if isinstance(one, Jagged) else one
        return given

    def check(self) -> None:
        """Refuse a graph that cannot answer: run it with shapes, without memory."""
        with damaged(self.where):
            try:
                self._check_for(64)
            except TooLarge:  # so many are answered in parts, and one sample must do
                self._check_for(1)

    def _check_for(self, samples: int) -> None:
        values = {name: one.to("meta") for name, one in self.constants.items()}
        for name, facts in self.inputs.items():
            shape = [samples if size is None else size for size in facts["shape"]]
            values[name] = torch.empty(shape, dtype=DTYPES[facts["dtype"]], device="meta")
        meter = Meter(self.where, values.values())
        meter.admit(cost(sum(values[name].numel() for name in self.inputs)))
        with torch.inference_mode():
            self._run(values, None, meter)

    def _run(self, values: dict[str, Any], lookup: Lookup | None, meter: Meter | None) -> Tensor:
        """Run node after node; without `lookup` with shapes alone."""
        for step, done in zip(self.steps, self.last):
            try:
                made = self._made(step, values, lookup, meter)
            except (ArtifactError, TooLarge):
                raise
            except Exception as error:  # of many kinds, by rules, by torch and by tables
                text = (str(error).splitlines() or [type(error).__name__])[0][:300]
                raise ArtifactError(f"{self.where} is damaged: {step.name}: {text}") from error
            values[step.name] = made
            if meter is not None:
                meter.add(made)
            for name in done:
                freed = values.pop(name)
                if meter is not None:
                    meter.remove(freed)
        answer = values[self.output]
        if not isinstance(answer, Tensor):
            raise ArtifactError(f"{self.where} answers with {str(answer)[:80]}, not a tensor")
        return answer

    def _made(
        self, step: Step, values: dict[str, Any], lookup: Lookup | None, meter: Meter | None
    ) -> Any:
        call, args = step.call, step.args
        if isinstance(call, Operator):
            arguments = {name: _resolve(value, values) for name, value in args.items()}
            if meter is not None:
                if any(isinstance(one, JaggedIds) for one in arguments.values()):
                    raise ArtifactError(
                        f"{self.where} takes one id in each slot, and this sample has several"
                    )
                meter.admit(call.cost(arguments))
            return call(arguments, "meta" if lookup is None else "cpu")
        found = _resolve(args, values)
        if not isinstance(call, str):
            return call(*found)
        need(isinstance(found[0], Tensor | JaggedIds), "ids are %.80s", found[0])
        shape, taken = _shape_of(call, self.dims, *found)
        if meter is not None:
            meter.admit(taken)
        if lookup is None:
            kind = torch.int64 if call == PADDED else torch.float32
            return torch.empty(shape, dtype=kind, device="meta")
        return _look_up(call, lookup, *found)


# ---- in parts that are within the bounds ---------------------------------------------------------


class Running:
    """A graph with the tables that it reads."""

    def __init__(self, graph: ExportedGraph, tables: Mapping[str, RowTable]):
        self.graph, self.tables = graph, tables
        # Samples, or pairs of a query and an item, that are not known to be too many at a time.
        self._fit = 1 << 16

    def samples(self, fields: Fields) -> Tensor:
        """The answer for samples by field: [b, ...]."""
        count = self._count(fields)
        return self._in_parts(count, 1, 0, lambda a, b: _part(fields, count, a, b))

    def once(self, fields: Fields) -> Tensor:
        """The answer for all of these at once; TooLarge where that is too much."""
        with torch.inference_mode():
            return self.graph(fields, self._look_up)

    def pairs(self, query: Fields, size: int, items: Tensor) -> Tensor:
        """The answer for every query and items [n]: [size, n]."""
        return self._in_parts(len(items), size, 1, lambda a, b: {**query, "items": items[a:b]})

    def _count(self, fields: Fields) -> int:
        """How many samples these are."""
        for name, facts in self.graph.inputs.items():
            if facts["used"]:
                one = fields[name]
                places = math.prod(facts["shape"][1:]) if isinstance(one, Jagged) else 1
                return len(one) // max(1, places)
        return 1

    def _in_parts(
        self, count: int, each: int, axis: int, part: Callable[[int, int], Fields]
    ) -> Tensor:
        """`each`: how many samples one of `count` is; answers are joined along the axis."""
        answers: list[Tensor] = []
        first = 0
        with torch.inference_mode():
            while first < count or not answers:
                some = max(1, self._fit // max(1, each))
                last = min(count, first + some)
                try:
                    answers.append(self.graph(part(first, last), self._look_up))
                except TooLarge as error:
                    if last - first <= 1:
                        raise ArtifactError(str(error)) from error
                    self._fit = (last - first) // 2 * each
                    continue
                first = last
            return answers[0] if len(answers) == 1 else torch.cat(answers, axis)

    def _look_up(self, table: str, ids: Tensor | Jagged, how: str) -> Tensor:
        return self.tables[table].pooled(ids, how)


def _part(fields: Fields, count: int, first: int, last: int) -> dict[str, Tensor | Jagged]:
    """Samples first..last-1 of `count`."""
    if (first, last) == (0, count):
        return dict(fields)
    found: dict[str, Tensor | Jagged] = {}
    for name, one in fields.items():
        if isinstance(one, Jagged):
            each = len(one) // count  # lists of a sample
            found[name] = one.lists(first * each, last * each)
        else:
            found[name] = one[first:last]
    return found


# ---- rows of tables -----------------------------------------------------------------------------


def _shape_of(
    kind: str, dims: Mapping[str, int], ids: Tensor | JaggedIds, *rest: Any
) -> tuple[list[int], Cost]:
    """The shape of what a lookup gives, and what it takes."""
    shape = list(ids.shape)
    length = rest[-1] if kind in (LISTED, PADDED) else None
    if length is not None:
        need(type(length) is int and length >= 0 and len(shape) == 1, "lists of %s ids", length)
        shape.append(length)
    flat = ids.jagged.values.numel() if isinstance(ids, JaggedIds) else ids.numel()
    if kind == PADDED:
        return shape, cost(flat + 4 * math.prod(shape))
    table, dim = rest[0], rest[1]
    need(dims[table] == dim, "rows of %s, and table %r has %s", dim, table, dims[table])
    return [*shape, dim], cost((flat + 2 * math.prod(shape)) * dim)


def _look_up(kind: str, lookup: Lookup, ids: Tensor | JaggedIds, *rest: Any) -> Tensor:
    """What one of these nodes gives."""
    if kind in (LOOKUP, POOLED):
        table, how = rest[0], rest[2] if kind == POOLED else "sum"
        if isinstance(ids, Tensor):
            return lookup(table, ids, how)
        rows = lookup(table, ids.jagged, how)
        return rows.view(*ids.shape, rows.shape[-1])
    lists = ids.jagged if isinstance(ids, JaggedIds) else Jagged(ids, torch.arange(len(ids) + 1))
    if kind == PADDED:
        return lists.padded(rest[0])
    rows = lookup(rest[0], lists.values, "sum")
    places = lists.places(rest[2])
    if not len(rows):
        return rows.new_zeros(*places.shape, rows.shape[-1])
    return torch.where(places[..., None] >= 0, rows[places.clamp(min=0)], 0.0)


# ---- arguments ----------------------------------------------------------------------------------


class _Node(str):
    """The name of a node, where an argument is its value."""


def _decode(value: Any, known: set[str], used: set[str]) -> Any:
    """An argument as JSON has it -> with names of nodes, types and formats in their places."""
    if isinstance(value, list):
        return [_decode(one, known, used) for one in value]
    if not isinstance(value, dict):
        return value
    ((what, name),) = value.items()
    if what == "node":
        need(name in known, "a node %r is read before it is made", name)
        used.add(name)
        return _Node(name)
    if what == "float":
        return float(name)
    return DTYPES[name] if what == "dtype" else FORMATS[name]


def _resolve(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, _Node):
        return values[value]
    if isinstance(value, list):
        return [_resolve(one, values) for one in value]
    return value

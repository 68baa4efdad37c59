"""Graph: a model's dense computation as plain JSON, run node by node.

torch.export makes it (trace.py). Torch's own files of exported programs may hold pickles, and
reading them evaluates text; so the graph is written as a list of calls of operators, of which those
in operators/ alone are known, and each only computes tensors from tensors:

    {"name": "linear", "op": "aten.linear.default", "args": [{"node": "x"}, {"node": "w"}]}

The author of a graph may be anybody. So before every call its operator's rule checks the arguments,
and its cost must be within bounds. When a graph is opened, it is run once with shapes
alone, by the same rules. Shapes and costs within a graph follow from the shapes of its inputs:
those for which a run has passed are remembered, and then only rules that read values run again.

Rows come in at nodes `shoal.lookup`: ids in, rows of a table out. The tables stay outside. Of a
list for each sample, `shoal.pooled` has one row each, `shoal.listed` the rows of the last ids and
`shoal.padded` those ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from time import thread_time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.data.batch import Jagged
from shoal.serving.artifact.files import ArtifactError, damaged
from shoal.serving.artifact.operators.rule import Cost, Meter, Rule, TooLarge, cost, need
from shoal.serving.artifact.operators.table import (
    DTYPES,
    ELSEWHERE,
    FORMATS,
    MOST_AXES,
    NUMBERS,
    OPERATORS,
    Operator,
    operator,
)
from shoal.serving.artifact.tables import RowTable

LOOKUP, POOLED, LISTED = "shoal.lookup", "shoal.pooled", "shoal.listed"
PADDED = "shoal.padded"
MOST_PASSED = 4096  # shapes of inputs that a graph remembers
MOST_SECONDS_TO_PREPARE = 2.0  # of CPU time
OURS = (LOOKUP, POOLED, LISTED, PADDED)
# (table, ids, how rows of lists are pooled): rows
Lookup = Callable[[str, "Tensor | Jagged", str], Tensor]
Fields = Mapping[str, "Tensor | Jagged"]


class JaggedIds:
    """Ids of several per place, in the place of a tensor [b] or [b, s]: lookups sum their rows."""

    def __init__(self, jagged: Jagged, places: list[int]):
        self.jagged = jagged
        self.shape = (len(jagged) // max(1, math.prod(places)), *places)


class Step(NamedTuple):
    """One node: what it calls, and its arguments, in which names stand for other nodes' values."""

    name: str
    call: Callable | Operator | str
    args: Any  # by name for an operator, else in order
    used: set[str]
    value_rule: Rule | None = None  # of an operator whose rule looks into tensors
    compute: Callable[[Mapping[str, Any]], Any] | None = None  # from other nodes' values, no rule


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
        self.where = where
        self.dims = dims
        self._passed: set[Hashable] = set()  # shapes of inputs for which all rules were content
        with damaged(self.where):
            self._build(document, tensors)

    def _build(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.inputs: dict[str, dict[str, Any]] = {
            facts["name"]: facts for facts in document["inputs"]
        }
        self.tables: list[str] = list(document["tables"])
        self.constants = {name: tensors[key] for name, key in document["dense"].items()}
        for constant in self.constants.values():
            need(
                constant.dtype in DTYPES.values() and constant.dim() <= MOST_AXES,
                "a tensor of %s",
                constant.dtype,
            )
        self.output: str = document["output"]
        nodes = document["nodes"]
        need(len(nodes) <= 100_000, "%s nodes; 100000 are the most", len(nodes))
        node_names = {name for name, facts in self.inputs.items() if facts["used"]}
        node_names |= self.constants.keys()
        self.steps: list[Step] = []
        for node in nodes:
            step = self._step(node, node_names)
            need(step.name not in node_names, "two nodes are named %r", step.name)
            self.steps.append(step)
            node_names.add(step.name)
        need(self.output in node_names, "it has no node %r to answer with", self.output)
        # Values that no later node reads are freed.
        self.last: list[list[str]] = [[] for _ in self.steps]
        seen = {self.output, *self.inputs, *self.constants}
        for number in range(len(self.steps) - 1, -1, -1):
            used = self.steps[number].used
            self.last[number] = list(used - seen)
            seen |= used

    def _step(self, node: Mapping[str, Any], node_names: set[str]) -> Step:
        name, operation = str(node["name"]), node["op"]
        used: set[str] = set()
        args: Any = _decode(list(node["args"]), node_names, used)
        kwargs = {key: _decode(value, node_names, used) for key, value in node["kwargs"].items()}
        if kwargs.keys() & set(ELSEWHERE):
            raise ArtifactError(f"{self.where} says where a tensor lies: {min(kwargs)}")
        if operation in OPERATORS:
            call = operator(operation)
            args = call.named(args, kwargs)
            ordered, keywords = call.ordered(args, "cpu")
            compute = _prepared(call.function, ordered, keywords)
            return Step(name, call, args, used, call.rule if call.reads_values else None, compute)
        elif operation in OURS or operation in NUMBERS:
            need(not kwargs, "%s takes no %s", operation, list(kwargs))
            if operation in OURS:
                return Step(name, operation, args, used)
            function = NUMBERS[operation]
            return Step(name, function, args, used, None, _prepared(function, args, {}))
        else:
            raise ArtifactError(
                f"{self.where} calls {operation!r}, which is no operator of a graph"
            )

    # ---- running --------------------------------------------------------------------------------

    def __call__(self, inputs: Fields, lookup: Lookup, checked: bool = True) -> Tensor:
        """The answer for inputs by name; `lookup` gives rows.

        checked=False: without rules and bounds, for torch.export, where sizes are symbols.
        """
        input_values = self._input_values(inputs)
        values: dict[str, Any] = {**self.constants, **input_values}
        if not checked:
            return self._run(values, lookup, None)
        shapes = _shapes_of(input_values)
        if shapes in self._passed:
            return self._run_passed(values, lookup)
        answer = self._run(values, lookup, Meter(self.where, values.values()))
        if shapes is not None:
            if len(self._passed) >= MOST_PASSED:
                self._passed.clear()
            self._passed.add(shapes)
        return answer

    def _input_values(self, inputs: Fields) -> dict[str, Tensor | JaggedIds]:
        input_values: dict[str, Tensor | JaggedIds] = {}
        for name, facts in self.inputs.items():
            if facts["used"]:
                value = inputs[name]
                input_values[name] = (
                    JaggedIds(value, facts["shape"][1:]) if isinstance(value, Jagged) else value
                )
        return input_values

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
                result = self._run_step(step, values, lookup, meter)
            except (ArtifactError, TooLarge):
                raise
            except Exception as error:  # of many kinds, by rules, by torch and by tables
                raise self._damaged_at(step, error) from error
            values[step.name] = result
            if meter is not None:
                meter.add(result)
            for name in done:
                freed = values.pop(name)
                if meter is not None:
                    meter.remove(freed)
        return self._answer(values)

    def _run_passed(self, values: dict[str, Any], lookup: Lookup) -> Tensor:
        """Run node after node for inputs of shapes that have passed every rule before."""
        step = None
        try:
            for step, done in zip(self.steps, self.last):
                if step.compute is None:  # rows of tables
                    assert isinstance(step.call, str)
                    result = _look_up(step.call, lookup, *_resolve(step.args, values))
                else:
                    if step.value_rule is not None:
                        step.value_rule(_resolved(step.args, values))
                    result = step.compute(values)
                values[step.name] = result
                for name in done:
                    del values[name]
        except (ArtifactError, TooLarge):
            raise
        except Exception as error:  # of many kinds, by rules, by torch and by tables
            assert step is not None
            raise self._damaged_at(step, error) from error
        return self._answer(values)

    def _answer(self, values: dict[str, Any]) -> Tensor:
        answer = values[self.output]
        if not isinstance(answer, Tensor):
            raise ArtifactError(f"{self.where} answers with {str(answer)[:80]}, not a tensor")
        return answer

    def _damaged_at(self, step: Step, error: Exception) -> ArtifactError:
        text = (str(error).splitlines() or [type(error).__name__])[0][:300]
        return ArtifactError(f"{self.where} is damaged: {step.name}: {text}")

    def _run_step(
        self, step: Step, values: dict[str, Any], lookup: Lookup | None, meter: Meter | None
    ) -> Any:
        call, args = step.call, step.args
        if isinstance(call, Operator):
            arguments = _resolved(args, values)
            if meter is not None:
                if any(isinstance(one, JaggedIds) for one in arguments.values()):
                    raise ArtifactError(
                        f"{self.where} takes one id in each slot, and this sample has several"
                    )
                meter.admit(call.cost(arguments))
            return call(arguments, "meta" if lookup is None else "cpu")
        resolved = _resolve(args, values)
        if not isinstance(call, str):
            return call(*resolved)
        need(isinstance(resolved[0], Tensor | JaggedIds), "ids are %.80s", resolved[0])
        shape, taken = _shape_of(call, self.dims, *resolved)
        if meter is not None:
            meter.admit(taken)
        if lookup is None:
            kind = torch.int64 if call == PADDED else torch.float32
            return torch.empty(shape, dtype=kind, device="meta")
        return _look_up(call, lookup, *resolved)


# ---- in parts that are within the bounds ---------------------------------------------------------


class Running:
    """A graph with the tables that it reads."""

    def __init__(self, graph: ExportedGraph, tables: Mapping[str, RowTable]):
        self.graph = graph
        self.tables = tables
        # Samples, or pairs of a query and an item, that are not known to be too many at a time.
        self._fit = 1 << 16

    def samples(self, fields: Fields) -> Tensor:
        """The answer for samples by field: [b, ...]."""
        count = self._count(fields)
        return self._in_parts(count, 1, 0, lambda a, b: _part(fields, count, a, b))

    def once(self, fields: Fields) -> Tensor:
        """The answer for all samples in one run of the graph; raises TooLarge."""
        with torch.inference_mode():
            return self.graph(fields, self._look_up)

    def prepare(self, batch_size: int) -> None:
        """Run the graph once for batches of 1 to `batch_size` samples of nothing but padding.

        The first run of a batch size checks every rule, which for a small model takes longer than
        to compute its answer. A model that computes for long does not need all sizes prepared.
        """
        begun = thread_time()
        for size in range(1, batch_size + 1):
            self.samples(self._padding(size))
            if thread_time() - begun > MOST_SECONDS_TO_PREPARE:
                return

    def _padding(self, size: int) -> dict[str, Tensor]:
        """Inputs of `size` samples, all 0."""
        return {
            name: torch.zeros([size, *facts["shape"][1:]], dtype=DTYPES[facts["dtype"]])
            for name, facts in self.graph.inputs.items()
        }

    def pairs(self, query: Fields, size: int, items: Tensor) -> Tensor:
        """The answer for every query and items [n]: [size, n]."""
        return self._in_parts(len(items), size, 1, lambda a, b: {**query, "items": items[a:b]})

    def _count(self, fields: Fields) -> int:
        """How many samples these are."""
        for name, facts in self.graph.inputs.items():
            if facts["used"]:
                field = fields[name]
                places = math.prod(facts["shape"][1:]) if isinstance(field, Jagged) else 1
                return len(field) // max(1, places)
        return 1

    def _in_parts(
        self, count: int, unit_samples: int, axis: int, part: Callable[[int, int], Fields]
    ) -> Tensor:
        """Answers for `count` units of `unit_samples` samples each, joined along the axis."""
        answers: list[Tensor] = []
        first = 0
        with torch.inference_mode():
            while first < count or not answers:
                part_size = max(1, self._fit // max(1, unit_samples))
                last = min(count, first + part_size)
                try:
                    answers.append(self.graph(part(first, last), self._look_up))
                except TooLarge as error:
                    if last - first <= 1:
                        raise ArtifactError(str(error)) from error
                    self._fit = (last - first) // 2 * unit_samples
                    continue
                first = last
            return answers[0] if len(answers) == 1 else torch.cat(answers, axis)

    def _look_up(self, table: str, ids: Tensor | Jagged, pooling: str) -> Tensor:
        return self.tables[table].pooled(ids, pooling)


def _part(fields: Fields, count: int, first: int, last: int) -> dict[str, Tensor | Jagged]:
    """Samples first..last-1 of `count`."""
    if (first, last) == (0, count):
        return dict(fields)
    part: dict[str, Tensor | Jagged] = {}
    for name, field in fields.items():
        if isinstance(field, Jagged):
            lists_per_sample = len(field) // count
            part[name] = field.lists(first * lists_per_sample, last * lists_per_sample)
        else:
            part[name] = field[first:last]
    return part


def _shapes_of(input_values: Mapping[str, Tensor | JaggedIds]) -> Hashable:
    """All that shapes and costs within a graph depend on; None where values count too."""
    shapes = []
    for tensor in input_values.values():
        if not isinstance(tensor, Tensor):
            return None
        shapes.append((tensor.dtype, tensor.shape, tensor.stride()))
    return tuple(shapes)


# ---- rows of tables -----------------------------------------------------------------------------


def _shape_of(
    kind: str, dims: Mapping[str, int], ids: Tensor | JaggedIds, *rest: Any
) -> tuple[list[int], Cost]:
    """The shape of a lookup's result, and its cost."""
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
    """The rows, or ids, that a node of this kind looks up."""
    if kind in (LOOKUP, POOLED):
        table, pooling = rest[0], rest[2] if kind == POOLED else "sum"
        if isinstance(ids, Tensor):
            return lookup(table, ids, pooling)
        rows = lookup(table, ids.jagged, pooling)
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


def _decode(value: Any, node_names: set[str], used: set[str]) -> Any:
    """An argument as JSON has it -> with names of nodes, types and formats in their places."""
    if isinstance(value, list):
        return [_decode(one, node_names, used) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, name),) = value.items()
    if kind == "node":
        need(name in node_names, "a node %r is read before it is made", name)
        used.add(name)
        return _Node(name)
    if kind == "float":
        return float(name)
    return DTYPES[name] if kind == "dtype" else FORMATS[name]


def _resolve(value: Any, values: Mapping[str, Any]) -> Any:
    kind = type(value)
    if kind is _Node:
        return values[value]
    if kind is list:
        return [_resolve(one, values) for one in value]
    return value


def _resolved(arguments: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, with other nodes' values in the places of their names."""
    return {name: _resolve(value, values) for name, value in arguments.items()}


def _prepared(
    function: Callable, args: Sequence[Any], keywords: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], Any]:
    """A call of a function that finds its arguments among other nodes' values, quickly: which of
    them are values, and which are constants, is looked up once."""
    constants = list(args)
    nodes = [(place, str(arg)) for place, arg in enumerate(args) if type(arg) is _Node]
    lists = [(place, arg) for place, arg in enumerate(args) if type(arg) is list]

    def compute(values: Mapping[str, Any]) -> Any:
        arguments = constants.copy()
        for place, name in nodes:
            arguments[place] = values[name]
        for place, entries in lists:
            arguments[place] = [_resolve(entry, values) for entry in entries]
        if not keywords:
            return function(*arguments)
        return function(*arguments, **_resolved(keywords, values))

    return compute

"""Graph: a model's dense computation as plain JSON, run node by node.

torch.export makes it (trace.py). Torch's own files of exported programs may hold pickles, and
reading them evaluates text; so the graph is written as a list of calls of operators, of which those
below alone are known, and each only computes tensors from tensors:

    {"name": "linear", "op": "aten.linear.default", "args": [{"node": "x"}, {"node": "w"}]}

Rows come in at nodes `shoal.lookup`: ids in, rows of a table out. The tables stay outside. Of a
list for each sample, `shoal.pooled` has one row each, `shoal.listed` the rows of the last ids and
`shoal.padded` those ids.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from shoal.data.batch import Jagged
from shoal.runs.artifact.files import ArtifactError

LOOKUP, POOLED, LISTED = "shoal.lookup", "shoal.pooled", "shoal.listed"
PADDED = "shoal.padded"
NODES = 100_000
CHECKED = 64  # samples for which the next three hold
ELEMENTS = 1 << 30  # numbers of one tensor that a graph makes
HELD = 4 * ELEMENTS  # numbers that it holds at a time
WORK = 1 << 41  # numbers and products that it computes in all
LARGEST = 1 << 62  # number that is computed with
ELSEWHERE = ("device", "layout", "pin_memory")  # where a tensor lies is the machine's affair
_KNOWN = """
    _fft_c2r _fft_r2c _log_softmax _safe_softmax _softmax _to_copy _unsafe_view abs
    adaptive_avg_pool1d add addmm alias all amax amin any arange argmax argsort avg_pool1d
    avg_pool2d baddbmm batch_norm bitwise_and bitwise_not bitwise_or bmm broadcast_tensors
    bucketize cat chunk clamp clamp_max clamp_min clone constant_pad_nd contiguous conv1d conv2d
    cos cosine_similarity count_nonzero cumsum detach diagonal div dot dropout einsum elu embedding
    eq exp expand expand_as fft_irfft fft_rfft flatten flip floor floor_divide full full_like
    gather ge gelu glu group_norm gru gt hardtanh index index_put index_select isfinite isnan
    layer_norm le leaky_relu lift_fresh_copy linalg_vector_norm linear log log1p log_softmax
    logical_and logical_not logical_or lt masked_fill matmul max max_pool1d max_pool2d maximum
    mean min minimum mish mm mul mv native_layer_norm ne neg new_full new_ones new_zeros norm
    ones ones_like outer pad permute pow prelu reciprocal relu remainder repeat
    repeat_interleave reshape rms_norm rsqrt rsub scalar_tensor scaled_dot_product_attention
    scatter scatter_add searchsorted select selu sigmoid sign silu sin slice softmax softplus
    sort split split_with_sizes sqrt square squeeze stack sub sum swapaxes sym_numel sym_size t
    tanh tile to topk transpose tril triu type_as unbind unflatten unfold unsqueeze view view_as
    view_as_complex view_as_real where zeros zeros_like
"""
_NUMBERS = "add sub mul floordiv mod neg ge le gt lt eq ne truediv"
OPERATORS = frozenset(_KNOWN.split())


def _of_numbers(function: Callable) -> Callable:
    """Arithmetic of sizes alone: lists, text and numbers of any length could grow without end."""

    def checked(*numbers: Any) -> Any:
        for one in numbers:
            if isinstance(one, torch.SymInt | torch.SymFloat):  # while a graph is traced again
                continue
            if not isinstance(one, int | float) or abs(one) > LARGEST:
                raise TypeError(f"a number is computed from {str(one)[:80]}")
        return function(*numbers)

    return checked


def _item(made: Any, place: Any) -> Any:
    """One of several tensors that an operator made."""
    if not isinstance(made, list | tuple) or not isinstance(place, int):
        raise TypeError(f"item {str(place)[:80]} of a {type(made).__name__}")
    return made[place]


PLAIN: dict[str, Callable] = {
    **{f"operator.{name}": _of_numbers(getattr(operator, name)) for name in _NUMBERS.split()},
    "operator.getitem": _item,
    "math.max": _of_numbers(max),
    "math.min": _of_numbers(min),
    "torch.sym_max": _of_numbers(max),
    "torch.sym_min": _of_numbers(min),
    "math.trunc": _of_numbers(math.trunc),
}
DTYPES = {
    str(one).removeprefix("torch."): one
    for one in (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.bool)
}
FORMATS = {
    str(one).removeprefix("torch."): one for one in (torch.contiguous_format, torch.preserve_format)
}
# (table, ids, how rows of lists are pooled): rows
Lookup = Callable[[str, "Tensor | Jagged", str], Tensor]


class Lists:
    """Ids of several per place, in the place of a tensor [b] or [b, s]: lookups sum their rows."""

    def __init__(self, jagged: Jagged, places: list[int]):
        self.jagged, self.shape = jagged, (len(jagged) // math.prod(places), *places)


class Graph:
    """A graph that was read, ready to run."""

    def __init__(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str):
        self.where = where
        try:
            self._build(document, tensors)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, ArtifactError):
                raise
            raise ArtifactError(f"{where} is damaged: {error}") from error

    def _build(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.inputs: dict[str, dict[str, Any]] = {one["name"]: one for one in document["inputs"]}
        self.tables: list[str] = list(document["tables"])
        self.constants = {name: tensors[key] for name, key in document["dense"].items()}
        self.output: str = document["output"]
        nodes = document["nodes"]
        if len(nodes) > NODES:
            raise ArtifactError(f"{self.where} has {len(nodes)} nodes; {NODES} are the most")
        known = {name for name, facts in self.inputs.items() if facts["used"]} | {*self.constants}
        self.steps = []
        for node in nodes:
            function = self._function(node["op"])
            used: set[str] = set()
            args = _decode(list(node["args"]), known)
            kwargs = {key: _decode(value, known) for key, value in node["kwargs"].items()}
            if kwargs.keys() & set(ELSEWHERE):
                raise ArtifactError(f"{self.where} says where a tensor lies: {min(kwargs)}")
            _names([args, *kwargs.values()], used)
            self.steps.append((str(node["name"]), function, args, kwargs, used))
            known.add(str(node["name"]))
        if self.output not in known:
            raise ArtifactError(f"{self.where} has no node {self.output!r} to answer with")
        # What no later node reads is let go of.
        self.last: list[list[str]] = [[] for _ in self.steps]
        seen = {self.output, *self.inputs, *self.constants}
        for number in range(len(self.steps) - 1, -1, -1):
            used = self.steps[number][-1]
            self.last[number] = list(used - seen)
            seen |= used

    def _function(self, name: str) -> Callable | str:
        if name in _LOOKUPS:
            return name
        if name in PLAIN:
            return PLAIN[name]
        room, _, rest = name.partition(".")
        operation, _, overload = rest.partition(".")
        if room != "aten" or operation not in OPERATORS:
            raise ArtifactError(f"{self.where} calls {name!r}, which is no operator of a graph")
        if operation in ("view", "_unsafe_view"):  # how a result lies in memory is the machine's
            operation, overload = "reshape", "default"
        found = getattr(getattr(torch.ops.aten, operation), overload)
        # Nothing else that the object of an operator has (its methods lead anywhere), and nothing
        # that writes into what it is given.
        if not isinstance(found, torch._ops.OpOverload) or found._schema.is_mutable:
            raise ArtifactError(f"{self.where} calls {name!r}, which is no operator of a graph")
        return found

    def __call__(self, inputs: Mapping[str, Tensor | Jagged], lookup: Lookup) -> Tensor:
        """The answer for inputs by name; `lookup` gives rows."""
        values: dict[str, Any] = dict(self.constants)
        for name, facts in self.inputs.items():
            if not facts["used"]:
                continue
            given = inputs[name]
            values[name] = Lists(given, facts["shape"][1:]) if isinstance(given, Jagged) else given
        for (name, function, args, kwargs, _), done in zip(self.steps, self.last):
            found = _resolve(args, values)
            if isinstance(function, str):
                values[name] = _LOOKUPS[function](lookup, *found)
            elif found and isinstance(found[0], Lists):
                values[name] = self._of_lists(function, found)
            else:
                more = {key: _resolve(value, values) for key, value in kwargs.items()}
                values[name] = function(*found, **more)
            for one in done:
                del values[one]
        return values[self.output]

    def _of_lists(self, function: Callable, found: list[Any]) -> int:
        if function is torch.ops.aten.sym_size.int:
            return found[0].shape[found[1]]
        raise ValueError(f"{self.where} takes one id in each slot, and this sample has several")

    def check(self, dims: Mapping[str, int]) -> None:
        """Refuse a graph that would make tensors, or compute, beyond all measure: it is gone
        through with shapes alone, before any memory is taken.
        """
        from torch.utils.flop_counter import FlopCounterMode

        name, work, held = "inputs", 0, 0
        sizes: dict[str, int] = {}
        try:
            values: dict[str, Any] = {one: t.to("meta") for one, t in self.constants.items()}
            for name, facts in self.inputs.items():
                shape = [CHECKED if n is None else n for n in facts["shape"]]
                values[name] = torch.empty(shape, dtype=DTYPES[facts["dtype"]], device="meta")
            with FlopCounterMode(display=False) as counter:
                for (name, function, args, kwargs, _), done in zip(self.steps, self.last):
                    found = _resolve(args, values)
                    more = {key: _resolve(value, values) for key, value in kwargs.items()}
                    if isinstance(function, str):
                        values[name] = _shape_of(function, dims, *found)
                    elif _makes(function):
                        values[name] = function(*found, **more, device="meta")
                    else:
                        values[name] = function(*found, **more)
                    sizes[name] = self._numbers(values[name])
                    work += sizes[name] * _window(function, found)
                    held += sizes[name]
                    if held > HELD or work + counter.get_total_flops() // 2 > WORK:
                        raise ArtifactError(
                            f"{self.where} holds more than {HELD} numbers or computes more than "
                            f"{WORK} for {CHECKED} samples"
                        )
                    for one in done:
                        held -= sizes.get(one, 0)
                        del values[one]
            if not isinstance(values[self.output], Tensor):
                raise ArtifactError(f"{self.where} answers with {values[self.output]!r}")
        except ArtifactError:
            raise
        except Exception as error:  # whatever torch says of arguments that do not fit
            raise ArtifactError(f"{self.where} is damaged: {name}: {error}") from error

    def _numbers(self, made: Any) -> int:
        """How many numbers a node makes; refuses too many."""
        tensors = [one for one in _flat(made) if isinstance(one, Tensor)]
        for one in tensors:
            if one.numel() > ELEMENTS:
                raise ArtifactError(
                    f"{self.where} makes a tensor of {one.numel()} numbers for {CHECKED} samples; "
                    f"{ELEMENTS} are the most"
                )
        return sum(one.numel() for one in tensors)


def _flat(made: Any) -> list[Any]:
    return list(made) if isinstance(made, list | tuple) else [made]


def _makes(function: Callable | str) -> bool:
    """Whether an operator makes a tensor from none: it must be told where."""
    if not isinstance(function, torch._ops.OpOverload):
        return False
    arguments = function._schema.arguments
    takes = any("Tensor" in str(one.type) for one in arguments)
    return not takes and any(one.name == "device" for one in arguments)


def _window(function: Callable | str, found: list[Any]) -> int:
    """How many numbers one of a pool is made from, at most; 1 for all others."""
    return math.prod(found[0].shape[2:]) if "pool" in str(function) else 1


def _look_up(lookup: Lookup, ids: Tensor | Lists, table: str, _dim: int = 0) -> Tensor:
    return _pooled(lookup, ids, table, 0, "sum")


def _pooled(lookup: Lookup, ids: Tensor | Lists, table: str, _dim: int, how: str) -> Tensor:
    if isinstance(ids, Lists):
        rows = lookup(table, ids.jagged, how)
        return rows.view(*ids.shape, rows.shape[-1])
    return lookup(table, ids, how)


def _listed(lookup: Lookup, ids: Tensor | Lists, table: str, _dim: int, length: int) -> Tensor:
    lists = _one_each(ids)
    rows = lookup(table, lists.values, "sum")
    places = lists.places(length)
    if not len(rows):
        return rows.new_zeros(*places.shape, rows.shape[-1])
    return torch.where(places[..., None] >= 0, rows[places.clamp(min=0)], 0.0)


def _padded(_lookup: Lookup, ids: Tensor | Lists, length: int) -> Tensor:
    return _one_each(ids).padded(length)


def _one_each(ids: Tensor | Lists) -> Jagged:
    return ids.jagged if isinstance(ids, Lists) else Jagged(ids, torch.arange(len(ids) + 1))


_LOOKUPS: dict[str, Callable] = {
    LOOKUP: _look_up,
    POOLED: _pooled,
    LISTED: _listed,
    PADDED: _padded,
}


def _shape_of(kind: str, dims: Mapping[str, int], ids: Tensor, *rest: Any) -> Tensor:
    """What a lookup would give, without memory."""
    if kind == PADDED:
        return torch.empty((*ids.shape, rest[0]), dtype=torch.int64, device="meta")
    length = (rest[2],) if kind == LISTED else ()
    return torch.empty((*ids.shape, *length, dims[rest[0]]), device="meta")


class _Node(str):
    """The name of a node, where an argument is its value."""


def _decode(value: Any, known: set[str]) -> Any:
    """An argument as JSON has it -> with names of nodes, types and formats in their places."""
    if isinstance(value, list):
        return [_decode(one, known) for one in value]
    if not isinstance(value, dict):
        return value
    ((what, name),) = value.items()
    if what == "node":
        if name not in known:
            raise ArtifactError(f"a node {name!r} is read before it is made")
        return _Node(name)
    if what == "float":
        return float(name)
    allowed: dict[str, Any] = {"dtype": DTYPES, "memory_format": FORMATS}[what]  # type: ignore[assignment]
    return allowed[name]


def _names(value: Any, found: set[str]) -> None:
    if isinstance(value, _Node):
        found.add(str(value))
    elif isinstance(value, list):
        for one in value:
            _names(one, found)


def _resolve(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, _Node):
        return values[value]
    if isinstance(value, list):
        return [_resolve(one, values) for one in value]
    return value

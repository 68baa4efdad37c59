"""The operators that a graph may call, and the rule of each. What is not here is not called.

To allow another: name it below, with its overload, beside the rule that fits it, and give
tests/fuzz/operators.py an example of it; the tests then call it with hostile arguments.
"""

from __future__ import annotations

import math
import operator as python
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from shoal.serving.artifact.operators import indexing, products, shapes
from shoal.serving.artifact.operators.rule import READ_VALUES, Arguments, Cost, Rule, need

MOST_AXES = 8
LARGEST = 1 << 62  # number that is computed with
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.int64,
        torch.int32,
        torch.bool,
    )
}
FORMATS = {
    str(memory_format).removeprefix("torch."): memory_format
    for memory_format in (torch.contiguous_format, torch.preserve_format)
}
ELSEWHERE = ("device", "layout", "pin_memory")  # where a tensor lies is the machine's affair
_ALLOWED: dict[Rule, str] = {
    shapes.elementwise: """
        _to_copy.default abs.default add.Tensor addcmul.default alias.default atan2.default
        bitwise_and.Tensor bitwise_not.default bitwise_or.Tensor ceil.default clamp.default
        clamp_max.default clamp_min.default clone.default cos.default detach.default div.Tensor
        elu.default eq.Scalar eq.Tensor exp.default floor.default full_like.default ge.Scalar
        ge.Tensor gelu.default gt.Scalar gt.Tensor hardtanh.default isfinite.default isnan.default
        le.Scalar le.Tensor leaky_relu.default lift_fresh_copy.default log.default log1p.default
        logical_and.default logical_not.default logical_or.default lt.Scalar lt.Tensor
        masked_fill.Scalar maximum.default minimum.default mul.Scalar mul.Tensor ne.Scalar ne.Tensor
        neg.default ones_like.default pow.Tensor_Scalar reciprocal.default relu.default
        rsqrt.default rsub.Scalar sigmoid.default sign.default silu.default sin.default
        softplus.default sqrt.default square.default sub.Tensor tanh.default where.Scalar
        where.ScalarOther where.ScalarSelf where.self zeros_like.default
    """,
    shapes.dividing: "div.Tensor_mode floor_divide.default remainder.Scalar",
    shapes.making: """
        full.default new_full.default new_ones.default new_zeros.default ones.default
        scalar_tensor.default zeros.default
    """,
    shapes.arange: "arange.default arange.start arange.start_step",
    shapes.along_axes: """
        _log_softmax.default _softmax.default all.dim amax.default amin.default any.dim
        argmax.default batch_norm.default cumsum.default dropout.default layer_norm.default
        linalg_vector_norm.default log_softmax.int logsumexp.default max.dim mean.default mean.dim
        min.dim native_layer_norm.default softmax.int sort.default sum.default sum.dim_IntList
        topk.default
    """,
    shapes.rfft: "fft_rfft.default",
    shapes.irfft: "fft_irfft.default",
    shapes.view: """
        _unsafe_view.default diagonal.default flip.default permute.default prelu.default
        reshape.default select.int slice.Tensor squeeze.dim squeeze.dims transpose.int
        unsqueeze.default view.default view_as_complex.default
    """,
    shapes.expand: "expand.default",
    shapes.splitting: "split.Tensor split_with_sizes.default unbind.int",
    shapes.joining: "cat.default stack.default",
    shapes.padding: "constant_pad_nd.default pad.default",
    indexing.index_select: "index_select.default",
    indexing.embedding: "embedding.default",
    indexing.gather: "gather.default",
    indexing.scatter: "scatter.value scatter_add.default",
    indexing.index: "index.Tensor",
    indexing.index_put: "index_put.default",
    indexing.searchsorted: "searchsorted.Tensor",
    products.product: "addmm.default bmm.default linear.default matmul.default mm.default",
    products.einsum: "einsum.default",
    products.conv: "conv1d.default conv2d.default",
    products.attention: "scaled_dot_product_attention.default",
    products.gru: "gru.input",
}
OPERATORS: dict[str, Rule] = {
    f"aten.{name}": rule for rule, names in _ALLOWED.items() for name in names.split()
}


class Operator:
    """An operator of torch that is called by the names of its arguments, after its rule."""

    def __init__(self, name: str):
        operation, overload = name.removeprefix("aten.").split(".")
        if operation in ("view", "_unsafe_view"):  # how a result lies in memory is the machine's
            operation, overload = "reshape", "default"
        self.rule = OPERATORS[name]
        self.reads_values = self.rule in READ_VALUES
        self.function: Callable = getattr(getattr(torch.ops.aten, operation), overload)
        arguments = self.function._schema.arguments
        self.needs_place = any(argument.name == "device" for argument in arguments) and not any(
            "Tensor" in str(argument.type) for argument in arguments
        )
        arguments = [argument for argument in arguments if argument.name not in ELSEWHERE]
        self.names = [argument.name for argument in arguments if not argument.kwarg_only]
        self.keywords = [argument.name for argument in arguments if argument.kwarg_only]
        self.types = {
            argument.name: _type(argument.real_type, argument.name) for argument in arguments
        }
        self.defaults = {
            argument.name: argument.default_value
            for argument in arguments
            if argument.has_default_value()
        }

    def named(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
        """Arguments by name, those left out as torch has them."""
        need(len(args) <= len(self.names), "%s arguments; %s are the most", len(args), self.names)
        arguments = dict(zip(self.names, args))
        for name, value in kwargs.items():
            need(name in self.types and name not in arguments, "an argument %s", name)
            arguments[name] = value
        missing = self.types.keys() - arguments.keys() - self.defaults.keys()
        need(not missing, "it lacks %s", sorted(missing))
        return {**self.defaults, **arguments}

    def cost(self, arguments: Arguments) -> Cost:
        """The cost of a call; refuses arguments that its types and its rule do not allow."""
        for name, right in self.types.items():
            value = arguments[name]
            need(right(value), "%s is %.80s", name, value)
        return self.rule(arguments)

    def ordered(self, arguments: Arguments, place: str) -> tuple[tuple[Any, ...], Arguments]:
        """Arguments as the call takes them; `place`: where tensors are made, cpu or meta."""
        keywords = {name: arguments[name] for name in self.keywords}
        if self.needs_place:
            keywords["device"] = place
        return tuple(arguments[name] for name in self.names), keywords

    def __call__(self, arguments: Arguments, place: str) -> Any:
        """The call itself; `place`: where tensors are made, cpu or meta."""
        args, keywords = self.ordered(arguments, place)
        return self.function(*args, **keywords)


@cache
def operator(name: str) -> Operator:
    """One of OPERATORS."""
    return Operator(name)


# ---- types of arguments -------------------------------------------------------------------------

Check = Callable[[Any], bool]


def _tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() <= MOST_AXES


def _whole(value: Any) -> bool:
    no_end = (1 << 63) - 1  # of a slice
    return type(value) is int and (abs(value) <= LARGEST or value == no_end)


def _number(value: Any) -> bool:
    return isinstance(value, float | bool) or _whole(value)


_CHECKS: dict[str, Check] = {
    "Tensor": _tensor,
    "int": _whole,
    "float": lambda value: type(value) is float or _whole(value),
    "number": _number,
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "ScalarType": lambda value: isinstance(value, torch.dtype),
    "MemoryFormat": lambda value: isinstance(value, torch.memory_format),
}


def _type(kind: Any, name: str) -> Check:
    """A check that a value is of a type of torch's schemas."""
    text = str(kind)
    if text.startswith("Optional["):
        inner = _type(kind.getElementType(), name)
        return lambda value: value is None or inner(value)
    if text.startswith("List["):
        inner = _type(kind.getElementType(), name)
        return lambda value: isinstance(value, list) and all(map(inner, value))
    if text == "Tensor" and name == "other":  # torch takes a plain number there
        return lambda value: _tensor(value) or _number(value)
    return _CHECKS[text]


# ---- plain numbers: sizes, and what is computed from them ---------------------------------------

_NAMES = "add sub mul floordiv mod neg ge le gt lt eq ne truediv"


def _of_numbers(function: Callable) -> Callable:
    """Arithmetic of numbers alone: lists, text and numbers of any length could grow without end."""

    def checked(*numbers: Any) -> Any:
        for number in numbers:
            if isinstance(number, torch.SymInt | torch.SymFloat):  # while a graph is traced again
                continue
            if not isinstance(number, int | float) or abs(number) > LARGEST:
                raise TypeError(f"a number is computed from {str(number)[:80]}")
        return function(*numbers)

    return checked


def _item(tensors: Any, place: Any) -> Any:
    """One of several tensors that an operator made."""
    if not isinstance(tensors, list | tuple) or not isinstance(place, int):
        raise TypeError(f"item {str(place)[:80]} of a {type(tensors).__name__}")
    return tensors[place]


def _size(tensor: Any, axis: Any) -> int:
    """The size of an axis of a tensor, or of lists in its place."""
    if not isinstance(axis, int):
        raise TypeError(f"the size of axis {str(axis)[:80]}")
    return tensor.shape[axis]


NUMBERS: dict[str, Callable] = {
    **{f"operator.{name}": _of_numbers(getattr(python, name)) for name in _NAMES.split()},
    "operator.getitem": _item,
    "aten.sym_size.int": _size,
    "aten.sym_numel.default": lambda tensor: math.prod(tensor.shape),
    "math.max": _of_numbers(max),
    "math.min": _of_numbers(min),
    "torch.sym_max": _of_numbers(max),
    "torch.sym_min": _of_numbers(min),
    "math.trunc": _of_numbers(math.trunc),
}

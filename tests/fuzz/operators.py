"""Target: every operator that a graph of an artifact may call, with hostile arguments.

An input is an operator's example with one to three arguments changed: other shapes, types, strides
and values of tensors, axes and sizes at edges. It is refused by a rule, refused by torch, or
answered; never may it read or write outside its arrays. So every tensor lies before or behind a
page that nobody can read, and the rest of its own pages must stay as it was.
"""

import ctypes
import itertools
import math
import mmap
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fuzz.mutate import EDGES
from shoal.serving.artifact.operators.rule import Meter, room
from shoal.serving.artifact.operators.table import OPERATORS, Operator, operator

PAGE, ROOM = mmap.PAGESIZE, 1 << 13  # bytes of one tensor, at most
SLOTS = 24
TYPES = (torch.float32, torch.int64, torch.float64, torch.int32, torch.bool, torch.float16)
TYPES += (torch.complex64,)
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 33)
INTS = (*range(-5, 9), *EDGES)
FLOATS = (0.0, -0.0, 1.0, -1.5, 1e-38, 1e38, 1e308, math.inf, -math.inf, math.nan)
TEXTS = ("", "x", "none", "tanh", "ortho", "floor", "constant", "reflect", "ij,jk->ik", "...", "i")
MAP = {torch.float32: 4, torch.int64: 8, torch.float64: 8, torch.int32: 4, torch.bool: 1}
MAP |= {torch.float16: 2, torch.complex64: 8}


class Made:
    """A tensor of an example: [3, 4] of float32 unless it says more; whole numbers are below 3."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32):
        self.shape, self.dtype = shape, dtype


class Guarded:
    """Memory for tensors, each between two pages that nobody can read."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, SLOTS * (ROOM + PAGE) + PAGE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for slot in range(SLOTS + 1):
            start = first + slot * (ROOM + PAGE)
            assert not ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), PAGE, 0)
        self.used: list[tuple[int, bytes]] = []

    def flat(self, rng: random.Random, count: int, dtype: torch.dtype) -> Tensor:
        """A tensor [count] that ends where its memory ends, or begins where that begins."""
        slot = len(self.used)
        start, width = slot * (ROOM + PAGE) + PAGE, MAP[dtype]
        self.memory[start : start + ROOM] = bytes(ROOM)
        at = start if rng.random() < 0.3 else start + ROOM - count * width
        made = torch.frombuffer(
            self.memory, dtype=dtype, count=max(1, count), offset=min(at, start + ROOM - width)
        )[:count]
        self.used.append((start, b""))
        return made

    def keep(self) -> None:
        """Remember what is there now."""
        self.used = [(start, self.memory[start : start + ROOM]) for start, _ in self.used]

    def check(self) -> None:
        """Nothing may have been written; the memory is free again."""
        for start, before in self.used:
            now = self.memory[start : start + ROOM]
            assert now == before, "an operator wrote into its arguments"
        self.used = []


def tensor(rng: random.Random, memory: Guarded, one: Made) -> Tensor:
    """A tensor as described, in one of many layouts."""
    shape, count = list(one.shape), math.prod(one.shape)
    way = rng.random()
    if len(memory.used) >= SLOTS or room(shape) * MAP[one.dtype] > ROOM // 4:
        return torch.zeros(shape, dtype=one.dtype)
    if way < 0.15 and shape:  # stretched
        axis = rng.randrange(len(shape))
        small = [1 if k == axis else n for k, n in enumerate(shape)]
        return _fill(rng, memory.flat(rng, math.prod(small), one.dtype)).view(small).expand(shape)
    if way < 0.3 and len(shape) > 1:  # the other way round
        back = _fill(rng, memory.flat(rng, count, one.dtype)).view(shape[::-1])
        return back.permute(*range(len(shape))[::-1])
    if way < 0.45 and shape:  # every second
        wide = [*shape[:-1], 2 * shape[-1]]
        return _fill(rng, memory.flat(rng, math.prod(wide), one.dtype)).view(wide)[..., 1::2]
    return _fill(rng, memory.flat(rng, count, one.dtype)).view(shape)


def _fill(rng: random.Random, x: Tensor) -> Tensor:
    """Values: mostly between 0 and 1, or below 3; some at edges."""
    edges = rng.random() < 0.5
    values: list[Any] = []
    for _ in range(len(x)):
        if x.dtype.is_floating_point or x.dtype.is_complex:
            values.append(rng.choice(FLOATS) if rng.random() < 0.1 else rng.random())
        else:
            values.append(rng.choice(INTS) if edges else rng.randrange(3))
    x.copy_(torch.tensor(values, dtype=torch.float64 if x.dtype.is_floating_point else None))
    return x


# ---- examples: arguments that a rule allows -----------------------------------------------------

I = torch.int64  # noqa: E741
X, IDS = Made(3, 4), Made(3, 4, dtype=I)
Args = tuple[Any, ...]
EXAMPLES: dict[str, list[Args]] = {
    "clamp.default": [(X, 0, None)],
    "clamp_max.default": [(X, 1)],
    "clamp_min.default": [(X, 1)],
    "masked_fill.Scalar": [(X, Made(3, 1, dtype=torch.bool), -1e9)],
    "where.self": [(Made(3, 4, dtype=torch.bool), X, Made(4))],
    "where.Scalar": [(Made(3, 4, dtype=torch.bool), 1.0, 2.0)],
    "where.ScalarOther": [(Made(3, 4, dtype=torch.bool), X, 2.0)],
    "where.ScalarSelf": [(Made(3, 4, dtype=torch.bool), 1.0, X)],
    "bitwise_and.Tensor": [(IDS, IDS)],
    "bitwise_or.Tensor": [(IDS, IDS)],
    "bitwise_not.default": [(IDS,)],
    "div.Tensor_mode": [(IDS, IDS, "trunc"), (X, X, "floor")],
    "floor_divide.default": [(IDS, 16), (IDS, IDS)],
    "remainder.Scalar": [(IDS, 16)],
    "dropout.default": [(X, 0.5, False)],
    "prelu.default": [(X, Made(4)), (X, Made(1))],
    "full.default": [([3, 4], 1.0)],
    "full_like.default": [(X, 1.0)],
    "new_full.default": [(X, [2, 3], 1.0)],
    "new_ones.default": [(X, [2, 3])],
    "new_zeros.default": [(X, [2, 3])],
    "ones.default": [([3, 4],)],
    "zeros.default": [([3, 4],)],
    "arange.default": [(8,)],
    "arange.start": [(2, 8)],
    "arange.start_step": [(2, 8, 3)],
    "all.dim": [(X, 1)],
    "any.dim": [(X, -1, True)],
    "max.dim": [(X, 1)],
    "min.dim": [(X, 1)],
    "mean.dim": [(X, [0, 1])],
    "sum.dim_IntList": [(X, [1]), (IDS, [0])],
    "amax.default": [(X, [1])],
    "amin.default": [(X, [0])],
    "cumsum.default": [(X, 1)],
    "argmax.default": [(X, 1)],
    "logsumexp.default": [(X, [1])],
    "softmax.int": [(X, 1)],
    "log_softmax.int": [(X, 0)],
    "_softmax.default": [(X, 1, False)],
    "_log_softmax.default": [(X, 1, False)],
    "linalg_vector_norm.default": [(X, 2.0, [-1], True)],
    "sort.default": [(X, 1), (IDS, 0)],
    "topk.default": [(X, 2, 1)],
    "layer_norm.default": [(X, [4], Made(4), Made(4)), (X, [3, 4])],
    "native_layer_norm.default": [(X, [4], Made(4), Made(4), 1e-5)],
    "batch_norm.default": [(X, *[Made(4)] * 4, False, 0.1, 1e-5, False)],
    "fft_rfft.default": [(X, None, 1, "ortho"), (Made(8, 3), 8, 0)],
    "fft_irfft.default": [(Made(3, 5, 2, dtype=torch.complex64), 8, 1, "ortho")],
    "view.default": [(X, [2, -1])],
    "_unsafe_view.default": [(X, [12])],
    "reshape.default": [(X, [2, 6])],
    "expand.default": [(Made(3, 1), [2, 3, 5])],
    "permute.default": [(Made(2, 3, 4), [2, 0, 1])],
    "transpose.int": [(X, 0, -1)],
    "flip.default": [(X, [0])],
    "squeeze.dim": [(Made(3, 1), 1)],
    "squeeze.dims": [(Made(3, 1), [1])],
    "diagonal.default": [(Made(2, 3, 4), 1, 1, 2)],
    "unsqueeze.default": [(X, 2)],
    "select.int": [(X, 1, 3)],
    "slice.Tensor": [(X, 1, 1, (1 << 63) - 1, 2)],
    "split.Tensor": [(X, 2, 1)],
    "split_with_sizes.default": [(X, [1, 3], 1)],
    "unbind.int": [(X, 1)],
    "view_as_complex.default": [(Made(3, 4, 2),)],
    "cat.default": [([X, Made(3, 2)], 1)],
    "stack.default": [([X, X], 2)],
    "constant_pad_nd.default": [(X, [1, 2, 0, 1], 0.5)],
    "pad.default": [(X, [1, 0])],
    "index_select.default": [(X, 1, Made(5, dtype=I))],
    "embedding.default": [(X, Made(2, 5, dtype=I))],
    "gather.default": [(X, 1, Made(3, 2, dtype=I))],
    "scatter.value": [(X, 1, Made(3, 2, dtype=I), 7.0)],
    "scatter_add.default": [(X, 1, Made(3, 2, dtype=I), Made(3, 2))],
    "index.Tensor": [(X, [Made(5, dtype=I)]), (X, [None, Made(5, dtype=I)])],
    "index_put.default": [(X, [Made(5, dtype=I), Made(5, dtype=I)], Made(5), True)],
    "searchsorted.Tensor": [(Made(7), X), (Made(3, 7), X)],
    "mm.default": [(X, Made(4, 5))],
    "addmm.default": [(Made(5), X, Made(4, 5))],
    "bmm.default": [(Made(2, 3, 4), Made(2, 4, 5))],
    "matmul.default": [
        (Made(2, 3, 4), Made(4, 5)),
        (Made(2, 1, 3, 4), Made(3, 4, 2)),
        (X, Made(4)),
    ],
    "linear.default": [(Made(2, 3, 4), Made(5, 4), Made(5)), (X, Made(5, 4))],
    "einsum.default": [("bpd,pde->bpe", [Made(2, 3, 4), Made(3, 4, 5)])],
    "conv1d.default": [(Made(2, 4, 9), Made(6, 2, 3), Made(6), [1], [1], [2], 2)],
    "conv2d.default": [(Made(2, 1, 5, 4), Made(3, 1, 2, 4), Made(3))],
    "scaled_dot_product_attention.default": [
        (Made(2, 2, 3, 4), Made(2, 2, 5, 4), Made(2, 2, 5, 3), Made(2, 1, 3, 5)),
        (Made(2, 3, 4), Made(2, 3, 4), Made(2, 3, 4), None, 0.0, True),
    ],
    "gru.input": [
        (
            *(Made(2, 3, 4), Made(1, 2, 5), [Made(15, 4), Made(15, 5), Made(15), Made(15)]),
            *(True, 1, 0.0, False, False, True),
        )
    ],
}
PLAIN = {"Tensor": X, "number": 1.5, "float": 1.0, "int": 1, "bool": False, "str": "none"}


def examples(name: str) -> list[Args]:
    """Arguments of an operator in their order; those that have a default may be left out."""
    found = EXAMPLES.get(name.removeprefix("aten."))
    if found is not None:
        return found
    schema = operator(name).function._schema
    needed = [one for one in schema.arguments if not one.has_default_value()]
    return [tuple(PLAIN[str(one.type)] for one in needed)]


# ---- hostile arguments --------------------------------------------------------------------------


def hostile(rng: random.Random, value: Any) -> Any:
    """Another value in the place of one: mostly of its kind."""
    if rng.random() < 0.05:
        return rng.choice((None, True, 0, -1, 1.5, "x", [], [0], X, IDS))
    if isinstance(value, Made):
        return _other_tensor(rng, value)
    if isinstance(value, list):
        return _other_list(rng, value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(INTS) if rng.random() < 0.7 else value + rng.choice((-1, 1, 2))
    if isinstance(value, float):
        return rng.choice((*FLOATS, *INTS))
    if isinstance(value, str):
        return rng.choice((*TEXTS, value + rng.choice(TEXTS), value[::-1], value[1:]))
    return rng.choice((X, IDS, *INTS, *FLOATS, *TEXTS, [0], [1, 2]))


def _other_tensor(rng: random.Random, one: Made) -> Made:
    shape, dtype, change = list(one.shape), one.dtype, rng.random()
    if change < 0.35 and shape:
        shape[rng.randrange(len(shape))] = rng.choice(SIZES)
    elif change < 0.5:
        shape = [rng.choice(SIZES) for _ in range(rng.randrange(5))]
    elif change < 0.6 and shape:
        del shape[rng.randrange(len(shape))]
    elif change < 0.7:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice(SIZES))
    elif change < 0.8:
        dtype = rng.choice(TYPES)
    return Made(*shape, dtype=dtype)  # else the same, with other values in another layout


def _other_list(rng: random.Random, value: list[Any]) -> list[Any]:
    made, change = list(value), rng.random()
    if change < 0.15 or not made:
        made.insert(rng.randrange(len(made) + 1), made[0] if made else rng.choice(INTS))
    elif change < 0.3:
        del made[rng.randrange(len(made))]
    else:
        place = rng.randrange(len(made))
        made[place] = hostile(rng, made[place])
    return made


def named(one: Operator, args: Args) -> dict[str, Any]:
    """Arguments in their order, by name."""
    count = len(one.names)
    return one.named(args[:count], dict(zip(one.keywords, args[count:])))


def changed(rng: random.Random, name: str) -> dict[str, Any]:
    """An example of an operator, by name, with up to three arguments changed."""
    given = named(operator(name), rng.choice(examples(name)))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        key = rng.choice(list(given))
        given[key] = hostile(rng, given[key])
    return given


def once(memory: Guarded, rng: random.Random, name: str) -> bool:
    """One call of an operator; whether its rule allowed it."""
    call, meter = operator(name), Meter("fuzz", [])
    arguments = {key: _made(rng, memory, one) for key, one in changed(rng, name).items()}
    memory.keep()
    stated = None
    try:
        stated = call.cost(arguments)
        meter.admit(stated)
        made = call(arguments, "cpu")
        meter.add(made)
        every = made if isinstance(made, list | tuple) else [made]
        total = sum(one.numel() for one in every)
        assert total <= stated.numbers, f"{name} made {total} numbers, stated were {stated.numbers}"
    except AssertionError:
        raise
    except Exception as error:  # refused by the rule or by torch: a graph makes it one error
        assert "allocate memory" not in str(error), f"{name}: {error}"
    finally:
        memory.check()
    return stated is not None


def _made(rng: random.Random, memory: Guarded, value: Any) -> Any:
    if isinstance(value, Made):
        return tensor(rng, memory, value)
    return [_made(rng, memory, one) for one in value] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """An argument of an example, with tensors of ones."""
    if isinstance(value, Made):
        return torch.ones(value.shape, dtype=value.dtype)
    return [plain(one) for one in value] if isinstance(value, list) else value


def make() -> Callable[[random.Random], bool]:
    """What runs one input: the next operator, with arguments of the input."""
    memory, names = Guarded(), itertools.cycle(sorted(OPERATORS))
    torch.set_num_threads(1)
    return lambda rng: once(memory, rng, next(names))

"""Rules of operators that show the same numbers in other shapes, in parts, or side by side."""

from __future__ import annotations

import math

from shoal.runs.artifact.operators.rule import (
    FLOATS,
    Arguments,
    Cost,
    axes_of,
    axis_of,
    cost,
    need,
    sizes_of,
)

MOST_PARTS = 4096  # tensors that are joined, or that one is split into


def reshape(a: Arguments) -> Cost:
    """The same numbers in another shape; one size may be -1."""
    x, sizes = a["self"], a["shape"]
    known = sizes_of([one for one in sizes if one != -1])
    count, open_ones = math.prod(known), len(sizes) - len(known)
    whole = x.numel() == count if not open_ones else count > 0 and x.numel() % count == 0
    need(open_ones <= 1 and whole, "%s as %s", x.shape, sizes)
    return cost(x.numel())


def expand(a: Arguments) -> Cost:
    """Axes of size 1 are stretched, new ones come in front; -1 keeps a size."""
    x, sizes = a["self"], list(a["size"])
    first = len(sizes) - x.dim()
    need(first >= 0, "%s as %s", x.shape, sizes)
    for axis, size in enumerate(x.shape, first):
        sizes[axis] = size if sizes[axis] == -1 else sizes[axis]
        need(size in (1, sizes[axis]), "%s as %s", x.shape, sizes)
    return cost(math.prod(sizes_of(sizes)))


def permute(a: Arguments) -> Cost:
    """All axes in another order."""
    need(len(axes_of(a["self"], a["dims"])) == a["self"].dim(), "axes %s", a["dims"])
    return cost(a["self"].numel())


def transpose(a: Arguments) -> Cost:
    """Two axes change places."""
    axis_of(a["self"], a["dim0"]), axis_of(a["self"], a["dim1"])
    return cost(a["self"].numel())


def some_axes(a: Arguments) -> Cost:
    """Axes that are left out, or read backwards."""
    axes_of(a["self"], a["dim"] if "dim" in a else a["dims"])
    return cost(a["self"].numel())


def diagonal(a: Arguments) -> Cost:
    """The numbers of a diagonal of two axes."""
    x, offset = a["self"], a["offset"]
    need(x.dim() >= 2, "a diagonal of one axis")
    first, second = axes_of(x, [a["dim1"], a["dim2"]])
    need(-x.shape[first] < offset < x.shape[second], "diagonal %s of %s", offset, x.shape)
    return cost(x.numel())


def unsqueeze(a: Arguments) -> Cost:
    """A new axis of size 1."""
    axis_of(a["self"], a["dim"], more=1)
    return cost(a["self"].numel())


def select(a: Arguments) -> Cost:
    """One place of an axis."""
    x, index = a["self"], a["index"]
    need(x.dim() > 0, "a place of a single number")
    size = x.shape[axis_of(x, a["dim"])]
    need(-size <= index < size, "place %s of %s", index, size)
    return cost(x.numel())


def slices(a: Arguments) -> Cost:
    """A part of an axis."""
    need(a["self"].dim() > 0 and a["step"] >= 1, "a step of %s", a["step"])
    axis_of(a["self"], a["dim"])
    return cost(a["self"].numel())


def splitting(a: Arguments) -> Cost:
    """Parts of an axis: each place, parts of one size, or of given sizes."""
    x = a["self"]
    need(x.dim() > 0, "parts of a single number")
    length = x.shape[axis_of(x, a["dim"])]
    if "split_sizes" in a:
        sizes = sizes_of(a["split_sizes"])
        need(sum(sizes) == length, "parts %s of %s", sizes, length)
        count = len(sizes)
    else:
        size = a.get("split_size", 1)
        need(size >= 1, "parts of %s", size)
        count = math.ceil(length / size)
    need(count <= MOST_PARTS, "%s parts; %s are the most", count, MOST_PARTS)
    return cost(x.numel())


def as_complex(a: Arguments) -> Cost:
    """Pairs of real numbers as complex ones."""
    x = a["self"]
    right = x.dim() > 0 and x.shape[-1] == 2 and x.dtype in FLOATS
    need(right, f"{x.dtype} {list(x.shape)} as complex numbers")
    return cost(x.numel())


def cat(a: Arguments) -> Cost:
    """Tensors side by side along an axis."""
    parts = a["tensors"]
    need(0 < len(parts) <= MOST_PARTS and parts[0].dim() > 0, "%s tensors are joined", len(parts))
    axis = axis_of(parts[0], a["dim"])
    shapes = [[n for k, n in enumerate(one.shape) if k != axis] for one in parts]
    same = all(one == shapes[0] for one in shapes)
    need(same and len({one.dim() for one in parts}) == 1, "tensors of other shapes are joined")
    return cost(sum(one.numel() for one in parts))


def stack(a: Arguments) -> Cost:
    """Tensors of one shape along a new axis."""
    parts = a["tensors"]
    need(0 < len(parts) <= MOST_PARTS, "%s tensors are joined", len(parts))
    axis_of(parts[0], a["dim"], more=1)
    same = all(one.shape == parts[0].shape for one in parts)
    need(same, "tensors of other shapes are joined")
    return cost(sum(one.numel() for one in parts))


def padding(a: Arguments) -> Cost:
    """A value before and behind the places of the last axes."""
    x, pads = a["self"], sizes_of(a["pad"])
    need(a.get("mode", "constant") == "constant", "only a constant pads")
    need(len(pads) % 2 == 0 and len(pads) <= 2 * x.dim(), "pads %s of %s", pads, x.shape)
    shape = list(x.shape)
    for number in range(len(pads) // 2):
        shape[-1 - number] += pads[2 * number] + pads[2 * number + 1]
    return cost(math.prod(shape))

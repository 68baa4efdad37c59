"""Rules of operators whose cost depends on shapes alone: a number for each number, sums, views.

Torch itself checks the axes and shapes of these. A rule bounds what a call would make, and refuses
the few arguments that torch does not check.
"""

from __future__ import annotations

import math

from torch import Tensor

from shoal.serving.artifact.operators.rule import (
    FLOATS,
    Arguments,
    Cost,
    axis_of,
    broadcast,
    cost,
    need,
    reads_values,
    room,
    sizes_of,
    within,
)


def elementwise(a: Arguments) -> Cost:
    """Tensors that are stretched to one shape, and plain numbers."""
    shapes = [one.shape for one in a.values() if isinstance(one, Tensor)]
    return cost(math.prod(broadcast(*shapes)))


@reads_values
def dividing(a: Arguments) -> Cost:
    """Whole numbers are divided by positive ones: the least of all by -1 would be SIGFPE."""
    number, other = a["self"], a["other"]
    if isinstance(other, Tensor):
        if not (number.is_floating_point() or other.is_floating_point()):
            within(other, 1, 1 << 63)
    elif not (number.is_floating_point() or isinstance(other, float)):
        need(other >= 1, "whole numbers are divided by %s", other)
    return elementwise(a)


def making(a: Arguments) -> Cost:
    """A tensor of given sizes, or of a single number."""
    return cost(math.prod(sizes_of(a.get("size", []))))


def arange(a: Arguments) -> Cost:
    """Numbers from a start to an end."""
    start, end, step = a.get("start", 0), a["end"], a.get("step", 1)
    need(all(abs(one) < 1 << 53 for one in (start, end, step)), "a range without an end")
    need(step != 0 and (end - start) / step >= 0, "a range from %s to %s by %s", start, end, step)
    return cost(math.ceil((end - start) / step) + 1)


def along_axes(a: Arguments) -> Cost:
    """Computed along axes of a tensor; by figures that were learned, not by those of a batch."""
    need(not a.get("training", False), "a batch norm that trains")
    numbers = room((a["self"] if "self" in a else a["input"]).shape)
    return cost((3 if "normalized_shape" in a else 2) * numbers, 64 * numbers)


def rfft(a: Arguments) -> Cost:
    """Fourier transform of real numbers along a whole axis."""
    x = a["self"]
    length = _fourier(x, a)
    need(x.dtype in FLOATS and a["n"] in (None, length) and length > 0, "rfft of another length")
    return cost(4 * x.numel(), 64 * x.numel())


def irfft(a: Arguments) -> Cost:
    """Inverse transform to real numbers: along a whole axis, of half of them and one."""
    x, n = a["self"], a["n"]
    half = _fourier(x, a)
    need(x.is_complex() and n is not None and n > 0, "irfft without a length")
    need(n // 2 + 1 == half, "irfft of %s numbers to %s", half, n)
    return cost(4 * x.numel(), 64 * x.numel())


def _fourier(x: Tensor, a: Arguments) -> int:
    """The length of the axis that is transformed."""
    norms = (None, "backward", "ortho", "forward")
    need(x.dim() > 0 and x.numel() > 0 and a["norm"] in norms, "an unknown norm, or nothing")
    return x.shape[axis_of(x, a["dim"])]


def view(a: Arguments) -> Cost:
    """A view: numbers in another shape or order, or some of them."""
    return cost(a["self"].numel())


def expand(a: Arguments) -> Cost:
    """Axes of size 1 are stretched, new ones come in front; -1 keeps a size."""
    sizes = sizes_of([1 if size == -1 else size for size in a["size"]])
    return cost(math.prod(broadcast(a["self"].shape, sizes)))


def splitting(a: Arguments) -> Cost:
    """Parts of an axis: each place, parts of one size, or of given sizes."""
    x = a["self"]
    need(x.dim() > 0, "parts of a single number")
    parts = x.shape[axis_of(x, a["dim"])] // max(1, a.get("split_size", 1))
    need(parts <= 4096, "%s parts; 4096 are the most", parts)
    return cost(x.numel())


def joining(a: Arguments) -> Cost:
    """Tensors side by side, along an axis or a new one."""
    return cost(sum(one.numel() for one in a["tensors"]))


def padding(a: Arguments) -> Cost:
    """A value before and behind the places of the last axes."""
    x, pads = a["self"], sizes_of(a["pad"])
    need(a.get("mode", "constant") == "constant", "only a constant pads")
    need(len(pads) % 2 == 0 and len(pads) <= 2 * x.dim(), "pads %s of %s", pads, x.shape)
    shape = list(x.shape)
    for number in range(len(pads) // 2):
        shape[-1 - number] += pads[2 * number] + pads[2 * number + 1]
    return cost(math.prod(shape))

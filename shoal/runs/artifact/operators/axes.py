"""Rules of operators that compute along axes: sums, orders, norms, Fourier transforms."""

from __future__ import annotations

import math

from torch import Tensor

from shoal.runs.artifact.operators.rule import (
    FLOATS,
    Arguments,
    Cost,
    axes_of,
    axis_of,
    cost,
    need,
    room,
    same_floats,
)

NORMS = (None, "backward", "ortho", "forward")  # of a Fourier transform


def reduction(a: Arguments) -> Cost:
    """Along axes of a tensor, or all of them."""
    x = a["self"]
    if a.get("dim") is not None:
        axes_of(x, a["dim"])
    return cost(2 * room(x.shape))


def sorting(a: Arguments) -> Cost:
    """Along one axis, at most as many as it has."""
    x = a["self"]
    length = x.shape[axis_of(x, a["dim"])] if x.dim() else 1
    need(0 <= a.get("k", 0) <= length, "the best %s of %s", a.get("k"), length)
    return cost(2 * x.numel(), 64 * x.numel())


def layer_norm(a: Arguments) -> Cost:
    """Over the last axes, whose sizes are given."""
    x, shape = a["input"], a["normalized_shape"]
    need(0 < len(shape) <= x.dim() and list(x.shape[-len(shape) :]) == shape, "a norm of %s", shape)
    for one in (a["weight"], a["bias"]):
        need(one is None or list(one.shape) == shape, "weights that are not %s", shape)
    need(math.prod(shape) > 0, "a norm of nothing")
    same_floats(x, a["weight"], a["bias"])
    return cost(3 * x.numel(), 4 * x.numel())


def batch_norm(a: Arguments) -> Cost:
    """By figures of axis 1 that were learned."""
    x = a["input"]
    need(a["training"] is False and x.dim() >= 2, "a batch norm that trains")
    figures = [a[name] for name in ("weight", "bias", "running_mean", "running_var")]
    need(figures[2] is not None and figures[3] is not None, "a batch norm without figures")
    for one in figures:
        need(one is None or list(one.shape) == [x.shape[1]], "figures of another size")
    same_floats(x, *figures)
    return cost(x.numel(), 4 * x.numel())


def rfft(a: Arguments) -> Cost:
    """Of real numbers along a whole axis."""
    x = a["self"]
    length = _fourier(x, a)
    need(x.dtype in FLOATS and a["n"] in (None, length) and length > 0, "rfft of another length")
    return cost(4 * x.numel(), 64 * x.numel())


def irfft(a: Arguments) -> Cost:
    """Back to real numbers: along a whole axis, of half of them and one."""
    x, n = a["self"], a["n"]
    half = _fourier(x, a)
    need(x.is_complex() and n is not None and n > 0, "irfft without a length")
    need(n // 2 + 1 == half, "irfft of %s numbers to %s", half, n)
    return cost(4 * x.numel(), 64 * x.numel())


def _fourier(x: Tensor, a: Arguments) -> int:
    """The length of the axis that is transformed."""
    need(x.dim() > 0 and x.numel() > 0 and a["norm"] in NORMS, "an unknown norm, or nothing")
    return x.shape[axis_of(x, a["dim"])]

"""Rules of products: matrices, convolutions, attention, recurrent layers.

Shapes must fit exactly, and tensors be float32, or all float64.
"""

from __future__ import annotations

import math

import torch

from shoal.serving.artifact.operators.rule import (
    Arguments,
    Cost,
    broadcast,
    cost,
    need,
    same_floats,
    stretches_to,
)


def product(a: Arguments) -> Cost:
    """[..., n, k] x [..., k, m], a vector being a row on the left and a column on the right.

    linear has [m, k] on the right, and adds a bias; addmm adds what stretches to [n, m].
    """
    if "weight" in a:
        left, right, bias = a["input"], a["weight"], a["bias"]
        need(right.dim() == 2, "a linear layer of a matrix")
        need(bias is None or list(bias.shape) == [len(right)], "a bias of another size")
        right = right.T
    elif "mat1" in a:
        left, right, bias = a["mat1"], a["mat2"], a["self"]
    else:
        left, right, bias = a["self"], a["other"] if "other" in a else a["mat2"], None
    need(left.dim() > 0 and right.dim() > 0, "a product of single numbers")
    same_floats(left, right, bias)
    left = left[None] if left.dim() == 1 else left
    right = right[:, None] if right.dim() == 1 else right
    (*front, n, k), (*other, inner, m) = left.shape, right.shape
    need(k == inner, "%s x %s", left.shape, right.shape)
    count = math.prod(broadcast(front, other))
    copied = count * (n * k + k * m) if front and other else left.numel() + right.numel()
    return cost(copied + count * n * m, count * n * k * m)


def einsum(a: Arguments) -> Cost:
    """Two tensors, an axis by each letter; ... stands for further axes."""
    equation, tensors = a["equation"].replace(" ", ""), a["tensors"]
    need(len(equation) <= 80 and a["path"] is None and len(tensors) == 2, "einsum of two tensors")
    inputs, arrow, answer = equation.partition("->")
    terms = inputs.split(",")
    need(arrow == "->" and len(terms) == 2, "einsum %s", equation)
    sizes: dict[str, int] = {}
    for term, x in zip(terms, tensors):
        for axis, size in zip(_letters(term, x.dim()), x.shape):
            need(sizes.setdefault(axis, size) == size, "einsum %s: sizes of %s", equation, axis)
    named_axes = [len(term.replace("...", "")) for term in terms]
    extra_axes = max(0, *(x.dim() - count for count, x in zip(named_axes, tensors)))
    answer_axes = _letters(answer, len(answer.replace("...", "")) + extra_axes * ("..." in answer))
    need(all(axis in sizes for axis in answer_axes), "einsum %s", equation)
    same_floats(*tensors)
    result = math.prod(sizes[axis] for axis in answer_axes)
    return cost(result + sum(x.numel() for x in tensors), math.prod(sizes.values()))


def _letters(term: str, count: int) -> list[str]:
    """A name for each of so many axes, none twice."""
    front, dots, back = term.partition("...")
    plain = front + back
    need(all(one.isascii() and one.isalpha() for one in plain), "einsum of %s", term)
    extra_axes = count - len(plain)
    fits = extra_axes >= 0 and (dots != "" or extra_axes == 0)
    need(fits, "einsum of %s for %s axes", term, count)
    letters = [*front, *(f"...{number}" for number in range(extra_axes)), *back]
    need(len(set(letters)) == len(letters), "einsum of %s", term)
    return letters


def conv(a: Arguments) -> Cost:
    """[b, channels, places] by [out, channels / groups, window], with one axis of places or two."""
    x, weight, bias, groups = a["input"], a["weight"], a["bias"], a["groups"]
    need(weight.dim() == x.dim() > 2, "a convolution of other axes")
    need(x.numel() > 0 and weight.numel() > 0, "a convolution of nothing")
    need(groups >= 1 and len(weight) % groups == 0, "%s groups", groups)
    need(x.shape[1] == weight.shape[1] * groups, "%s channels", x.shape[1])
    need(bias is None or list(bias.shape) == [len(weight)], "a bias of another size")
    same_floats(x, weight, bias)
    outputs, padded = len(x), len(x) * x.shape[1]
    for axis, (size, window) in enumerate(zip(x.shape[2:], weight.shape[2:])):
        stride, pad, step = (_each(a[name], axis) for name in ("stride", "padding", "dilation"))
        far = 1 << 16
        need(1 <= stride <= far and 0 <= pad <= far and 1 <= step <= far, "a convolution's strides")
        wide = size + 2 * pad - step * (window - 1) - 1
        need(wide >= 0, "a window that is wider than all places")
        outputs *= wide // stride + 1
        padded *= size + 2 * pad
    window = x.shape[1] * math.prod(weight.shape[2:])
    held = outputs * (len(weight) + window) + padded + weight.numel()
    return cost(held, outputs * len(weight) * window // groups)


def _each(sizes: list[int], axis: int) -> int:
    need(len(sizes) == 1 or axis < len(sizes), "sizes %s of a convolution", sizes)
    return sizes[axis if len(sizes) > 1 else 0]


def attention(a: Arguments) -> Cost:
    """[..., n, d], [..., m, d], [..., m, e] -> [..., n, e], with a mask that stretches."""
    q, k, v, mask = a["query"], a["key"], a["value"], a["attn_mask"]
    need(q.dim() == k.dim() == v.dim() >= 3, "attention of other axes")
    need(q.shape[:-2] == k.shape[:-2] == v.shape[:-2], "attention of other batches")
    need(q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2], "attention of other widths")
    need(q.numel() > 0 and k.numel() > 0 and v.numel() > 0, "attention of nothing")
    need(a["dropout_p"] == 0.0 and a["enable_gqa"] is False, "attention with options")
    same_floats(q, k, v)
    scores = [*q.shape[:-1], k.shape[-2]]
    if mask is not None:
        need(not a["is_causal"] and mask.dtype in (torch.bool, q.dtype), "a mask of %s", mask.dtype)
        stretches_to(mask, scores)
    count, inputs = math.prod(scores), q.numel() + k.numel() + v.numel()
    outputs = q.numel() // q.shape[-1] * v.shape[-1]
    return cost(2 * count + inputs + outputs, count * (q.shape[-1] + v.shape[-1]))


def gru(a: Arguments) -> Cost:
    """[n, b, k] (or [b, n, k]), the state [layers, b, h], and the weights of every layer."""
    x, state, params, layers = a["input"], a["hx"], a["params"], a["num_layers"]
    need(x.dim() == state.dim() == 3 and 1 <= layers <= 16, "a GRU of other axes")
    need(a["dropout"] == 0.0 and not a["train"] and not a["bidirectional"], "a GRU that trains")
    length, size = (x.shape[1], x.shape[0]) if a["batch_first"] else (x.shape[0], x.shape[1])
    h, width = state.shape[2], x.shape[2]
    layer_size = 4 if a["has_biases"] else 2  # tensors of a layer
    need(list(state.shape) == [layers, size, h] and h > 0, "a state of another size")
    need(
        x.numel() > 0 and len(params) == layer_size * layers,
        "weights of each layer of a GRU",
    )
    for layer in range(layers):
        input_width = width if layer == 0 else h
        right = [[3 * h, input_width], [3 * h, h], [3 * h], [3 * h]][:layer_size]
        layer_params = params[layer_size * layer : layer_size * (layer + 1)]
        need([list(one.shape) for one in layer_params] == right, "weights of another size")
    same_floats(x, state, *params)
    steps = layers * length * size
    return cost(8 * steps * h + 2 * x.numel(), steps * 3 * h * (max(width, h) + h))

"""A function of a batch whose kernels are recorded as a CUDA graph, and replayed: one call.

An answer of a large model for few users is hundreds of kernels, each shorter than the time Python
takes to start it. A number of rows that comes a second time is recorded. Numbers of rows are padded
to powers of two with rows of zeros, so that few graphs serve all; on a CPU the function is called.
"""

from collections.abc import Callable

import torch
from torch import Tensor

MOST = 32  # graphs that are kept


class Recorded:
    """function(batch [b, ...], further tensors) -> tensors [b, ...], of which nothing is learned.

    Rows of a batch do not depend on each other. What else the function reads must stay where it is
    for as long as this object is used.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]):
        self.function = function
        self._graphs: dict[tuple, tuple[torch.cuda.CUDAGraph, list[Tensor], tuple]] = {}
        self._seen: set[tuple] = set()

    def __call__(self, batch: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        size = batch.shape[0]
        if not batch.is_cuda or torch.is_grad_enabled() or size == 0:
            return self.function(batch, *more)
        empty = batch.new_zeros(padded_rows(size) - size, *batch.shape[1:])
        inputs = [torch.cat([batch, empty]), *more]
        shape = tuple((tuple(x.shape), x.dtype) for x in inputs)
        if shape not in self._graphs and (shape not in self._seen or len(self._graphs) == MOST):
            self._seen.add(shape)
            outputs = self.function(*inputs)
        else:
            outputs = self._replayed(shape, inputs)
        return tuple(x[:size].clone() for x in outputs)

    def _replayed(self, shape: tuple, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        if shape not in self._graphs:
            graph, memory = torch.cuda.CUDAGraph(), [x.clone() for x in inputs]
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outputs = self.function(*memory)
            self._graphs[shape] = graph, memory, outputs
        graph, memory, outputs = self._graphs[shape]
        for own, x in zip(memory, inputs):
            own.copy_(x)
        graph.replay()
        return outputs


def padded_rows(count: int) -> int:
    """The next power of two."""
    return 1 << max(0, count - 1).bit_length()

"""What products, layers and operations of a model take on a device: seconds of every repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from shoal.kernels.products import products_of
from shoal.models.nn.transformer import Transformer
from shoal.planning.step_counter import StepCounter
from shoal.planning.step_work import Operations

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
RECORDED = 20  # calls in a graph of a GPU
WARM_SECONDS = 0.3  # until a GPU that was idle runs at the clock of long work
Shape = tuple[int, int, int]


@contextmanager
def with_threads(number: int) -> Iterator[None]:
    """Let torch compute with this number of threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def repeat(run: Callable[[], object], device: torch.device, seconds: float) -> list[float]:
    """Seconds of each call, for about `seconds` and at least five times.

    Two calls warm up, on a GPU as many as bring its clock up. What a device is given is waited for.
    """
    on_gpu = device.type == "cuda"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    warm_calls, warm_until = 0, time.perf_counter() + (WARM_SECONDS if on_gpu else 0.0)
    while warm_calls < 2 or time.perf_counter() < warm_until:
        run()
        wait()
        warm_calls += 1
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 1000):
        begin = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - begin)
    return times


def _alone(run: Callable[[], object], device: torch.device, seconds: float) -> list[float]:
    """Seconds of a call; on a GPU many are recorded, so that launches do not count."""
    if device.type != "cuda":
        return repeat(run, device, seconds)
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(RECORDED):
            run()
    return [s / RECORDED for s in repeat(graph.replay, device, seconds)]


def product(
    device: torch.device, shape: Shape, precision: str, seconds: float
) -> tuple[list[float], float]:
    """A linear layer, forward and backward: [rows, inputs] by [inputs, outputs]."""
    number, inputs, outputs = shape
    dtype = PRECISIONS.get(precision, torch.float32)
    # Numbers as layers have them, half of them zeros after relu: a GPU multiplies equal ones
    # faster, since they take less power (an H200 at 1024 x 1024: 778 TFLOPS; these: 625).
    x = torch.randn(number, inputs, device=device, dtype=dtype).relu_()
    weight = torch.randn(outputs, inputs, device=device, dtype=dtype)
    gradient = torch.randn(number, outputs, device=device, dtype=dtype)
    gradient *= torch.rand(number, outputs, device=device) > 0.5

    def run() -> None:
        torch.mm(x, weight.t())
        torch.mm(gradient, weight)  # the gradient of x
        torch.mm(gradient.t(), x)

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        return _alone(run, device, seconds), 6.0 * number * inputs * outputs
    finally:
        torch.set_float32_matmul_precision(before)


def layer(threads: int, seconds: float) -> tuple[list[float], Operations]:
    """A transformer's layer with dropout, of a batch, forward and backward, on cores."""
    block = Transformer(1, 2, 64, 256, 0.2, 0.2, "relu", 1e-12, 0.02, causal=True).train()
    x = torch.randn(256, 50, 64).requires_grad_()
    with StepCounter() as counter:
        block(x).sum()
    step = counter.counted
    with with_threads(threads):
        run = lambda: block(x).sum().backward()  # noqa: E731
        return repeat(run, torch.device("cpu"), seconds), step.forward + step.backward


def elementwise(products: float, attention: float, seconds: float) -> tuple[list[float], float]:
    """Seconds of a layer on a core without its products, and the bytes that it moves.

    products, attention: operations a second that products of matrices and attention reach.
    """
    times, step = layer(1, seconds)
    product_seconds = step.products / products + step.attention / attention
    return [max(0.1 * s, s - product_seconds) for s in times], step.elementwise


def added_by_thread(threads: int, seconds: float) -> list[float]:
    """The share of a core that each thread after the first adds to a layer."""
    if threads == 1:
        return [1.0]
    shares = []
    for _ in range(5):  # in turn, so that both meet the same hours of a host
        alone, together = (min(layer(n, seconds / 10)[0]) for n in (1, threads))
        shares.append(min(1.0, max(0.05, (alone / together - 1.0) / (threads - 1))))
    return shares


def attention(device: torch.device, seconds: float) -> tuple[list[float], float]:
    """Time a sequence model's attention: 4 heads of 64, 256 positions; on a core 2 of 32, 50.

    On a core its products alone, forward and backward, of every pair of positions.
    """
    gpu = device.type == "cuda"
    batch, heads, length, width = (256, 4, 256, 64) if gpu else (32, 2, 50, 32)
    dtype = torch.bfloat16 if gpu else torch.float32
    q = torch.randn(batch, heads, length, width, device=device, dtype=dtype)
    operations = 4.0 * batch * heads * length * length * width
    if gpu:
        run = lambda: nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)  # noqa: E731
        return _alone(run, device, seconds), operations / 2

    def products() -> None:
        for _ in range(3):  # forward, and twice as much backward
            scores = products_of(q, q.transpose(-1, -2).contiguous())
            products_of(scores, q)

    return repeat(products, device, seconds), 3 * operations


def kernel(device: torch.device, seconds: float) -> list[float]:
    """Seconds of an operation on a small tensor; on a GPU of a recorded one."""
    x = torch.ones(64, device=device)

    def run() -> None:
        for _ in range(10):
            x.add_(1.0)

    return [s / 10 for s in _alone(run, device, seconds)]


def launch(device: torch.device, seconds: float) -> list[float]:
    """Seconds of the host for an operation of a model, forward or backward."""
    x, many = torch.ones(64, device=device, requires_grad=True), 100

    def run() -> None:
        y = x
        for _ in range(many):
            y = y * 1.0
        y.sum().backward()

    return [s / (2 * many) for s in repeat(run, device, seconds)]

"""The work of a config: its model is built as for a run, and one step of few samples is counted.

Data is read and the model is made; rows are not: lookups are answered with rows of one value, so
tables may be larger than any memory. Products of matrices are counted by their shapes, the bytes of
other operations by what they read and write. Two batch sizes separate what grows with the batch
from what does not.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from shoal.config.launch_section import LaunchSection
from shoal.config.schema import Config, StrategySection
from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.embedding.engines.budgets import row_bytes, value_bytes
from shoal.embedding.output_table import OutputTable
from shoal.embedding.rows.store import Every
from shoal.embedding.rows.table import Table
from shoal.embedding.service import Collected, Gradients, Lookup, RowService
from shoal.planning.step_work import Operations, Popularity, TableWork, Work
from shoal.runs.build import build
from shoal.runs.parts import Parts
from shoal.training.strategies import Strategy

MOST_IDS = 4096  # of the samples of a counted step, about
MOST_SAMPLES = 128
SEEN_IDS = 2_000_000  # that popularity is read from, about
MOST_WHOLE = 1 << 28  # floats of a table that a model reads whole
EXPECTED_ROWS = 10_000_000  # assumed for a table that grows, where ids give no bound
JOINED = 0.5  # of elementwise work: our kernels on GPUs have norms, dropout, attention in one
OPTIMIZER_BYTES = {"sgd": 12.0, "adagrad": 20.0, "momentum": 20.0, "adam": 28.0, "adamw": 28.0}
PRODUCTS = ("linear", "matmul", "mm", "bmm", "rmatmul", "mv")
BATCHED = ("bmm", "baddbmm", "scaled_dot_product_attention")  # of many small matrices
GATES = {"gru": 3, "lstm": 4, "rnn_tanh": 1}
WRITES = ("iadd", "imul", "isub", "itruediv", "setitem")


@dataclass
class Counted:
    """Operations and lookups of one step."""

    forward: Operations = field(default_factory=Operations)
    backward: Operations = field(default_factory=Operations)
    ids: dict[str, float] = field(default_factory=dict)  # by table
    vectors: dict[str, float] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)


class StepCounter(TorchFunctionMode):
    """Adds up what torch's functions do in a forward pass, and what backward will.

    The backward of a product is two of its size; that of other operations moves twice their bytes,
    in half as many kernels more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counted, self.paused = Counted(), False

    def add(self, operations: Operations, learns: bool = True) -> None:
        """Add operations to forward, and to backward where a gradient flows."""
        self.counted.forward += operations
        if learns:
            after = operations.times(2.0)
            self.counted.backward += replace(after, kernels=1.5 * operations.kernels)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs, outputs = _tensors((args, kwargs)), _tensors(out)
        if self.paused or not outputs:
            return out
        name = getattr(func, "__name__", "").strip("_")
        learns = outputs[0].is_floating_point()  # inside a torch.autograd.Function no flag shows it
        flops = products(name, args, outputs[0])
        if flops:
            batched = name in BATCHED or (name in PRODUCTS and args[1].dim() > 2)
            kind = {"attention" if batched else "products": flops}
            self.add(Operations(kernels=1, **kind), learns)
            return out
        places = {one.untyped_storage().data_ptr() for one in inputs}
        view = all(one.untyped_storage().data_ptr() in places for one in outputs)
        written = func.__name__.endswith("_") and not func.__name__.endswith("__")
        if not view or written or name in WRITES:
            moved_bytes = sum(one.numel() * one.element_size() for one in (*inputs, *outputs))
            self.add(Operations(elementwise=float(moved_bytes), kernels=1), learns)
        return out


def products(name: str, args: Sequence[Any], out: Tensor) -> float:
    """Operations of a product of matrices; 0 of any other function.

    >>> products("linear", (torch.ones(3, 4), torch.ones(5, 4)), torch.ones(3, 5))
    120.0
    """
    if name in PRODUCTS:
        return 2.0 * out.numel() * args[0].shape[-1]
    if name in ("addmm", "baddbmm"):
        return 2.0 * out.numel() * args[1].shape[-1]
    if name == "scaled_dot_product_attention":
        return 4.0 * out.numel() * args[1].shape[-2]
    if name == "einsum":
        sizes: dict[str, int] = {}
        operands = args[1] if isinstance(args[1], list | tuple) else args[1:]
        for letters, operand in zip(args[0].split("->")[0].split(","), operands):
            sizes |= dict(zip(letters.strip(), operand.shape))
        return 2.0 * float(np.prod(list(sizes.values()))) if len(operands) > 1 else 0.0
    if name in GATES:
        width = out.shape[-1]
        return 2.0 * GATES[name] * (out.numel() // width) * width * (args[0].shape[-1] + width)
    return 0.0


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [t for one in value for t in _tensors(one)] if isinstance(value, list | tuple) else []


class CountedRows(RowService):
    """Answers lookups with rows of one value, and notes how many there were."""

    def __init__(self, tables: dict[str, Table], counter: StepCounter):
        super().__init__(dict.fromkeys(tables, _Steps()))
        self.declared_tables = tables
        self.counter = counter

    def pull(self, lookups: Sequence[Lookup], learn: bool) -> list[Tensor]:
        counted, pulled_rows = self.counter.counted, []
        self.counter.paused = True
        for lookup in lookups:
            table = self.declared_tables[lookup.table]
            if isinstance(lookup.ids, Every):
                rows = table.rows or 0
                if rows * table.dim > MOST_WHOLE:
                    raise ValueError(
                        f"the model reads all {rows:,} rows of table {table.name!r} in every step: "
                        "its work cannot be counted here; plan a smaller table of the same model"
                    )
                counted.whole.add(table.name)
                shape: tuple[int, ...] = (rows,)
            else:
                shape = tuple(lookup.ids.shape) if lookup.bags is None else (len(lookup.bags),)
                ids, vectors = counted.ids, counted.vectors
                ids[table.name] = ids.get(table.name, 0.0) + lookup.ids.numel()
                vectors[table.name] = vectors.get(table.name, 0.0) + float(np.prod(shape))
            pulled = torch.full((*shape, table.dim), 0.01).requires_grad_(learn)
            self.counter.counted.forward += Operations(
                elementwise=pulled.nbytes
            )  # read by a kernel
            self.counter.counted.backward += Operations(elementwise=pulled.nbytes)
            pulled_rows.append(pulled)
        self.counter.paused = False
        return pulled_rows

    def output_table(self, table: Table, bias: Table | None, alone: bool) -> OutputTable:
        return _CountedOutput(table, bias, self.counter)

    def collect(self, dense: Sequence[Tensor] = ()) -> Collected:
        raise NotImplementedError  # a counted step ends with forward

    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        raise NotImplementedError  # a counted step updates no rows


class _Steps:
    step = 0


class _CountedOutput(OutputTable):
    """A softmax over a table: its products are counted, and not made."""

    def __init__(self, table: Table, bias: Table | None, counter: StepCounter):
        super().__init__(table, bias, None, None, lambda *_: torch.empty(0), _CPU, False)
        self.counter = counter

    def loss(self, hidden: Tensor, targets: Tensor, stop: int | None, learn: bool) -> Tensor:
        counter, names = self.counter, [self.table.name, *([self.bias.name] if self.bias else [])]
        logits = float(int((targets != 0).sum()) * self.num_rows)
        products, moved_bytes = (
            2.0 * logits * self.table.dim,
            8.0 * logits,
        )  # written and read in pieces
        counter.add(Operations(products=products, elementwise=moved_bytes, kernels=3))
        vectors, name = counter.counted.vectors, self.table.name
        vectors[name] = vectors.get(name, 0.0) + logits / self.num_rows
        counter.counted.whole.update(names)
        return hidden.sum()


_CPU = torch.device("cpu")


class _Counting(Strategy):
    """Sets a model up without rows."""

    name = "plan"

    def __init__(self, world: World):
        super().__init__(world)
        self.counter = StepCounter()

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        return CountedRows(tables, self.counter)

    def update(self, sums: object, lr: float) -> Tensor:
        raise NotImplementedError  # a counted step ends with forward

    def count(self, batch: Batch) -> Counted:
        """Count one step; backward is inferred from forward."""
        self.counter.counted = Counted()
        with self.counter:
            self.forward(batch)
        return self.counter.counted


def parts_of(config: Config) -> Parts:
    """A run's parts without rows: its data is read and its model made, for one process."""
    torch.manual_seed(0)
    local_sections = {"strategy": StrategySection(name="single"), "launch": LaunchSection()}
    alone = config.model_copy(update=local_sections)
    return build(alone, World(_CPU), lambda section, world, timeout: _Counting(world))


def count_work(config: Config, parts: Parts | None = None) -> Work:
    """What one step of a config does; ValueError where its model has no steps."""
    parts = parts or parts_of(config)
    strategy, model, reader = parts.strategy, parts.model, parts.reader
    assert isinstance(strategy, _Counting)
    if not model.trainable:
        raise ValueError(f"{config.model.title} is solved in closed form: it has no steps to time")
    model.train()
    first = next(iter(reader.batches(0)))
    a_sample = sum(t.numel() for t in map(first.flat_ids, first.ids)) / max(1, first.size)
    size = int(min(first.size, MOST_SAMPLES, max(4, MOST_IDS // max(1.0, a_sample))))
    batches = [next(iter(reader.batches(0, 0, max(1, first.size // n)))) for n in (size, size // 2)]
    large, small = (strategy.count(batch) for batch in batches)
    grown = max(1, batches[0].size - batches[1].size)
    slopes = [_slope(getattr(large, p), getattr(small, p), grown) for p in ("forward", "backward")]
    fixed = [
        _rest(getattr(large, part), slope, batches[0].size)
        for part, slope in zip(("forward", "backward"), slopes)
    ]
    known_samples = getattr(reader, "known_samples", None) or getattr(reader, "num_samples", None)
    samples = int(known_samples or first.size)
    batch = parts.config.samples_per_step(1)
    spread, seconds = _sample_reader(parts)
    return Work(
        name=config.model.title,
        batch=min(batch, samples),
        samples=float(samples),
        tables=tuple(_tables(strategy, large, batches[0].size, spread)),
        forward=slopes[0],
        backward=slopes[1],
        forward_step=fixed[0],
        backward_step=fixed[1],
        parameters=sum(one.numel() for one in strategy.dense),
        optimizer_bytes=OPTIMIZER_BYTES.get(config.train.optimizer.name, 28.0),
        precision=_precision(config.train.precision, config.run.tf32),
        recorded=config.strategy.graph is not False and bool(model.cuda_graph_safe),
        input_bytes=_bytes_of(first) / max(1, first.size),
        input_seconds=seconds,
        ahead=bool(reader.prefetch),
        pooled=False,
        joined=JOINED,
        sources=(f"one step of {batches[0].size} samples, counted",),
    )


def _slope(large: Operations, small: Operations, samples: int) -> Operations:
    """Operations that one more sample takes."""
    difference = large + small.times(-1.0)
    return Operations(*(max(0.0, x) for x in _values(difference.times(1.0 / samples))))


def _rest(whole: Operations, per_sample: Operations, samples: int) -> Operations:
    """Operations of a step that do not depend on the number of samples."""
    return Operations(*(max(0.0, x) for x in _values(whole + per_sample.times(-float(samples)))))


def _values(operations: Operations) -> tuple[float, float, float, float]:
    return operations.products, operations.attention, operations.elementwise, operations.kernels


def _precision(precision: str, tf32: bool) -> str:
    """What products are computed in, as devices state their peaks."""
    if precision == "bfloat16":
        return "bfloat16"
    return "tf32" if tf32 else "float32"


def _bytes_of(batch: Batch) -> float:
    tensors = [batch.flat_ids(name) for name in batch.ids]
    tensors += [*batch.dense.values(), *([] if batch.labels is None else [batch.labels])]
    return float(sum(one.nbytes for one in tensors))


def _sample_reader(parts: Parts) -> tuple[dict[str, Popularity], float]:
    """How popular the rows of each table are, and the seconds that a sample takes to be made."""
    strategy, ids_by_table = parts.strategy, dict[str, list[Tensor]]()
    num_ids = samples = 0
    batches, seconds = iter(parts.reader.batches(0)), 0.0
    while num_ids < SEEN_IDS and seconds < 5.0:
        begin = time.perf_counter()
        batch = next(batches, None)
        seconds += time.perf_counter() - begin
        if batch is None:
            break
        samples += batch.size
        for lookup in strategy.lookups(batch):
            assert isinstance(lookup.flat, Tensor)
            ids_by_table.setdefault(lookup.table, []).append(lookup.flat)
            num_ids += lookup.flat.numel()
    spread = {}
    for name, ids in ids_by_table.items():
        counts = torch.unique(torch.cat(ids), return_counts=True)[1].numpy()
        spread[name] = Popularity.of_counts(counts)
    return spread, seconds / max(1, samples)


def _tables(
    strategy: Strategy, step: Counted, samples: int, spread: Mapping[str, Popularity]
) -> list[TableWork]:
    table_works = []
    for name, table in strategy.tables.items():
        optimizer = strategy.row_optimizers[name]
        rows = EXPECTED_ROWS if table.rows is None else table.rows
        values = value_bytes(table)
        table_works.append(
            TableWork(
                name=name,
                rows=rows,
                dim=table.dim,
                ids=step.ids.get(name, 0.0) / samples,
                vectors=step.vectors.get(name, 0.0) / samples,
                popularity=spread.get(name, Popularity.uniform(rows)),
                value_bytes=values,
                state_bytes=row_bytes(table, optimizer) - values,
                whole=name in step.whole,
            )
        )
    return table_works

"""Strategy: how dense parameters agree between ranks, and the service that has the rows.

It is applied to a model from outside. Without any config file:

    strategy = Single()
    strategy.setup(model, OptimizerSection(name="adagrad", lr=0.1), seed=1)
    for batch in batches:
        loss = strategy.train_step(batch)

A step is `forward_backward` and `update`: how processes agree on gradients, and who applies them.
Here dense parameters agree by all-reduce, and the row service knows where rows are; that is ddp and
sharded. Single, below, has nobody to agree with. With servers `update` is another (ps.py, geo.py).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.config.errors import did_you_mean
from shoal.config.row_rules import FIXED_KEYS, RowRules, RowsSection
from shoal.config.schema import OptimizerSection
from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.embedding.engines.local import make_engines
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.admission import admission_of
from shoal.embedding.rows.store import Every, Store
from shoal.embedding.rows.table import Table
from shoal.embedding.service import Gradients, LocalRows, Lookup, RowService, sum_squares
from shoal.embedding.table_settings import as_configured
from shoal.models.base import Model, Output
from shoal.models.nn.dropout import begin_slice
from shoal.optimizers.dense import make_optimizer, restore_state, state_tensors
from shoal.optimizers.selection import check_tables, row_optimizer_of
from shoal.training.strategies.compile_cache import keep_compiled


@dataclass(frozen=True)
class Sums:
    """Results of backward for the step: the summed loss of this rank's samples, and its terms."""

    loss: Tensor
    count: float | Tensor


class Strategy(ABC):
    """Base of all strategies: a model, its optimizers, its row service."""

    name: str
    saves_rows = False  # whether rows are written and read where they are, not by rank 0
    prefetches = True  # whether rows of coming batches are fetched ahead
    cannot_count: str | None = None  # why ids cannot be counted here, where they cannot
    cannot_narrow: str | None = None  # why rows cannot be bfloat16 here, where they cannot

    def __init__(self, world: World | None = None):
        self.world = world or World()
        self.row_world = self.world  # the ranks that hold the rows between them
        # Seconds of all steps so far, by this process's clock: a GPU may be behind it.
        self.phases = {"forward_backward": 0.0, "update": 0.0}

    # ---- setting up -----------------------------------------------------------------------------

    def setup(
        self,
        model: Model,
        optimizer: OptimizerSection,
        seed: int,
        clip_grad_norm: float | None = None,
        *,
        rows: RowsSection | None = None,
        precision: str = "float32",
        compiled: bool = False,
    ) -> None:
        """Give the model's tables a row service and its dense parameters an optimizer.

        rows: which ids of growing tables have rows. precision: of products in the dense part.
        compiled: let torch.compile make that part.
        """
        self.model = model.to(self.world.device)
        self.optimizer_section, self.seed, self.precision = optimizer, seed, precision
        self.clip_grad_norm = clip_grad_norm
        self.embeddings = [m for m in model.modules() if isinstance(m, Embeddings)]
        tables: dict[str, Table] = {}
        for module in self.embeddings:
            clash = tables.keys() & module.row_tables.keys()
            if clash:
                raise ValueError(f"two Embeddings of one model both have a table {min(clash)!r}")
            tables.update(module.row_tables)
        rows = rows or RowsSection()
        self.tiers, self.rules = rows.tiers, self._make_rules(tables, rows)
        if rows.narrow and self.cannot_narrow is not None:
            raise ValueError(f"rows.dtype: given bfloat16; {self.cannot_narrow}")
        self.tables = tables = as_configured(tables, rows)
        check_tables(optimizer, tables)
        self.row_optimizers = {name: row_optimizer_of(optimizer, name) for name in tables}
        self.dense = [p for p in model.parameters() if p.requires_grad]
        self.dense_optimizer = make_optimizer(optimizer, self.dense)  # its import takes a while
        self.rows = self.make_rows(tables)  # and from here on peers may wait for us
        number = 0
        for module in self.embeddings:
            number = module.attach(self.rows, number)
        self.gathered = Gathered(self.world)
        model.attach(self.gathered if self.shares_batches else None)
        self._call: Callable[[Batch], Output] = model
        if compiled:
            keep_compiled()  # before torch chooses a place itself
            if self.shares_batches:
                model.attach(torch.compiler.disable(self.gathered))
            for module in self.embeddings:
                module.disable_compile()
            self._call = torch.compile(model, dynamic=True)

    def servers_seen(self) -> list[dict[str, Any]]:
        """The servers that this process speaks to: number, address, when each last answered."""
        return []

    @abstractmethod
    def make_rows(self, tables: dict[str, Table]) -> RowService:
        """The service that has the rows of the model's tables."""

    def _make_rules(self, tables: dict[str, Table], section: RowsSection) -> dict[str, RowRules]:
        """The rules of those growing tables that have any."""
        growing = [name for name, table in tables.items() if table.rows is None]
        for name, table_rules in section.tables.items():
            if name in tables and table_rules.keys() <= set(FIXED_KEYS):
                continue
            if name not in growing:
                raise ValueError(
                    f"rows.tables names a table {name!r} that the model does not have, or that "
                    f"does not grow, which has dtype and init alone; its tables are: "
                    f"{', '.join(tables)}; those that grow: {', '.join(growing) or 'none'}"
                    f"{did_you_mean(name, list(tables))}"
                )
        if not section.enabled:
            return {}
        if not growing:
            raise ValueError(
                "the section rows asks for admission, decay or eviction of rows, and no table of "
                "this model grows; leave it out, or let the tables of a click model grow with "
                "data.clicks.rows=null"
            )
        if self.cannot_count is not None:
            raise ValueError(
                f"strategy {self.name} cannot do what the section rows asks for: "
                f"{self.cannot_count}"
            )
        rules = {name: section.rules_of(name) for name in growing}
        return {name: one for name, one in rules.items() if one.on}

    @property
    def shares_batches(self) -> bool:
        """Whether a step of all ranks is one global batch."""
        return True

    def make_engines(self, tables: dict[str, Table], fused: bool) -> dict[str, RowEngine]:
        """Rows in this process, on its device; `fused`: updated unseen, where that is faster."""
        return make_engines(
            tables,
            self.row_optimizers,
            self.seed,
            admissions={name: admission_of(self.rules.get(name)) for name in tables},
            device=self.world.device,
            fused=fused and self.clip_grad_norm is None,  # which needs all gradients at once
            tiers=self.tiers,
        )

    @property
    def stores(self) -> dict[str, Store]:
        """Every table's rows, as checkpoints see them."""
        return self.rows.stores

    # ---- a step ---------------------------------------------------------------------------------

    def receive(self, batch: Batch) -> Batch:
        """The batch where `train_step` wants it."""
        return batch.to(self.world.device)

    def prefetch(self, batch: Batch) -> None:
        """A hint: this batch comes after the next `train_step`."""
        if self.prefetches:
            self.rows.prefetch(batch, self.lookups(batch))

    def train_step(self, batch: Batch, lr: float | None = None) -> Tensor:
        """Forward, backward and update on this rank's slice; the mean loss of the global batch."""
        return self.step([batch], lr)

    def step(self, parts: Sequence[Batch], lr: float | None = None) -> Tensor:
        """A training step with this rank's slice in parts: one update, less memory."""
        started = time.perf_counter()
        sums = self.forward_backward(parts)
        middle = time.perf_counter()
        loss = self.update(sums, self.lr(lr))
        self.phases["forward_backward"] += middle - started
        self.phases["update"] += time.perf_counter() - middle
        return loss

    def lr(self, step_lr: float | None) -> float:
        """The learning rate of a step."""
        return self.optimizer_section.lr if step_lr is None else step_lr

    def lookups(self, batch: Batch) -> list[Lookup]:
        """The lookups that the model will make for a batch."""
        return [one for module in self.embeddings for one in module.lookups(batch)]

    def forward(self, batch: Batch) -> Output:
        """The summed loss of this rank's slice, its rows looked up."""
        self.rows.begin(batch, self.lookups(batch))
        begin_slice(batch.first)
        if self.precision == "float32":
            return self._call(batch)
        with torch.autocast(self.world.device.type, torch.bfloat16):
            return self._call(batch)

    def forward_backward(self, parts: Sequence[Batch]) -> Sums:
        """Leave the gradients of the summed loss on dense parameters and looked-up rows."""
        losses: list[Tensor] = []
        count: int | Tensor = 0
        self.gathered.parts = len(parts)
        for part in parts:
            output = self.forward(part)
            losses.append(output.loss.detach())
            count = count + output.count
            output.loss.backward()
        self.gathered.parts = 1
        return Sums(sum(losses[1:], losses[0]), count)

    def update(self, sums: Sums, lr: float) -> Tensor:
        """After backward: processes agree, dense parameters and rows are updated; the mean loss."""
        collected = self.rows.collect(self.dense_sums(sums))
        loss, scale = self.set_dense_gradients(collected.dense)
        gradients, row_scale = self.clip(collected.rows, scale)
        if self.dense_optimizer is not None:
            self.dense_optimizer.step(lr)
        self.rows.apply(gradients, lr, row_scale)
        return loss

    def dense_sums(self, sums: Sums) -> list[Tensor]:
        """The vector that ranks sum up: dense gradients, the loss, its count, and per parameter
        the number of ranks with a gradient."""
        count = torch.as_tensor(sums.count).to(sums.loss)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.dense]
        had = sums.loss.new_tensor([float(p.grad is not None) for p in self.dense])
        flat = [grad.reshape(-1).to(sums.loss) for grad in grads]
        return [*flat, sums.loss.reshape(1), count.reshape(1), had]

    def set_dense_gradients(self, flat: Tensor) -> tuple[Tensor, float]:
        """Dense gradients of the global batch's mean loss; that loss, and 1 / its count.

        A parameter without a gradient on any rank gets none, as in one process.
        """
        size = sum(p.numel() for p in self.dense)
        loss, (count, *gradient_counts) = flat[size], flat[size + 1 :].tolist()
        scale = 1.0 / count if count else 0.0
        means = flat[:size].mul_(scale).split([p.numel() for p in self.dense])
        for parameter, mean, has_gradient in zip(self.dense, means, gradient_counts):
            if has_gradient:
                parameter.grad = mean.view_as(parameter).to(parameter.dtype)
        return loss * scale, scale

    def clip(self, gradients: Gradients, scale: float) -> tuple[Gradients, float]:
        """Scale all gradients so that their joint L2 norm is at most `clip_grad_norm`.

        Dense gradients are multiplied by `scale` already; gradients of rows will be multiplied by
        the returned factor.
        """
        if self.clip_grad_norm is None:
            return gradients, scale
        summed: Gradients = {}
        for name, row_gradients in gradients.items():
            if isinstance(row_gradients.ids, Every):
                summed[name] = row_gradients
                continue
            summed[name] = row_gradients.summed()
        dense = [p.grad for p in self.dense if p.grad is not None]
        norm = torch.sqrt(sum_squares(dense) + scale**2 * self._row_squares(summed))
        factor = float((self.clip_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        for grad in dense if factor < 1.0 else ():
            grad.mul_(factor)
        return summed, scale * factor

    def _row_squares(self, gradients: Gradients) -> Tensor:
        """The sum of squares of all rows' summed gradients, over the ranks that hold rows."""
        whole = sum_squares([one.grads for one in gradients.values() if not one.partial])
        if not any(one.partial for one in gradients.values()):
            return whole
        partial_squares = sum_squares([one.grads for one in gradients.values() if one.partial])
        summed = self.row_world.all_reduce(partial_squares.reshape(1).to(self.world.device))
        return whole + summed.cpu().squeeze(0)

    # ---- evaluating, saving, ending -------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait for what is under way, before an evaluation or a save; all ranks call it."""
        self.rows.synchronize()

    def dense_state(self) -> dict[str, Tensor]:
        """The dense optimizer's state as flat tensors, for a checkpoint."""
        return state_tensors(self.dense_optimizer, self.dense)

    def restore_dense(self, tensors: dict[str, Tensor]) -> None:
        """Take over the model's present dense parameters and this state; all ranks call it."""
        restore_state(self.dense_optimizer, self.dense, tensors)

    def can_save_delta(self) -> bool:
        """Whether a save may write only what changed since the last one.

        Not where rows are dropped or counts fade, which a delta does not contain.
        """
        return not any(
            rules.counter_decay.every or (rules.shrink.every and rules.drops)
            for rules in self.rules.values()
        )

    def start_saving(self, folder: Path, delta: bool) -> Callable[[], dict[str, Any]]:
        """Where rows live elsewhere (`saves_rows`): write them into a folder.

        What is returned waits for them: file -> bytes and checksum.
        """
        raise NotImplementedError  # only such strategies are asked

    def load_rows(
        self, folder: Path, files: dict[str, Any], steps: dict[str, int], fresh: bool
    ) -> None:
        """Read rows that live elsewhere from files of a checkpoint; fresh: forget all others."""
        raise NotImplementedError  # only such strategies are asked

    def on_peer_lost(self, leave: Callable[[str], None]) -> None:
        """What to call when a peer is lost while this process waits where it cannot hear of it."""

    def close(self) -> None:
        """The run is over."""


class Gathered:
    """Gathers a tensor of every rank; what `Model.gather_global` calls. Every rank must call it."""

    def __init__(self, world: World):
        self.world = world
        self.parts = 1  # that this step's batch is cut into

    def __call__(self, tensor: Tensor) -> Tensor:
        if self.parts > 1:
            raise ValueError(
                "the model looks across the global batch, which train.accumulate trains in "
                f"{self.parts} parts; set train.accumulate=1"
            )
        return tensor if self.world.size == 1 else Gather.apply(tensor, self.world)


class Gather(torch.autograd.Function):
    """[b, ...] of every rank -> [global b, ...], in order of rank, which is that of samples."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, world: World) -> Tensor:
        joined, lengths = world.gather([tensor.detach().contiguous()])
        context.world, context.lengths = world, [length for (length,) in lengths]
        return joined[0]

    @staticmethod
    def backward(context: Any, grads: Tensor) -> tuple[Tensor, None]:
        """The gradients that all ranks have for this rank's samples, summed in order of rank."""
        world, lengths = context.world, context.lengths
        own_length = lengths[world.rank]
        received = world.all_to_all(grads.float().contiguous(), lengths, [own_length] * world.size)
        return received.view(world.size, own_length, *grads.shape[1:]).sum(0).to(grads.dtype), None


class Single(Strategy):
    """One process, rows in its own memory: the reference that every other strategy must equal."""

    name = "single"

    def __init__(self, world: World | None = None, fused: bool = True):
        super().__init__(world)
        self.fused = fused

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        engines = self.make_engines(tables, self.fused)
        self.local_rows = LocalRows(engines, self.rules, self.world.device)
        self.prefetches = bool(self.local_rows.offloaded_tables)
        return self.local_rows

    def forward_backward(self, parts: Sequence[Batch]) -> Sums:
        """A batch in one part has gradients of its mean loss at once: nothing is scaled later."""
        if len(parts) > 1:
            return super().forward_backward(parts)
        output = self.forward(parts[0])
        mean = output.loss * _one_over_count(output)
        mean.backward()
        return Sums(mean.detach(), 1)

    def update(self, sums: Sums, lr: float) -> Tensor:
        scale = 1.0 / max(1.0, float(sums.count))
        if scale != 1.0:
            for parameter in self.dense:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        gradients, row_scale = self.clip(self.rows.collect().rows, scale)
        if self.dense_optimizer is not None:
            self.dense_optimizer.step(lr)
        self.rows.apply(gradients, lr, row_scale)
        return sums.loss if scale == 1.0 else sums.loss * scale


def _one_over_count(output: Output) -> float | Tensor:
    """1 / the terms of a batch's loss."""
    count = output.count
    if isinstance(count, Tensor):  # a GPU is not waited for
        return count.clamp(min=1).to(output.loss).reciprocal().view_as(output.loss)
    return 1.0 / count if count else 0.0

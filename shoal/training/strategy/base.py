"""Strategy: how dense parameters agree between ranks, and where rows live.

It is applied to a model from outside. Without any config file:

    strategy = Single()
    strategy.setup(model, OptimizerSection(name="adagrad", lr=0.1), seed=1)
    for batch in batches:
        loss = strategy.train_step(batch)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.config.errors import did_you_mean
from shoal.config.row_rules import RowRules, RowsSection
from shoal.config.schema import OptimizerSection
from shoal.data.batch import Batch
from shoal.embedding.leaves.admission import admission_of, tend
from shoal.embedding.leaves.local import make_local, push_all
from shoal.embedding.module import Embeddings
from shoal.embedding.optim.dense import dense_step, make_optimizer, restore_state, state_tensors
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.placed.duplicates import sum_duplicates
from shoal.embedding.store import Store
from shoal.embedding.table import Table
from shoal.models.base import Model, Output
from shoal.world.world import World

Gradients = dict[str, tuple[Tensor, Tensor]]  # table -> (ids [n], gradients [n, dim])


class Strategy:
    """Base: everything on this process, gradients as they are. Others override what differs."""

    name = "single"
    saves_rows = False  # whether rows are written and read where they are, not by rank 0
    spreads_rows = False  # whether ranks hold tables together, which may be too much for one

    def __init__(self, world: World | None = None):
        self.world = world or World()

    fused = False  # whether gradients of rows may stay unwritten where that is faster
    precision = "float32"  # of products in the dense part
    rows_section = RowsSection()  # which ids of growing tables have rows; likewise
    cannot_count: str | None = None  # why ids cannot be counted here, where they cannot
    compiled = False  # whether torch.compile makes the dense part; to be set before `setup`

    def setup(
        self,
        model: Model,
        optimizer: OptimizerSection,
        seed: int,
        clip_grad_norm: float | None = None,
    ) -> None:
        """Give every table of the model a store and its dense parameters an optimizer."""
        self.model = model.to(self.world.device)
        self.optimizer_section = optimizer
        self.clip_grad_norm = clip_grad_norm
        self.row_optimizer = RowOptimizer(optimizer.name, weight_decay=optimizer.weight_decay)
        self.seed = seed
        self.embeddings = [m for m in model.modules() if isinstance(m, Embeddings)]
        tables: dict[str, Table] = {}
        for module in self.embeddings:
            clash = tables.keys() & module.tables.keys()
            if clash:
                raise ValueError(f"two Embeddings of one model both have a table {min(clash)!r}")
            tables.update(module.tables)
        self.rules = self._make_rules(tables)
        self.counted = {name for name, rules in self.rules.items() if rules.counted}
        self._counts: dict[str, Tensor] = {}  # [n, 2]: shows and clicks of the ids of a step
        self.stores = self.make_stores(tables)
        for module in self.embeddings:
            module.attach(lambda table: self.stores[table.name])
        self.dense = [p for p in model.parameters() if p.requires_grad]
        self.dense_optimizer = make_optimizer(optimizer, self.dense)
        self._call: Callable[[Batch], Output] = model
        if self.compiled:
            for module in self.embeddings:
                module.stay_out_of_compilation()
            self._call = torch.compile(model, dynamic=True)

    def _make_rules(self, tables: dict[str, Table]) -> dict[str, RowRules]:
        """The rules of those growing tables that have any."""
        section = self.rows_section
        growing = [name for name, table in tables.items() if table.rows is None]
        for name in section.tables:
            if name not in growing:
                raise ValueError(
                    f"rows.tables names a table {name!r} that the model does not have, or that "
                    f"does not grow; its growing tables are: {', '.join(growing) or 'none'}"
                    f"{did_you_mean(name, growing)}"
                )
        if not section.asked:
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
        rules = {name: section.of(name) for name in growing}
        return {name: one for name, one in rules.items() if one.on}

    def make_stores(self, tables: dict[str, Table]) -> dict[str, Store]:
        """A store for every table of the model."""
        return {name: self.leaf(table) for name, table in tables.items()}

    def leaf(self, table: Table) -> Store:
        """Rows in this process, on its device."""
        return make_local(
            table,
            self.row_optimizer,
            self.seed,
            admission=admission_of(self.rules.get(table.name)),
            device=self.world.device,
            fused=self.fused and self.clip_grad_norm is None,  # which needs all gradients at once
        )

    def receive(self, batch: Batch) -> Batch:
        """The batch where `train_step` wants it."""
        return batch.to(self.world.device)

    def prefetch(self, batch: Batch) -> None:
        """A hint: this batch comes after the next `train_step`."""

    def train_step(self, batch: Batch, lr: float | None = None) -> Tensor:
        """Forward, backward and update on this rank's slice; the mean loss of the global batch."""
        output = self.forward(batch)
        self.backward(output)
        return self.step(self.optimizer_section.lr if lr is None else lr)

    def train_parts(self, parts: Sequence[Batch], lr: float | None = None) -> Tensor:
        """As `train_step`, with this rank's slice in parts: one update, less memory."""
        if len(parts) == 1:
            return self.train_step(parts[0], lr)
        loss, count = torch.zeros((), device=self.world.device), 0
        for part in parts:
            output = self.forward(part)
            output.loss.backward()
            loss = loss + output.loss.detach()
            count = count + output.count  # type: ignore[assignment]
        return self.step_sums(loss, count, self.optimizer_section.lr if lr is None else lr)

    def step_sums(self, loss: Tensor, count: int | Tensor, lr: float) -> Tensor:
        """Update by gradients of a summed loss that has `count` terms; the mean loss."""
        scale = 1.0 / max(1.0, float(count))
        for parameter in self.dense:
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
        gradients = {name: (ids, g * scale) for name, (ids, g) in self.take_gradients().items()}
        self.update(gradients, lr, scale)
        return loss * scale

    def compute(self, batch: Batch) -> Output:
        """What the model makes of a batch, in the precision asked for."""
        if self.precision == "float32":
            return self._call(batch)
        with torch.autocast(self.world.device.type, torch.bfloat16):
            return self._call(batch)

    def forward(self, batch: Batch) -> Output:
        """The summed loss of this rank's slice."""
        if self.counted:
            for module in self.embeddings:
                module.note_labels(batch)
        return self.compute(batch)

    def backward(self, output: Output) -> None:
        """Leave the gradients of the mean loss on the dense parameters and the pulled rows."""
        # Scaling the loss costs nothing; scaling the gradients afterwards would. (So would handing
        # the scale to backward: torch then imports all of its symbolic shapes.)
        count = output.count
        if isinstance(count, Tensor):  # a GPU is not waited for
            mean = output.loss * count.clamp(min=1).to(output.loss).reciprocal()
        else:
            mean = output.loss * (1.0 / count if count else 0.0)
        mean.backward()
        self._mean_loss = mean.detach()

    def step(self, lr: float) -> Tensor:
        """Update dense parameters and rows; the mean loss of the global batch."""
        self.update(self.take_gradients(), lr)
        return self._mean_loss

    def take_gradients(self) -> Gradients:
        """The rows' gradients of this rank since the last call."""
        gradients: Gradients = {}
        for module in self.embeddings:
            if self.counted:
                counts = module.take_counts()
                # In the tables' own order: ranks send them one after the other.
                self._counts |= {name: c for name, c in counts.items() if name in self.counted}
            gradients.update(module.take_gradients())
        return gradients

    def update(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        """One optimizer step with the gradients of the global batch.

        `scale` is what they were multiplied with after backward.
        """
        if self.clip_grad_norm is not None:
            gradients = self._clip(gradients, self.clip_grad_norm)
        if self.dense_optimizer is not None:
            dense_step(self.dense_optimizer, lr)
        self.push(gradients, lr)
        for module in self.embeddings:
            module.step_softmax(lr, scale)

    def push(self, gradients: Gradients, lr: float) -> None:
        """Update the rows of every table, and let rows go whose time has come."""
        counts = [self._counts.get(name) for name in gradients]
        push_all([self.stores[name] for name in gradients], list(gradients.values()), lr, counts)
        self._counts = {}
        for name, rules in self.rules.items():
            tend(self.stores[name], rules)

    def _clip(self, gradients: Gradients, max_norm: float) -> Gradients:
        """Scale all gradients so that their joint L2 norm is at most `max_norm`."""
        for name, counts in self._counts.items():
            self._counts[name] = sum_duplicates(gradients[name][0].cpu(), counts)[1]
        gradients = {name: sum_duplicates(*pair) for name, pair in gradients.items()}
        dense = [p.grad for p in self.dense if p.grad is not None]
        every = dense + [grads for _, grads in gradients.values()]
        norm = torch.sqrt(sum_squares(dense) + self.row_squares(gradients))
        scale = float((max_norm / (norm + 1e-6)).clamp(max=1.0))
        if scale < 1.0:
            torch._foreach_mul_(every, scale)
        return gradients

    def row_squares(self, gradients: Gradients) -> Tensor:
        """The sum of squares of all rows' summed gradients, wherever they are."""
        return sum_squares([grads for _, grads in gradients.values()])

    def settle(self) -> None:
        """All ranks: let what is on its way arrive, before the model is evaluated or saved."""

    def dense_state(self) -> dict[str, Tensor]:
        """The dense optimizer's state as flat tensors, for a checkpoint."""
        return state_tensors(self.dense_optimizer, self.dense)

    def restore_dense(self, tensors: dict[str, Tensor]) -> None:
        """All ranks: take over the model's present dense parameters, and their state as given."""
        restore_state(self.dense_optimizer, self.dense, tensors)

    def can_save_delta(self) -> bool:
        """Where rows live apart: whether what changed since the last save is enough to write."""
        return True

    def start_saving(self, folder: Path, delta: bool) -> Any:
        """Where rows live apart (`saves_rows`): let them be written into a folder; see Saving."""
        raise NotImplementedError  # only such strategies are asked

    def load_rows(
        self, folder: Path, files: dict[str, Any], steps: dict[str, int], fresh: bool
    ) -> None:
        """Likewise: let rows be read from files of a checkpoint; fresh: forget all others."""
        raise NotImplementedError  # only such strategies are asked

    def on_peer_lost(self, leave: Callable[[str], None]) -> None:
        """What to call when a peer is lost while this process waits where it cannot hear of it."""

    def close(self) -> None:
        """The run is over."""

    def owned_rows(self) -> Iterator[tuple[str, Store]]:
        """The stores whose rows this rank exports for a checkpoint."""
        yield from self.stores.items()


def sum_squares(tensors: list[Tensor]) -> Tensor:
    """The sum of squares of everything in them."""
    norms = [torch.linalg.vector_norm(tensor).square().cpu() for tensor in tensors]
    return torch.stack(norms).sum() if norms else torch.zeros(())

"""Loop: a training loop of the user's on many processes; what a CollectiveStrategy does.

Modules that are built in its scopes read rows from a service, a hook of torch's optimizer sums the
dense gradients and updates rows. Beneath it is the strategy `sharded` (alone: `single`), with its
row service and its backends.
"""

from __future__ import annotations

import atexit
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from shoal.config.collective import choose_backend
from shoal.config.schema import OptimizerSection, StrategySection
from shoal.distributed.rank_variables import is_first
from shoal.distributed.world import World, connect
from shoal.embedding.engines.init import initial_rows
from shoal.embedding.rows.store import Rows, Store
from shoal.embedding.rows.table import Table
from shoal.loop.modules import SpreadModule, Weighing, entered, take_over
from shoal.loop.slices import cut, size_of
from shoal.loop.updates import RowUpdates, SteppedByUser, optimizer_section
from shoal.models.base import Facts, Model
from shoal.training.checkpoint.writing import Checkpoints, Snapshot, restore_into
from shoal.training.strategies import make_strategy
from shoal.training.strategies.base import Sums

T = TypeVar("T")


class Number(int):
    """A number that may be called: `strategy.rank` and `strategy.rank()` are the same."""

    def __call__(self) -> int:
        return int(self)


class Assembled(Model):
    """The embedding modules of a strategy, as a model that can be set up."""

    def __init__(self, modules: list[SpreadModule]):
        super().__init__(None, Facts())
        self.parts = nn.ModuleList(modules)


class Loop:
    """Processes that train one model together; alone, the same loop on one."""

    def __init__(
        self,
        backend: str | None = None,
        *,
        reduction: Literal["mean", "sum"] = "mean",
        device: str = "auto",
        seed: int = 2020,
        world: World | None = None,
        **sections: Any,
    ):
        report = is_first() if world is None else world.is_main
        self.backend = choose_backend(backend, report=report)
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction is {reduction!r}; it is mean or sum, as that of your loss")
        self.reduction = reduction
        self.seed = seed
        if world is None:
            world = connect(device)
            atexit.register(world.close)
        self.world = world
        name = "sharded" if world.size > 1 else "single"
        self._inner = make_strategy(StrategySection(name=name, **sections), world)
        self.weighing = Weighing(1.0 / world.size if reduction == "mean" else 1.0)
        self.in_embedding_scope = False
        self._built: list[nn.Module] = []  # torch's embeddings, to be taken over
        self._spread: list[SpreadModule] = []
        self._dense: torch.optim.Optimizer | None = None
        self._ready = False
        self.previewing = False  # whether rows may be looked at before they are

    @property
    def world_size(self) -> Number:
        """How many processes there are: `strategy.world_size` or `strategy.world_size()`."""
        return Number(self.world.size)

    @property
    def rank(self) -> Number:
        """Which of them this is, from 0."""
        return Number(self.world.rank)

    @property
    def device(self) -> torch.device:
        """Where this process computes: `model.to(strategy.device)`."""
        return self.world.device

    # ---- building a model -----------------------------------------------------------------------

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Around the definition of a model: layers begin the same on every process.

        At its end, modules that were built within an embedding_scope are spread.
        """
        # Everybody goes on with rank 0's random state, so the numbers are those of one process.
        state = torch.get_rng_state().numpy().tobytes() if self.world.is_main else None
        data = bytearray(self.world.broadcast_bytes(state))
        torch.set_rng_state(torch.frombuffer(data, dtype=torch.uint8))
        with self.entered():
            yield
        if self not in entered:
            self.take_over_built()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let modules that are built or called belong to this strategy."""
        entered.append(self)
        try:
            yield
        finally:
            entered.pop()

    @contextmanager
    def embedding_scope(self) -> Iterator[None]:
        """Spread the rows of embeddings that are built in this context, shoal's and torch's."""
        if self not in entered:
            with self.scope(), self.embedding_scope():
                yield
            return
        before, self.in_embedding_scope = self.in_embedding_scope, True
        kinds: Any = (nn.Embedding, nn.EmbeddingBag)
        originals = [kind.__init__ for kind in kinds]
        for kind, original in zip(kinds, originals):
            kind.__init__ = _noting(original, self._built)
        try:
            yield
        finally:
            self.in_embedding_scope = before
            for kind, original in zip(kinds, originals):
                kind.__init__ = original

    def preview(self, table: Table, ids: Tensor) -> Tensor:
        """Rows before there are any, as they will begin: that is where a model is tried out."""
        if not self.previewing:
            raise RuntimeError(
                f"embedding {table.name!r} has no rows yet: call strategy.optimizer(...) first"
            )
        return initial_rows(table, self.seed, ids.reshape(-1)).view(*ids.shape, table.dim)

    def adopt(self, module: SpreadModule) -> None:
        """Take an embedding into the strategy."""
        if self._ready:
            raise RuntimeError(
                f"embedding {module.table.name!r} is built after strategy.optimizer(...)"
            )
        self._spread.append(module)

    def take_over_built(self) -> None:
        """Spread torch's own embeddings, with the weights that they have now."""
        built = list(dict.fromkeys(self._built))  # a subclass's __init__ may be noted twice
        self._built.clear()
        for module in built:
            taken = take_over(module, f"embedding_{len(self._spread)}", self)
            if taken is not None:
                self.adopt(taken)

    # ---- training -------------------------------------------------------------------------------

    def optimizer(
        self,
        dense: torch.optim.Optimizer | None = None,
        rows: str | None = None,
        lr: float | None = None,
        **options: Any,
    ) -> Any:
        """Let `dense` update all processes' dense parameters as one, and rows with them.

        dense: any optimizer of torch's, which is given back; None: there are only rows.
        rows: what updates them (adagrad, ftrl, ...), with its `lr` and hyper-parameters; None: as
        dense does, row by row, and rows that a step does not touch rest.
        """
        if self._ready:
            raise RuntimeError("the strategy has an optimizer; make a second strategy for another")
        self.set_up(optimizer_section(dense, rows, lr, options), dense)
        if dense is None:
            return RowUpdates(self._step, self.section.lr)
        dense.register_step_pre_hook(
            lambda optimizer, args, kwargs: self._step(float(optimizer.param_groups[0]["lr"]))
        )
        return dense

    def set_up(self, section: OptimizerSection, dense: torch.optim.Optimizer | None = None) -> None:
        """Create the rows, with the optimizer of a section."""
        self.section = section
        self._inner.setup(Assembled(self._spread), section, self.seed)
        groups = [] if dense is None else dense.param_groups
        parameters = [p for group in groups for p in group["params"] if p.numel()]
        self._inner.dense = parameters
        stepped: Any = None if dense is None else SteppedByUser(dense)
        self._inner.dense_optimizer = stepped
        self._dense = dense
        self._ready = True
        self._begin_alike(parameters)
        for module in self._spread:
            if module.first_rows is not None:
                self._give_rows(self._inner.stores[module.table.name], module.first_rows)
                module.first_rows = None
        self._begin()

    def _begin_alike(self, parameters: list[Tensor]) -> None:
        """Copy rank 0's dense parameters to every rank."""
        if self.world.size == 1:
            return
        for parameter in parameters:
            values = parameter.detach().cpu().contiguous().reshape(-1)
            data = values.view(torch.uint8).numpy().tobytes() if self.world.is_main else None
            came = torch.frombuffer(bytearray(self.world.broadcast_bytes(data)), dtype=values.dtype)
            with torch.no_grad():
                parameter.copy_(came.view_as(parameter))

    def _give_rows(self, store: Store, values: Tensor) -> None:
        """Rows begin with the values that a module of torch's had."""
        digest = hashlib.sha256(values.contiguous().numpy().tobytes()).digest()
        if self.world.broadcast_bytes(digest if self.world.is_main else None) != digest:
            raise ValueError(
                f"the weight of {store.table.name} begins otherwise on rank {self.world.rank} than "
                "on rank 0; build it within strategy.scope()"
            )
        first = self._inner.row_optimizers[store.table.name].initial_state()
        for ids in torch.arange(len(values)).split(1 << 20):
            state = {
                key: torch.full(shape, first.get(key, 0.0), dtype=kind)
                for key, (shape, kind) in store.state_shapes(len(ids)).items()
            }
            store.restore(Rows(ids, values[ids], state))

    def _begin(self) -> None:
        """A step begins: its lookups' gradients are collected at its end."""
        self._inner.rows.begin(object(), [])

    def _step(self, lr: float) -> None:
        """After the user's backward: the strategy's update, by gradients of the global batch."""
        if self.world.size > 1:
            for parameter in self._inner.dense:
                if parameter.grad is not None:
                    parameter.grad.mul_(self.weighing.weight)
        # Every rank has its share of a loss that is a mean already.
        sums = Sums(torch.zeros((), device=self.device), 1.0 / self.world.size)
        self._inner.update(sums, lr)
        self._begin()

    def split(self, batches: Iterable[T]) -> Iterator[T]:
        """This process's slice of every batch: of tensors, and of tuples, lists and dicts of them.

        Every process walks over the same batches. A slice may be empty.
        """
        for batch in batches:
            yield self.slice(batch)

    def slice(self, batch: T) -> T:
        """This process's slice of one batch, which its gradients count for from now on."""
        size = size_of(batch)
        low, high = self.world.slice(size)
        if self.reduction == "mean":
            self.weighing.weight = (high - low) / size if size else 0.0
        return cut(batch, low, high, size)

    def mean(self, loss: Tensor) -> float:
        """The loss of the global batch, from that of this process's slice."""
        share = self.weighing.weight
        value = loss.detach().double().reshape(1).to(self.world.device)
        weighted = torch.zeros_like(value) if share == 0.0 else value * share
        return float(self.world.all_reduce(weighted))

    # ---- checkpoints ----------------------------------------------------------------------------

    @property
    def stores(self) -> dict[str, Store]:
        """Table -> its rows."""
        return self._inner.stores

    def synchronize(self) -> None:
        """Let all updates of rows be done; refused before there are rows."""
        if not self._ready:
            raise RuntimeError("checkpoints and exports come after strategy.optimizer(...)")
        self._inner.synchronize()

    def save(
        self,
        folder: str | os.PathLike[str],
        model: nn.Module,
        step: int,
        keep: int = 2,
        **state: Any,
    ) -> None:
        """Commit a checkpoint: the model's dense state, the optimizer's, and all rows, by id.

        keep: how many stay. state: whatever else of JSON is to be found in it again.
        """
        checkpoints = self._checkpoints(folder, model, keep)
        optimizer = self.section.model_dump(mode="json")
        state = {**state, "step": step, "best_step": None, "optimizer": optimizer}
        checkpoints.save(self._inner, state)
        checkpoints.wait()
        self.world.barrier()

    def restore(self, folder: str | os.PathLike[str], model: nn.Module) -> int | None:
        """Restore the newest checkpoint: its step; None where there is none."""
        newest = self._checkpoints(folder, model).load_newest()
        if newest is None:
            return None
        self.go_back(newest, model)
        return int(newest.state["step"])

    def go_back(self, snapshot: Snapshot, model: nn.Module) -> None:
        """Take over what a checkpoint holds."""
        self._inner.model = cast(Model, model)
        restore_into(self._inner, snapshot)
        self._begin()

    def _checkpoints(
        self, folder: str | os.PathLike[str], model: nn.Module, keep: int = 2
    ) -> Checkpoints:
        self.synchronize()
        self._inner.model = cast(Model, model)  # whose dense state is saved
        return Checkpoints(Path(folder).resolve(), self.world, keep)


def _noting(original: Any, built: list[nn.Module]) -> Any:
    def __init__(self: nn.Module, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        built.append(self)

    return __init__

"""Row services for tests that use a module without a strategy, and their gradients as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.distributed.world import World
from shoal.embedding.module import Embeddings
from shoal.embedding.placements.shard_engine import make_shard_engines
from shoal.embedding.placements.sharded import ShardedRows
from shoal.embedding.placements.sharded_table import ShardedTable
from shoal.embedding.rows.admission import Admission
from shoal.embedding.rows.placement import Sharding
from shoal.embedding.rows.store import Every, Ids
from shoal.embedding.rows.table import Table
from shoal.embedding.service import Gradients, LocalRows, Lookup, RowGradients, RowService
from shoal.kernels.bags import sum_bags
from shoal.optimizers.row_optimizer import RowOptimizer


def attach(module: Embeddings, make_engine: Callable[[Table], Any]) -> LocalRows:
    """Give every table of a module its own engine."""
    service = LocalRows({name: make_engine(table) for name, table in module.tables.items()})
    module.attach(service)
    return service


class Weights:
    """A store of given rows; row 0 of a table with padding is zeros."""

    far = False

    def __init__(self, table: Table):
        self.table = table
        random = torch.Generator().manual_seed(sum(map(ord, table.name)))
        assert table.rows is not None
        self.weight = torch.randn(table.rows, table.dim, generator=random) / 2
        if table.padding is not None:
            self.weight[table.padding] = 0

    def view_rows(self) -> None:
        """Rows are not lent."""

    def pull(self, ids: Ids) -> Tensor:
        return self.weight.clone() if isinstance(ids, Every) else self.weight[ids]

    @staticmethod
    def pull_many(
        stores: list[Weights], ids: list[Ids], learn: bool = False, bags: Sequence[Any] = ()
    ) -> list[Tensor]:
        found = [store.pull(part) for store, part in zip(stores, ids)]
        over = zip(found, bags or [None] * len(ids))
        return [x if b is None else sum_bags(x, b.offsets, weights=b.weights) for x, b in over]


def taken(service: RowService) -> dict[str, tuple[Tensor, Tensor]]:
    """Table -> ids and gradients since the last call, every row named by its id."""
    return {name: pair(one) for name, one in service.collect().rows.items()}


def pair(one: RowGradients) -> tuple[Tensor, Tensor]:
    ids = torch.arange(len(one.grads)) if isinstance(one.ids, Every) else one.ids
    return ids, one.grads


def pull(service: RowService, name: str, ids: Tensor) -> Tensor:
    """Rows of one table, as nobody learns from them."""
    return service.pull([Lookup(name, ids)], learn=False)[0]


def push(service: RowService, name: str, ids: Tensor, grads: Tensor, lr: float) -> None:
    """A step of one table by given gradients; others have none."""
    service.begin(object(), [])
    rows = service.pull([Lookup(name, ids)], learn=True)[0]
    torch.autograd.backward(rows, grads.to(rows))
    gradients: Gradients = service.collect().rows
    service.apply({name: gradients[name]} if name in gradients else {}, lr)
    service.synchronize()


class Alone(ShardedTable):
    """A sharded table with a service of its own. Every call is made by all ranks together."""

    def __init__(
        self,
        sharding: Sharding,
        world: World,
        optimizer: RowOptimizer,
        seed: int,
        admission: Admission | None = None,
    ):
        name = sharding.table.name
        engines = make_shard_engines(
            {name: sharding}, world.rank, {name: optimizer}, seed, admissions={name: admission}
        )
        super().__init__(sharding, world, optimizer, engines.get(name), admission)
        self.service = ShardedRows(world, {self.table.name: self})

    def pull(self, ids: Tensor) -> Tensor:
        return pull(self.service, self.table.name, ids.reshape(-1))

    def push(self, ids: Tensor, grads: Tensor, lr: float) -> None:
        push(self.service, self.table.name, ids.reshape(-1), grads, lr)

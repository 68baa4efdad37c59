"""TorchRec as the oracle of sharded tables: a strategy and its row service, for tests.

Rows live in TorchRec's sharded embedding collections. TorchRec takes the distinct ids of a step to
their owners and the rows back; on backward it takes the gradients to the owners and runs FBGEMM's
fused optimizer there.

A fused optimizer runs once for every backward, but a row must be updated once a step, with the sum
of its gradients over all lookups and ranks. So models get rows that are separate leaves, and
TorchRec's backward comes at the end of the step, once per table. By then the learning rate and the
number of samples of the global batch are known too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingEnv

from shoal.config.schema import StrategySection
from shoal.config.strategy_section import STRATEGIES
from shoal.distributed.world import World
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.output_table import InPlaceRows
from shoal.embedding.placements.shard_engine import write_initial
from shoal.embedding.placements.sharded_table import ShardedTable
from shoal.embedding.placements.trips import RoutedRows, Trip
from shoal.embedding.rows.admission import Shrink
from shoal.embedding.rows.placement import Placement, Sharding
from shoal.embedding.rows.store import Every, Ids, Rows, Store
from shoal.embedding.rows.table import Table
from shoal.embedding.service import (
    Collected,
    Gradients,
    Lookup,
    RowGradients,
    RowService,
    join_flat,
)
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.optimizers.selection import row_optimizer_of
from shoal.training.strategies import register_strategy
from shoal.training.strategies.sharded import Sharded

OPTIMIZERS = {"sgd": EmbOptimType.EXACT_SGD, "adagrad": EmbOptimType.EXACT_ADAGRAD}
LANES = 4  # the width of FBGEMM's rows is a multiple; narrower rows are padded with zeros


class Blocks(Sharding):
    """TorchRec's cut by rows: ranges of ceil(rows / ranks) ids; the last ranks may have fewer."""

    def __init__(self, table: Table, size: int):
        super().__init__(table, Placement("row", "range"), size)
        rows = table.rows or 0
        block = -(-rows // size)
        self.bounds = [min(block * rank, rows) for rank in range(size + 1)]
        self.shares = [b - a for a, b in zip(self.bounds, self.bounds[1:])]


class Collection:
    """The tables of one width, in one sharded collection of TorchRec's."""

    def __init__(self, tables: list[Table], width: int, world: World, optimizer: RowOptimizer):
        self.names, self.width, self.world = [table.name for table in tables], width, world
        # TorchRec names modules by these, and not every table's name is fit for that.
        self._keys = [f"table_{number}" for number in range(len(tables))]
        plain = EmbeddingCollection(
            [
                EmbeddingConfig(
                    name=key, embedding_dim=width, num_embeddings=table.rows, feature_names=[key]
                )
                for key, table in zip(self._keys, tables)
            ],
            device=torch.device("meta"),  # rows are made where they will live
        )
        sharder = EmbeddingCollectionSharder(
            {
                "optimizer": OPTIMIZERS[optimizer.name],
                "learning_rate": 0.0,  # comes with each step
                "eps": optimizer.eps,
            }
        )
        env = ShardingEnv.from_process_group(world.group())
        kernel = EmbeddingComputeKernel.FUSED.value
        plan = construct_module_sharding_plan(
            plain,
            {key: row_wise(compute_kernel=kernel) for key in self._keys},
            sharder,
            local_size=1 if world.size == 1 else None,  # None: as the launcher says
            world_size=world.size,
            device_type=world.device.type,
        )
        self._module = sharder.shard(plain, plan, env, world.device)
        self._optimizer = self._module.fused_optimizer

    def shard(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Views of a table's rows on this rank [share, width] and of their Adagrad sums."""
        key = self._keys[self.names.index(name)]
        weight = f"embeddings.{key}.weight"
        values = dict(self._module.named_parameters())[weight].detach()
        state = self._optimizer.state_dict()["state"].get(weight, {}).get(f"{key}.momentum1")
        return values, None if state is None else state.local_shards()[0].tensor

    def look_up(self, ids: list[Tensor]) -> list[Tensor]:
        """Distinct ids of every table [n] -> rows [n, width], which `update` runs backward."""
        # FBGEMM has no kernels for inference mode; without gradients they do the same.
        with torch.inference_mode(False), torch.set_grad_enabled(torch.is_grad_enabled()):
            # One list of ids per table.
            lengths = torch.tensor([len(one) for one in ids], device=self.world.device)
            rows_by_key = self._module(
                KeyedJaggedTensor(self._keys, torch.cat(ids), lengths=lengths)
            )
            return [rows_by_key[key].values() for key in self._keys]

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next lookups: FBGEMM records it when rows are read."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()  # fused: this only hands the learning rate on

    def update(self, rows: list[Tensor], grads: list[Tensor], scale: float) -> None:
        """One optimizer step with gradients [n, dim] of `look_up`'s rows, summed over the ranks."""
        if get_gradient_division():
            scale *= self.world.size  # TorchRec takes the mean over ranks
        width = self.width
        wide = [F.pad(grad, (0, width - grad.shape[1])).mul(scale) for grad in grads]
        torch.autograd.backward(rows, wide)


class Shard(RowEngine):
    """This rank's rows of one table, by their places. FBGEMM updates them, so nothing is pushed."""

    def __init__(self, table: Table, collection: Collection, optimizer: RowOptimizer, seed: int):
        super().__init__(table, optimizer, seed)
        self.values, self.sums = collection.shard(table.name)
        self.values.zero_()  # the padding of narrow rows

    def __len__(self) -> int:
        return len(self.values)

    def pull(self, ids: Ids) -> Tensor:
        if isinstance(ids, Every):
            return self.values[:, : self.table.dim].clone()
        return self.values[ids.to(self.values.device), : self.table.dim]

    def push(self, ids: Ids, grads: Tensor, lr: float, counts: Tensor | None = None) -> None:
        raise NotImplementedError  # gradients pass through the collection

    def shrink(self, rule: Shrink) -> int:
        raise NotImplementedError  # its tables are fixed

    def restore(self, rows: Rows) -> None:
        keys, dim = rows.ids.to(self.values.device), self.table.dim
        self.values[keys, :dim] = rows.values.to(self.values.device)
        if self.sums is not None:
            self.sums[keys, :dim] = rows.state["sum"].to(self.sums.device)

    def export(self, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        dim = self.table.dim
        for start in range(0, len(self), chunk_rows):
            chunk = slice(start, min(start + chunk_rows, len(self)))
            state = {} if self.sums is None else {"sum": self.sums[chunk, :dim].cpu().clone()}
            values = self.values[chunk, :dim].cpu().clone()
            yield Rows(torch.arange(chunk.start, chunk.stop), values, state)


class TorchRecTrip(Trip):
    """Lookups in several tables that TorchRec answers together; all ranks make the same trips."""

    def __init__(self, rows: TorchRecRows, lookups: Sequence[Lookup]):
        super().__init__(rows.sharded, lookups, rows.device)
        self.rows = rows
        self.lr = rows.lr  # the learning rate its rows are read with
        self.answers: dict[int, list[Tensor]] = {}  # collection -> its rows, with their graph

    def fetch(self) -> None:
        """Bring the rows here: owners read them now."""
        for number, collection in enumerate(self.rows.collections):
            if not any(name in self.parts for name in collection.names):
                continue
            answer = collection.look_up([self.ids(name) for name in collection.names])
            self.answers[number] = answer
            # Rows that an owner sends are counted where they arrive: only there are they known.
            self.rows.world.bytes_sent += self.num_away(collection) * (8 + 4 * collection.width)
            for name, rows in zip(collection.names, answer):
                part = self.parts.get(name)
                if part is not None:
                    part.take_rows(rows.detach()[:, : part.sharding.table.dim].contiguous())

    def num_away(self, collection: Collection) -> int:
        """How many of a collection's rows belong to other ranks."""
        parts = [self.parts[name] for name in collection.names if name in self.parts]
        return sum(len(part.keys) - part.counts[self.rows.world.rank] for part in parts)

    def ids(self, name: str) -> Tensor:
        """The distinct ids of a table, ascending."""
        device = self.rows.device
        part = self.parts.get(name)
        if part is None:
            return torch.empty(0, dtype=torch.int64, device=device)
        firsts = torch.tensor(part.sharding.bounds[:-1], device=device)
        return part.keys + firsts.repeat_interleave(torch.tensor(part.counts, device=device))

    def grads(self, name: str) -> Tensor:
        """Gradients of the distinct ids of a table: [n, dim]."""
        part = self.parts.get(name)
        if part is None or part.grads is None:
            dim, length = self.rows.sharded[name].table.dim, 0 if part is None else len(part.keys)
            return torch.zeros(length, dim, device=self.rows.device)
        return part.grads[: len(part.keys)]

    def update(self, number: int, scale: float) -> None:
        """Update the rows that came from one of the collections."""
        collection = self.rows.collections[number]
        grads = [self.grads(name) for name in collection.names]
        collection.update(self.answers[number], grads, scale)
        self.rows.world.bytes_sent += self.num_away(collection) * 4 * collection.width


class TorchRecRows(RoutedRows[TorchRecTrip]):
    """Reads and updates the tables of one model through TorchRec."""

    def __init__(self, world: World, tables: list[Table], optimizer: RowOptimizer, seed: int):
        by_width: dict[int, list[Table]] = {}
        for table in tables:  # TorchRec wants the tables of a collection to be of one width
            by_width.setdefault(-(-table.dim // LANES) * LANES, []).append(table)
        self.lr = 0.0
        self.collections: list[Collection] = []
        placed: dict[str, ShardedTable] = {}
        for width, width_tables in by_width.items():
            collection = Collection(width_tables, width, world, optimizer)
            self.collections.append(collection)
            for table in width_tables:
                sharding, shard = (
                    Blocks(table, world.size),
                    Shard(table, collection, optimizer, seed),
                )
                placed[table.name] = ShardedTable(sharding, world, optimizer, shard)
                write_initial(shard, sharding, world.rank, seed)
        super().__init__(placed, None, world.device)
        self.world, self.sharded = world, placed

    @property
    def stores(self) -> dict[str, Store]:
        return dict(self.sharded)

    def _everywhere(self, missing: bool) -> bool:
        vote = torch.tensor([float(missing)], device=self.device)
        return float(self.world.all_reduce(vote)) == 0

    def _rows_in_place(self, name: str) -> InPlaceRows:
        table = self.sharded[name]
        return InPlaceRows(table.engine, split=(table.sharding, self.world))

    def _trip(self, lookups: Sequence[Lookup]) -> TorchRecTrip:
        return TorchRecTrip(self, lookups)

    def _set_lr(self, lr: float) -> None:
        if lr != self.lr:
            for collection in self.collections:
                collection.set_lr(lr)
        self.lr = lr

    def collect(self, dense: Sequence[Tensor] = ()) -> Collected:
        """Dense gradients only: rows' gradients go to their owners in `apply`."""
        return Collected(self.world.all_reduce(join_flat(dense, self.device)), {})

    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        """Update the rows of this step, each by the sum of its gradients times `scale`."""
        trips = self._end_step()
        outputs = self._take_outputs(())
        self._set_lr(lr)
        for number, collection in enumerate(self.collections):
            collection_trips = [trip for trip in trips if number in trip.answers]
            output_gradients = {name: outputs.get(name, []) for name in collection.names}
            has_outputs = any(name in self._read_whole for name in collection.names)
            if not collection_trips and not has_outputs:
                continue  # every rank decides the same
            ready = len(collection_trips) == 1 and not has_outputs and collection_trips[0].lr == lr
            trip = (
                collection_trips[0]
                if ready
                else self._joined_trip(collection, collection_trips, output_gradients)
            )
            trip.update(number, scale)
        for table in self.tables.values():
            table.step += 1

    @property
    def _read_whole(self) -> set[str]:
        """Tables that a softmax reads; the same on every rank."""
        tables = [one for output in self._outputs for one in (output.table, output.bias)]
        return {table.name for table in tables if table is not None}

    def _joined_trip(
        self,
        collection: Collection,
        trips: list[TorchRecTrip],
        output_gradients: dict[str, list[RowGradients]],
    ) -> TorchRecTrip:
        """One trip with the ids and gradients of several trips and of rows that were read in place.

        They are looked up again: a row of several trips would otherwise be updated several times.
        """
        lookups, gradients = [], []
        for name in collection.names:
            pieces = [(trip.ids(name), trip.grads(name)) for trip in trips]
            table = self.sharded[name]
            first = table.sharding.bounds[self.world.rank]
            pieces += [
                (table.keys(rows.ids).to(self.device) + first, rows.grads)
                for rows in output_gradients[name]
            ]
            nothing = torch.empty(0, dtype=torch.int64, device=self.device)
            lookups.append(Lookup(name, torch.cat([nothing, *(ids for ids, _ in pieces)])))
            gradients.append([grads for _, grads in pieces])
        joined = self._trip(lookups)
        joined.fetch()
        for name, grads in zip(collection.names, gradients):
            if grads:
                part = joined.parts[name]
                part.add(0, part.inverse[0], torch.cat(grads))
        return joined


class ShardedByTorchRec(Sharded):
    """Rows with their owners as TorchRec cuts them, all-reduced dense gradients."""

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        self.prefetches = False
        optimizer = row_optimizer_of(self.optimizer_section)
        return TorchRecRows(self.world, list(tables.values()), optimizer, self.seed)


def make_torchrec(section: StrategySection, world: World, join_timeout: float) -> Sharded:
    """The oracle as a strategy that configs of tests name."""
    return ShardedByTorchRec(world, section)


def let_configs_name_it() -> None:
    """`strategy.name: torchrec`, in this process, until `forget_it`."""
    register_strategy("torchrec", make_torchrec)


def forget_it() -> None:
    """Other tests list the strategies that there are."""
    if "torchrec" in STRATEGIES.names:
        STRATEGIES.names.remove("torchrec")

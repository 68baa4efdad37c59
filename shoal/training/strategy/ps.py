"""ps: rows, and by default dense parameters, are with parameter servers.

sync    every step is one step of the global batch, as on one process
async   a worker's gradients are applied when they arrive; it goes on meanwhile with parameters that
        lack its own last push or two, and is at most `staleness` steps ahead of the slowest worker
geo     a worker teaches a copy of its own and tells the servers every `geo_step` batches what
        changed (shoal.training.strategy.geo)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.config.schema import StrategySection
from shoal.data.batch import Batch
from shoal.embedding.optim.dense import dense_step
from shoal.embedding.placed.exchange import Lookups
from shoal.embedding.store import Store
from shoal.embedding.table import Table
from shoal.models.base import Output
from shoal.ps.keys import read_keys
from shoal.ps.spec import Spec, TableSpec
from shoal.ps.wire import BFLOAT16, COMPRESSED
from shoal.ps.worker.client import Client, Pushing
from shoal.ps.worker.remote import Remote, RemoteRows
from shoal.training.strategy.base import Strategy
from shoal.world.world import World

log = logging.getLogger("shoal")


class ParameterServers(Strategy):
    """Workers that compute; servers that remember."""

    name = "ps"
    stores: dict[str, Remote]  # type: ignore[assignment]
    saves_rows = True  # the servers write their own files of a checkpoint

    def __init__(self, world: World | None, section: StrategySection, join_timeout: float = 60.0):
        super().__init__(world)
        self.section, self.join_timeout = section.ps, join_timeout
        if not self.section.addresses:
            raise ValueError(
                "strategy ps needs servers: start the run with `shoal launch --worker_num=2 "
                "--server_num=1 -m CONFIG`, or name running ones in strategy.ps.addresses"
            )
        self.dense_at_servers = self.section.dense == "server"
        self._under_way: deque[Pushing] = deque()

    # ---- setting up -----------------------------------------------------------------------------

    def setup(self, model: Any, optimizer: Any, seed: int, clip_grad_norm: Any = None) -> None:
        if clip_grad_norm is not None:
            raise ValueError(
                "train.clip_grad_norm needs the norm of all gradients before any is applied, which "
                "no server has; leave it out with strategy ps"
            )
        super().setup(model, optimizer, seed)
        if self.dense_at_servers:
            self.dense_optimizer = None
            if self.world.is_main:
                self.client.set_dense(self._split(self.dense), {})
        self.world.barrier()

    def make_stores(self, tables: dict[str, Table]) -> dict[str, Store]:
        section = self.section
        dense = [list(p.shape) for p in self.model.parameters() if p.requires_grad]
        self.spec = Spec(
            seed=self.seed,
            workers=self.world.size,
            servers=len(section.addresses),
            mode=section.mode,
            staleness=section.staleness,
            tables=[TableSpec.of(table, self.rules.get(name)) for name, table in tables.items()],
            optimizer=self.optimizer_section,
            dense=dense if self.dense_at_servers else [],
        )
        keys = None if section.keys is None else read_keys(section.keys, "worker")
        self.client = Client(
            section.addresses, self.world.rank, keys, section.timeout, plain=section.plain
        )
        self.client.flags = BFLOAT16 * section.bfloat16 | COMPRESSED * section.compress
        self.client.hello(self.spec, self.join_timeout)
        stores = {t.name: Remote(t, k, self.client) for k, t in enumerate(tables.values())}
        self.rows = RemoteRows(self.client, stores, self.world.device)
        for module in self.embeddings:
            module.exchange = self.rows  # type: ignore[assignment]
        self._unstaged: set[str] = set()
        return stores  # type: ignore[return-value]

    # ---- a step ---------------------------------------------------------------------------------

    @property
    def pipelined(self) -> bool:
        """Whether a worker goes on before its gradients are applied."""
        return self.section.mode == "async"

    def prefetch(self, batch: Batch) -> None:
        lookups = self._lookups(batch)
        if lookups and self.section.ahead:
            trip = self.rows.announce(batch, lookups)
            if self.pipelined:
                trip.start(self.client, self.client.pushes)

    def _lookups(self, batch: Batch) -> Lookups:
        return [
            (name, ids)
            for module in self.embeddings
            for name, ids in module.lookups(batch)
            if name not in self._unstaged
        ]

    def forward(self, batch: Batch) -> Output:
        lookups = self._lookups(batch)
        if lookups:
            self.rows.stage(batch, lookups, self.client.pushes)
        if self.counted and self.rows.staged is not None:
            self.rows.staged.labels = [one for m in self.embeddings for one in m.labels(batch)]
        return self.compute(batch)

    def backward(self, output: Output) -> None:
        output.loss.backward()
        self._loss, self._count = output.loss.detach(), float(output.count)

    def step_sums(self, loss: Tensor, count: int | Tensor, lr: float) -> Tensor:
        self._loss, self._count = loss, float(count)
        return self.step(lr)

    def step(self, lr: float) -> Tensor:
        if self.rows.staged is not None:
            self._unstaged |= self.rows.staged.parts.keys() - self.rows.found
        gradients = self.rows.collect()
        dense = None
        if self.dense_at_servers:
            dense = self._split([_grad(parameter) for parameter in self.dense])
        sent = self.client.bytes_sent
        pushing = self.client.start_push(
            [share for share, _ in gradients],
            [grads for _, grads in gradients],
            lr,
            float(self._loss),
            self._count,
            dense,
        )
        self._under_way.append(pushing)
        if not self.pipelined:
            self.rows.start_announced(self.client.pushes)  # answered when this step is applied
        for store in self.stores.values():
            store.step += 1
        if not self.dense_at_servers:
            self._step_dense(lr)
        for parameter in self.dense:
            parameter.grad = None
        loss, count = float(self._loss), self._count
        while len(self._under_way) > (1 if self.pipelined else 0):
            total, terms, values = self._under_way.popleft().wait()
            if not self.pipelined:
                loss, count = total, terms
            self._take_dense(values)
        self.world.bytes_sent += self.client.bytes_sent - sent
        return torch.tensor(loss / count if count else 0.0)

    def _step_dense(self, lr: float) -> None:
        """Dense parameters that every worker keeps: gradients are summed over the workers."""
        if self.dense_optimizer is None:
            return
        grads = [_grad(parameter) for parameter in self.dense]
        count = torch.tensor([self._count], device=grads[0].device)
        flat = self.world.all_reduce(torch.cat([*(g.reshape(-1) for g in grads), count]))
        scale = 1.0 / float(flat[-1]) if float(flat[-1]) else 0.0
        pieces = flat[:-1].split([g.numel() for g in grads])
        for parameter, piece in zip(self.dense, pieces):
            parameter.grad = piece.view_as(parameter) * scale
        dense_step(self.dense_optimizer, lr)

    # ---- dense parameters at the servers --------------------------------------------------------

    def _split(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """One flat tensor per server: of those parameters that are its own."""
        owners = self.spec.owners()
        flat: list[list[Tensor]] = [[] for _ in self.section.addresses]
        for owner, tensor in zip(owners, tensors):
            flat[owner].append(tensor.detach().reshape(-1).cpu())
        return [torch.cat(some) if some else torch.empty(0) for some in flat]

    def _take_dense(self, values: list[Tensor]) -> None:
        """Take over what the servers hold: a flat tensor per server."""
        if not values:
            return
        owners, position = self.spec.owners(), [0] * len(values)
        with torch.no_grad():
            for owner, parameter in zip(owners, self.dense):
                start = position[owner]
                position[owner] = start + parameter.numel()
                parameter.copy_(values[owner][start : position[owner]].view_as(parameter))

    # ---- evaluating, saving, ending -------------------------------------------------------------

    def settle(self) -> None:
        """Nothing of any worker is under way, and all have the same dense parameters."""
        while self._under_way:
            self._under_way.popleft().wait()
        self.world.barrier()
        if self.dense_at_servers:
            self._take_dense(self.client.dense())

    def dense_state(self) -> dict[str, Tensor]:
        return self.client.dense_state() if self.dense_at_servers else super().dense_state()

    def restore_dense(self, tensors: dict[str, Tensor]) -> None:
        if not self.dense_at_servers:
            super().restore_dense(tensors)
        elif self.world.is_main:
            self.client.set_dense(self._split(self.dense), tensors)
        self.world.barrier()

    def can_save_delta(self) -> bool:
        """Not after rows were dropped or counts faded, of which a delta does not tell."""
        if not self.rules:
            return True
        return not any(found["rewritten"] for found in self.client.stats())

    def start_saving(self, folder: Path, delta: bool = False) -> Saving:
        """Let the servers write their rows of now."""
        self.client.save(str(folder.absolute()), delta)
        other = self.client.second()
        return Saving(other)

    def load_rows(
        self, folder: Path, files: dict[str, Any], steps: dict[str, int], fresh: bool
    ) -> None:
        """Let the servers take over the rows of a checkpoint."""
        if self.world.is_main:
            self.client.load(str(folder), files, steps, fresh)
        self.world.barrier()

    def on_peer_lost(self, leave: Callable[[str], None]) -> None:
        self.client.on_lost = leave

    def close(self) -> None:
        """Say goodbye: when all workers did, the servers end."""
        self.client.bye()
        self.client.close()


class Saving:
    """Rows that the servers are writing; waited for in a thread, with sockets of its own."""

    def __init__(self, client: Client):
        self.client = client

    def wait(self) -> dict[str, Any]:
        """File -> bytes and checksum."""
        try:
            return self.client.saved()
        finally:
            self.client.close()


def _grad(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

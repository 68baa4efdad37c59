"""ps: rows, and by default dense parameters, are with parameter servers.

sync    every step is one step of the global batch, as on one process
async   a worker's gradients are applied when they arrive; it continues meanwhile with parameters
        that lack its own last push or two, at most `staleness` steps ahead of the slowest worker
geo     a worker updates its own copy and sends the servers every `geo_step` batches what
        changed (shoal.training.strategies.geo)

Where workers join and leave (`elastic`) each is a separate world: server 0 lends them batches
(shoal.training.elastic_trainer).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.config.schema import StrategySection
from shoal.distributed.key_files import read_keys
from shoal.distributed.rank_variables import is_worker
from shoal.distributed.world import World
from shoal.embedding.rows.table import Table
from shoal.embedding.service import RowService
from shoal.ps.spec import Spec, TableSpec
from shoal.ps.wire import ANY_NUMBER, BFLOAT16, COMPRESSED, MOST_WORKERS
from shoal.ps.worker.client import Client, Pushing
from shoal.ps.worker.lease import Lease
from shoal.ps.worker.remote import ServedRows
from shoal.training.strategies.base import Strategy, Sums


class ParameterServers(Strategy):
    """Workers that compute; servers that remember."""

    name = "ps"
    saves_rows = True  # the servers write their own files of a checkpoint

    def __init__(self, world: World | None, section: StrategySection, join_timeout: float = 60.0):
        super().__init__(world)
        self.section, self.join_timeout = section.ps, join_timeout
        self.wire_flags = (
            BFLOAT16 * (section.wire_dtype == "bfloat16") | COMPRESSED * section.ps.compress
        )
        if not self.section.addresses:
            raise ValueError(
                "strategy ps needs servers: start the run with `shoal launch --worker_num=2 "
                "--server_num=1 -m CONFIG`, or name running ones in strategy.ps.addresses"
            )
        self.elastic = self.section.elastic
        self.dense_at_servers = self.section.dense == "server"
        self.prefetches = section.prefetch
        self.pipelined = self.section.mode == "async"  # continues before its gradients are applied
        self._under_way: deque[Pushing] = deque()

    @property
    def shares_batches(self) -> bool:
        return self.section.mode == "sync"  # else every worker has its own batches

    # ---- setting up -----------------------------------------------------------------------------

    def setup(
        self, model: Any, optimizer: Any, seed: int, clip_grad_norm: Any = None, **options: Any
    ) -> None:
        if clip_grad_norm is not None:
            raise ValueError(
                "train.clip_grad_norm needs the norm of all gradients before any is applied, which "
                "no server has; leave it out with strategy ps"
            )
        super().setup(model, optimizer, seed, **options)
        if self.dense_at_servers:
            self.dense_optimizer = None
            if self.world.is_main and not self.elastic:
                self.begin_dense()
        self._agree()

    def begin_dense(self) -> None:
        """Send this worker's dense parameters to the servers, as their initial ones."""
        self.client.set_dense(self._split(self.dense), {})

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        self.client = self._say_hello(tables)
        self.served_rows = ServedRows(
            self.client, list(tables.values()), self.rules, self.world.device, self.pipelined
        )
        return self.served_rows

    def _say_hello(self, tables: dict[str, Table]) -> Client:
        """Connect to the servers and describe what they are to keep."""
        section = self.section
        self.spec = Spec(
            seed=self.seed,
            workers=MOST_WORKERS if self.elastic else self.world.size,
            servers=len(section.addresses) // section.replicas,
            mode=section.mode,
            staleness=section.staleness,
            elastic=self.elastic,
            tables=[TableSpec.of(table, self.rules.get(name)) for name, table in tables.items()],
            optimizer=self.optimizer_section,
            dense=[list(p.shape) for p in self.dense] if self.dense_at_servers else [],
        )
        self._owners = self.spec.owners()  # of the dense parameters
        keys = None if section.keys is None else read_keys(section.keys, "worker")
        client = Client(
            section.addresses,
            ANY_NUMBER if self.elastic else self.world.rank,
            keys,
            section.timeout,
            plain=section.plain,
            recovery=self.join_timeout if section.journal else 0.0,
            joins=self.elastic and not is_worker(),
            replicas=section.replicas,
        )
        client.flags = self.wire_flags
        client.hello(self.spec, self.join_timeout)
        return client

    def servers_seen(self) -> list[dict[str, Any]]:
        return [
            {"server": link.index, "address": link.address, "seen": link.seen}
            for link in self.client.servers
        ]

    # ---- leased batches -------------------------------------------------------------------------

    def begin_lease(self, lease: Lease) -> None:
        """The next steps are those of a lease, from what the servers have now."""
        self.client.lease = lease
        self._take_dense(self.client.dense())

    def end_lease(self) -> Lease:
        """Every server has applied what was computed of it."""
        self.synchronize()
        lease, self.client.lease = self.client.lease, None
        assert lease is not None
        return lease

    # ---- a step ---------------------------------------------------------------------------------

    def update(self, sums: Sums, lr: float) -> Tensor:
        loss, count = float(sums.loss), float(sums.count)
        grads = [_grad(parameter) for parameter in self.dense]
        dense = self._split(grads) if self.dense_at_servers else None
        before = self.client.bytes_sent
        gradients = self.served_rows.collect().rows
        # Servers agree on the step and update; `wait` has its loss and their dense parameters.
        self._under_way.append(self.served_rows.submit(gradients, lr, loss, count, dense))
        if not self.dense_at_servers:
            self._step_dense(grads, count, lr)
        for parameter in self.dense:
            parameter.grad = None
        while len(self._under_way) > (1 if self.pipelined else 0):
            total, terms, values = self._under_way.popleft().wait()
            if not self.pipelined:
                loss, count = total, terms
            self._take_dense(values)
        self.world.bytes_sent += self.client.bytes_sent - before
        return torch.tensor(loss / count if count else 0.0)

    def _step_dense(self, grads: list[Tensor], count: float, lr: float) -> None:
        """Dense parameters that every worker keeps: gradients are summed over the workers."""
        if self.dense_optimizer is None:
            return
        terms = torch.tensor([count], device=grads[0].device)
        flat = self.world.all_reduce(torch.cat([*(g.reshape(-1) for g in grads), terms]))
        scale = 1.0 / float(flat[-1]) if float(flat[-1]) else 0.0
        pieces = flat[:-1].split([g.numel() for g in grads])
        for parameter, piece in zip(self.dense, pieces):
            parameter.grad = piece.view_as(parameter) * scale
        self.dense_optimizer.step(lr)

    # ---- dense parameters at the servers --------------------------------------------------------

    def _split(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """One flat tensor per server, with the parameters that the server holds."""
        flat: list[list[Tensor]] = [[] for _ in range(self.spec.servers)]
        for owner, tensor in zip(self._owners, tensors):
            flat[owner].append(tensor.detach().reshape(-1).cpu())
        return [torch.cat(some) if some else torch.empty(0) for some in flat]

    def _take_dense(self, values: list[Tensor]) -> None:
        """Take over what the servers hold: a flat tensor per server."""
        if not values:
            return
        position = [0] * len(values)
        with torch.no_grad():
            for owner, parameter in zip(self._owners, self.dense):
                start = position[owner]
                position[owner] = start + parameter.numel()
                parameter.copy_(values[owner][start : position[owner]].view_as(parameter))

    # ---- evaluating, saving, ending -------------------------------------------------------------

    def synchronize(self) -> None:
        """Nothing of any worker is under way, and all have the same dense parameters."""
        super().synchronize()
        while self._under_way:
            self._under_way.popleft().wait()
        self._agree()
        if self.dense_at_servers:
            self._take_dense(self.client.dense())

    def dense_state(self) -> dict[str, Tensor]:
        return self.client.dense_state() if self.dense_at_servers else super().dense_state()

    def restore_dense(self, tensors: dict[str, Tensor]) -> None:
        if not self.dense_at_servers:
            super().restore_dense(tensors)
        elif self.world.is_main:
            self.client.set_dense(self._split(self.dense), tensors)
        self._agree()

    def can_save_delta(self) -> bool:
        """Not after rows were dropped or counts faded, which a delta does not contain."""
        if not self.rules:
            return True
        return not any(found["rewritten"] for found in self.client.stats())

    def start_saving(self, folder: Path, delta: bool) -> Callable[[], dict[str, Any]]:
        """Let the servers write their rows of now; a thread waits for them on its own sockets."""
        self.client.save(str(folder.absolute()), delta)
        other = self.client.second()

        def written() -> dict[str, Any]:
            with closing(other):
                return other.saved()

        return written

    def load_rows(
        self, folder: Path, files: dict[str, Any], steps: dict[str, int], fresh: bool
    ) -> None:
        """Restore the rows of a checkpoint on the servers."""
        if self.world.is_main:
            self.client.load(str(folder), files, steps, fresh)
        self._agree()

    def _agree(self) -> None:
        """Wait for all workers; a server that one of them has lost is left out by all.

        It may live, and lack what worker 0 has just sent the others.
        """
        if self.section.replicas == 1:
            self.world.barrier()
            return
        lost = torch.tensor(self.client.left_out, dtype=torch.float32, device=self.world.device)
        self.client.leave_out([number > 0 for number in self.world.all_reduce(lost).tolist()])

    def on_peer_lost(self, leave: Callable[[str], None]) -> None:
        self.client.on_lost = leave

    def close(self) -> None:
        """Say goodbye: when all workers did, the servers end."""
        self.client.bye()
        self.client.close()


def _grad(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

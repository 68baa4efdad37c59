"""World: who this process is among its peers, and how they talk.

The only file that calls collectives. Alone, every collective is the identity, so that no caller
ever asks whether it is distributed.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from shoal.distributed.gloo import MakeOptions, gloo_with, options_at
from shoal.distributed.gpus import choose_gpus, pick_device, too_few
from shoal.distributed.hosts import WorldError, address_towards, which_it_has
from shoal.distributed.liveness import BEAT
from shoal.distributed.meeting import read_secret
from shoal.distributed.openmp_waits import shorten_waits
from shoal.distributed.rank_variables import is_first, is_first_of_host, is_worker
from shoal.distributed.rendezvous import Membership
from shoal.distributed.shm_group import ShmGroup, meet

if TYPE_CHECKING:
    from shoal.distributed.tunnel import Tunnel

# torch 2.13 renamed it and warns about the old name; older versions have only that.
all_gather_flat = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
log = logging.getLogger("shoal")
TIMEOUT = timedelta(minutes=10)  # of a collective
HERE = "127.0.0.1"  # where ranks of one host connect
OPEN_TALK = (
    "hosts: what ranks send each other (configs, gradients, rows) is not encrypted, which assumes "
    "a network of your own; --launch.encrypt=true encrypts it"
)
TUNNELLED = "hosts: what ranks send each other is encrypted"


def connect(
    device: str = "cpu",
    join_timeout: float = 60.0,
    threads: int = 0,
    gpu_ids: str | None = None,
    shared_memory: bool = True,
    encrypt: bool = False,
) -> World:
    """The world this process was started in, alone where no launcher set rank variables.

    shared_memory: whether processes of one host talk through it, rather than by sockets.
    encrypt: whether what ranks of several hosts send each other is encrypted.
    """
    choose_gpus(gpu_ids, tell=is_first())
    if not is_worker() or int(os.environ["WORLD_SIZE"]) == 1:
        world = World(pick_device(device, int(os.environ.get("LOCAL_RANK", 0))))
    else:
        world = Group(device, join_timeout, shared_memory, encrypt)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if threads or local > 1:
        torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // local))
    shorten_waits()
    return world


class Arriving:
    """A tensor on its way; `wait` has it."""

    def __init__(self, tensor: Tensor, finish: Callable[[], None] = lambda: None):
        self._tensor, self._finish = tensor, finish

    def wait(self) -> Tensor:
        """The tensor, once it is here."""
        self._finish()
        self._finish = lambda: None
        return self._tensor


@dataclass(frozen=True)
class Subset:
    """A subset of the ranks, in order; group: their process group, if torch connects them."""

    ranks: list[int]
    group: Any = None


class World:
    """One process alone: rank 0 of 1, collectives are the identity."""

    rank = 0
    size = 1
    shm: ShmGroup | None = None  # where ranks talk through shared memory
    host = socket.gethostname()
    notes: tuple[str, ...] = ()  # what the log should say of how ranks talk
    place = ""  # where and as which ranks this host joined, for its log

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)
        self._made_group = False
        self.bytes_sent = 0  # payload this rank put on the wire, for logs and benchmarks

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        return tensor

    def start_all_reduce(self, tensor: Tensor) -> Arriving:
        """Start an `all_reduce`; the tensor must not change while the caller continues."""
        return Arriving(self.all_reduce(tensor))

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Concatenation over ranks along dimension 0; lengths may differ."""
        return self.gather([tensor])[0][0]

    def gather(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[list[int]]]:
        """`all_gather` of several tensors in one trip, and how long those of each rank are."""
        return tensors, [[len(tensor) for tensor in tensors]]

    def stack(self, tensor: Tensor) -> Tensor:
        """Every rank's tensor of one shape: [size, *shape], in order of rank."""
        return tensor.unsqueeze(0)

    def all_to_all(
        self, tensor: Tensor, sent: list[int], received: list[int], out: Tensor | None = None
    ) -> Tensor:
        """The first sent[0] rows go to rank 0, the next sent[1] to rank 1, ...

        Returns the rows that came (in `out`), in order of rank: received[r] of them from rank r.
        """
        return self.start_all_to_all(tensor, sent, received, out).wait()

    def exchange(
        self, outgoing: list[list[Tensor]], lengths: list[list[int]]
    ) -> list[list[Tensor]]:
        """`all_to_all` of several tensors in one trip: outgoing[rank][k] is sent.

        What comes is [k][rank]; lengths[rank][k]: how long each is.
        """
        sent = [sum(len(piece) for piece in pieces) for pieces in outgoing]
        received = [sum(rank_lengths) for rank_lengths in lengths]
        return unpack(self.all_to_all(pack(outgoing), sent, received), lengths)

    def start_all_to_all(
        self,
        tensor: Tensor,
        sent: list[int],
        received: list[int],
        out: Tensor | None = None,
        among: Subset | None = None,
    ) -> Arriving:
        """Start an `all_to_all` while the caller continues; the tensor must not change meanwhile.

        among: a subset with this rank that exchanges; sent and received are by its ranks.
        """
        return Arriving(tensor if out is None else out.copy_(tensor))

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """Rank 0's bytes, everywhere."""
        assert data is not None
        return data

    def barrier(self) -> None:
        """Wait for all."""

    def slice(self, size: int) -> tuple[int, int]:
        """This rank's [start, stop) of `size` things: contiguous, sizes differ by at most one."""
        return size * self.rank // self.size, size * (self.rank + 1) // self.size

    def subset(self, ranks: list[int]) -> Subset:
        """A subset of the ranks that may communicate among themselves; all ranks call it."""
        return Subset(ranks)

    def group(self) -> dist.ProcessGroup:
        """The ranks as a torch.distributed group, for libraries that talk among them themselves."""
        if not dist.is_initialized():  # alone: a group of one
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            with gloo_with(partial(options_at, HERE)):
                dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
            self._made_group = True
        assert dist.group.WORLD is not None and dist.get_world_size() == self.size
        return dist.group.WORLD

    def close(self) -> None:
        """Leave the group."""
        if self.shm is not None:
            self.shm.close()
        if self._made_group and dist.is_initialized():
            dist.destroy_process_group()


def pack(pieces: list[list[Tensor]]) -> Tensor:
    """One buffer of pieces[rank][k], rank by rank: what an `all_to_all` sends."""
    return torch.cat([piece for rank_pieces in pieces for piece in rank_pieces])


def unpack(buffer: Tensor, lengths: list[list[int]]) -> list[list[Tensor]]:
    """pieces[k][rank] as views into a buffer that came; lengths[rank][k]: how long each is."""
    views = buffer.split([length for rank_lengths in lengths for length in rank_lengths])
    count = len(lengths[0])
    return [list(views[k::count]) for k in range(count)]


class PeerLost(WorldError):
    """A collective failed because another rank is gone; its own error is the one to read."""


class Talking:
    """Context in which a rank waits for others; a class, since a generator takes twice as long."""

    def __init__(self, rank: int, what: str):
        self.rank, self.what = rank, what

    def __enter__(self) -> None:
        BEAT.begin_waiting(self.what)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        BEAT.end_waiting()
        if isinstance(error, RuntimeError):
            raise PeerLost(
                f"rank {self.rank} lost its peers during {self.what}: {first_words(str(error))}"
            ) from error


def first_words(text: str) -> str:
    """The message of a Gloo or NCCL error, without source position and advice."""
    words = re.sub(r"^\[[^\]]*\] *", "", text.splitlines()[0])
    return words.split(". This is typically")[0]


class Group(World):
    """One rank among several: Gloo on CPU, NCCL on GPU, shared memory among CPUs of one host."""

    def __init__(
        self, device: str, join_timeout: float, shared_memory: bool = True, encrypt: bool = False
    ):
        env = os.environ
        self.rank, self.size = int(env["RANK"]), int(env["WORLD_SIZE"])
        super().__init__(pick_device(device, int(env.get("LOCAL_RANK", 0))))
        local_size = int(env.get("LOCAL_WORLD_SIZE", self.size))
        if self.device.type == "cuda" and torch.cuda.device_count() < local_size:
            raise WorldError(too_few(local_size, torch.cuda.device_count()))
        address, port = env.get("MASTER_ADDR", "localhost"), int(env.get("MASTER_PORT", 29500))
        one_host = local_size == self.size
        self._address = HERE if one_host else address_towards(address)
        if one_host:
            env.setdefault("NCCL_SOCKET_IFNAME", "lo")
        self._joined = Membership(self.rank, self.size, address, port, join_timeout, self.host)
        self._store = self._joined.store
        if one_host and shared_memory and self.device.type == "cpu":
            near = dist.PrefixStore("shoal/neighbours", self._store)
            try:
                self.shm = meet(near, self.rank, self.size, TIMEOUT.total_seconds())
            except dist.DistStoreError as error:
                raise PeerLost(f"rank {self.rank} lost its peers at the start: {error}") from error
        self._tunnel: Tunnel | None = None
        if encrypt and not one_host:
            self._tunnel = self._open_tunnel()
        if self.shm is None:
            self._form_group()
        last = self.rank + local_size - 1 if is_first_of_host() else self.rank
        self.place = f"{address} with ranks {self.rank} to {last} of {self.size}"
        if not one_host:
            self.notes = (OPEN_TALK if self._tunnel is None else TUNNELLED,)

    def _open_tunnel(self) -> Tunnel:
        secret = read_secret(None)
        if self.device.type == "cuda" or not secret or self._address is None:
            raise WorldError(
                "launch.encrypt is for CPUs (NCCL cannot be led through a tunnel) and needs "
                "launch.secret; leave it out and encrypt the network itself, with WireGuard say"
            )
        from shoal.distributed.tunnel import Tunnel  # only here is pyzmq needed

        return Tunnel(self._joined.store, self.rank, self.size, secret, self._address)

    def _form_group(self) -> None:
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        if backend == "nccl":
            torch.cuda.set_device(self.device)
        options = self._gloo_options()
        try:
            with gloo_with(options), BEAT.waiting("the connections between all ranks"):
                dist.init_process_group(
                    backend,
                    store=dist.PrefixStore("shoal/group", self._store),
                    rank=self.rank,
                    world_size=self.size,
                    timeout=TIMEOUT,
                )
                if self._tunnel is not None:
                    self._tunnel.stop_listening()
            self._made_group = True
        except (RuntimeError, ValueError) as error:
            location = f" at {self._address} of this host, {which_it_has()}" if options else ""
            raise WorldError(
                f"rank {self.rank} could not form the {backend} group{location}: {error}"
            ) from error

    def _gloo_options(self) -> MakeOptions | None:
        """At which address a group is made; None: where torch chooses."""
        if self._tunnel is not None:
            return self._tunnel.open
        if self._address is None or "GLOO_SOCKET_IFNAME" in os.environ:
            return None
        return partial(options_at, self._address)

    def group(self) -> dist.ProcessGroup:
        if not dist.is_initialized():  # ranks of one host need none, and then nothing listens
            self._form_group()
        return super().group()

    def close(self) -> None:
        super().close()
        if self._tunnel is not None:
            self._tunnel.close()
        self._joined.close()

    def _collective(self, operation: str, sent: int) -> Talking:
        self.bytes_sent += sent
        return Talking(self.rank, operation)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        with self._collective("all_reduce", tensor.nbytes):
            if self.shm is not None:
                self.shm.all_reduce(tensor)
            else:
                dist.all_reduce(tensor)
        return tensor

    def start_all_reduce(self, tensor: Tensor) -> Arriving:
        if self.shm is not None:
            return super().start_all_reduce(tensor)
        with self._collective("all_reduce", tensor.nbytes):
            wait = dist.all_reduce(tensor, async_op=True).wait
        return self._arriving("all_reduce", tensor, wait)

    def _arriving(self, operation: str, tensor: Tensor, wait: Callable[[], Any]) -> Arriving:
        def finish() -> None:
            with self._collective(operation, 0):
                wait()

        return Arriving(tensor, finish)

    def gather(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[list[int]]]:
        if not tensors:
            return [], [[] for _ in range(self.size)]
        if self.shm is not None:
            with self._collective("gather", sum(tensor.nbytes + 8 for tensor in tensors)):
                return self.shm.gather(tensors)
        lengths = self.stack(tensors[0].new_tensor([len(t) for t in tensors], dtype=torch.int64))
        counts = lengths.tolist()
        # One buffer of bytes from each rank, as wide as the widest.
        row_bytes = [t[:0].new_empty(1, *t.shape[1:]).nbytes for t in tensors]
        flat = torch.cat([t.contiguous().view(-1).view(torch.uint8) for t in tensors])
        width = max(sum(n * b for n, b in zip(rank_counts, row_bytes)) for rank_counts in counts)
        rows = (
            self.stack(F.pad(flat, (0, width - len(flat)))) if width else flat.expand(self.size, 0)
        )
        joined, places = [], [0] * self.size
        for tensor, rank_counts, nbytes in zip(tensors, zip(*counts), row_bytes):
            ends = [place + count * nbytes for place, count in zip(places, rank_counts)]
            # A copy aligns the bytes for the element type.
            raw = torch.cat([row[a:b] for row, a, b in zip(rows, places, ends)])
            joined.append(raw.view(tensor.dtype).view(sum(rank_counts), *tensor.shape[1:]))
            places = ends
        return joined, counts

    def stack(self, tensor: Tensor) -> Tensor:
        with self._collective("stack", tensor.nbytes):
            if self.shm is not None:
                return self.shm.stack(tensor)
            out = tensor.new_empty(self.size * tensor.numel())
            all_gather_flat(out, tensor.reshape(-1))
        return out.view(self.size, *tensor.shape)

    def start_all_to_all(
        self,
        tensor: Tensor,
        sent: list[int],
        received: list[int],
        out: Tensor | None = None,
        among: Subset | None = None,
    ) -> Arriving:
        tensor = tensor.contiguous()
        if out is None:
            out = tensor.new_empty(sum(received), *tensor.shape[1:])
        ranks = range(self.size) if among is None else among.ranks
        away = sum(sent) - sent[ranks.index(self.rank)]  # what stays here is no traffic
        with self._collective("all_to_all", away * out[:0].new_empty(1, *out.shape[1:]).nbytes):
            if self.shm is not None:
                to, by = dict(zip(ranks, sent)), dict(zip(ranks, received))
                by_rank = [[one.get(r, 0) for r in range(self.size)] for one in (to, by)]
                wait = self.shm.start_all_to_all(tensor, by_rank[0], by_rank[1], out)
            else:
                group = None if among is None else among.group
                work = dist.all_to_all_single(
                    out,
                    tensor,
                    output_split_sizes=received,
                    input_split_sizes=sent,
                    group=group,
                    async_op=True,
                )
                wait = work.wait
        return self._arriving("all_to_all", out, wait)

    def subset(self, ranks: list[int]) -> Subset:
        if self.shm is not None or len(ranks) == self.size:
            return Subset(ranks)
        with gloo_with(self._gloo_options()):
            return Subset(ranks, dist.new_group(ranks, timeout=TIMEOUT))

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        if self.shm is not None:
            own_bytes = torch.from_numpy(np.frombuffer(data or b"", dtype=np.uint8).copy())
            joined, lengths = self.gather([own_bytes])
            return joined[0][: lengths[0][0]].numpy().tobytes()
        size = torch.tensor([len(data) if data is not None else 0], device=self.device)
        with self._collective("broadcast", 8):
            dist.broadcast(size, 0)
        payload = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        if data is not None:
            payload.copy_(torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy()))
        with self._collective("broadcast", payload.nbytes if self.is_main else 0):
            dist.broadcast(payload, 0)
        return payload.cpu().numpy().tobytes()

    def barrier(self) -> None:
        self.all_reduce(torch.zeros(1, device=self.device))

"""World: who this process is among its peers, and how they talk.

The only file that reads rank variables, and the only one that calls collectives. Alone, every
collective is the identity, so that no caller ever asks whether it is distributed.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from shoal.world.beat import BEAT
from shoal.world.channel import Place, read_secret
from shoal.world.gpus import choose_gpus, pick_device
from shoal.world.hosts import WorldError, address_towards, interface_towards
from shoal.world.joining import HOLDS, MEET, Joined
from shoal.world.neighbours import Kind, Laid, Neighbours, meet
from shoal.world.tunnel import BACKEND, Tunnel

# torch 2.13 renamed it and warns about the old name; older versions have only that.
all_gather_flat = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
log = logging.getLogger("shoal")
SMALL_EXCHANGE = 1 << 17  # bytes of a rank that may travel half as long again in vain
TIMEOUT = timedelta(minutes=10)  # of a collective
OPEN_TALK = (
    "hosts: what ranks send each other (configs, gradients, rows) is not encrypted, which assumes "
    "a network of your own; --launch.encrypt=true encrypts it"
)
TUNNELLED = "hosts: what ranks send each other is encrypted"


class PeerLost(WorldError):
    """A collective failed because another rank is gone; its own error is the one to read."""


def is_worker() -> bool:
    """Whether a launcher (Shoal's own, torchrun, TorchX, Slurm via torchrun) started us."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launched_number() -> int:
    """Which of the processes that a launcher has started this is; 0 without one."""
    return int(os.environ.get("RANK", 0))


def is_first() -> bool:
    """Whether this process is rank 0, or alone."""
    return launched_number() == 0


def launched_size() -> int | None:
    """How many processes the launcher that started us has started; None without one."""
    return int(os.environ["WORLD_SIZE"]) if is_worker() else None


def set_rank(
    rank: int,
    size: int,
    local_rank: int,
    local_size: int,
    address: str,
    port: int,
    secret: bytes = b"",
) -> None:
    """Take the place of a launcher: say who this process is, and where rank 0 waits for all.

    secret: what ranks must know to be let in, where the address is not a loopback one.
    """
    if secret:
        os.environ["SHOAL_SECRET"] = secret.decode()
    os.environ |= {
        MEET: Place.named(address, port).text,
        HOLDS: str(int(rank == 0)),
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def variables_of_one_alone(number: int, local_rank: int, local_size: int) -> dict[str, str]:
    """Environment of a process that is alone in its world, and one of several on its host."""
    return {
        "RANK": str(number),
        "WORLD_SIZE": "1",
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
    }


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
    encrypt: whether ranks of several hosts talk through tunnels.
    """
    choose_gpus(gpu_ids, tell=is_first())
    if not is_worker() or int(os.environ["WORLD_SIZE"]) == 1:
        world = World(pick_device(device, int(os.environ.get("LOCAL_RANK", 0))))
    else:
        world = Group(device, join_timeout, shared_memory, encrypt)
    world.shared_memory = shared_memory
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if threads or local > 1:
        torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // local))
    return world


def first_words(text: str) -> str:
    """What an error of Gloo's or NCCL's says, less its place in their sources and their advice."""
    words = re.sub(r"^\[[^\]]*\] *", "", text.splitlines()[0])
    return words.split(". This is typically")[0]


class Arriving:
    """A tensor on its way; `wait` has it."""

    def __init__(self, tensor: Tensor, finish: Callable[[], None] = lambda: None):
        self._tensor, self._finish = tensor, finish

    def wait(self) -> Tensor:
        """The tensor, once it is here."""
        self._finish()
        self._finish = lambda: None
        return self._tensor


class World:
    """One process alone: rank 0 of 1, collectives are the identity."""

    rank = 0
    size = 1
    neighbours: Neighbours | None = None  # where ranks talk through shared memory
    host = socket.gethostname()
    notes: tuple[str, ...] = ()  # what the log should say of how ranks talk
    shared_memory = True  # whether processes of one host may talk through it

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
        """`all_reduce` that travels while the caller goes on; the tensor must rest meanwhile."""
        return Arriving(self.all_reduce(tensor))

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Concatenation over ranks along dimension 0; lengths may differ."""
        return self.gather([tensor])[0][0]

    def gather(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[list[int]]]:
        """`all_gather` of several tensors in one trip, and how long those of each rank are."""
        return tensors, [[len(tensor) for tensor in tensors]]

    def lay_out(self, head: Tensor, kinds: list[Kind]) -> tuple[Tensor, Laid] | None:
        """Everybody's head [size, n], and memory where each rank writes what all will read.

        Each writes its part and waits at a `barrier`; then all may be read until the next call.
        None: ranks share no memory, or too little of it; `gather` takes what they have written.
        """
        return None

    def stack(self, tensor: Tensor) -> Tensor:
        """Everybody's tensor of one shape: [size, *shape], in order of rank."""
        return tensor.unsqueeze(0)

    def all_to_all(
        self, tensor: Tensor, sent: list[int], received: list[int], out: Tensor | None = None
    ) -> Tensor:
        """The first sent[0] rows go to rank 0, the next sent[1] to rank 1, ...

        Returns the rows that came (in `out`), in order of rank: received[r] of them from rank r.
        """
        return self.start_all_to_all(tensor, sent, received, out).wait()

    def start_all_to_all(
        self, tensor: Tensor, sent: list[int], received: list[int], out: Tensor | None = None
    ) -> Arriving:
        """`all_to_all` that travels while the caller goes on; the tensor must rest meanwhile."""
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

    def group(self) -> dist.ProcessGroup:
        """The ranks as a torch.distributed group, for libraries that talk among them themselves."""
        if not dist.is_initialized():  # alone: a group of one
            interface = interface_towards("127.0.0.1")
            if interface is not None:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
            self._made_group = True
        assert dist.group.WORLD is not None and dist.get_world_size() == self.size
        return dist.group.WORLD

    def close(self) -> None:
        """Leave the group."""
        if self.neighbours is not None:
            self.neighbours.close()
        if self._made_group and dist.is_initialized():
            dist.destroy_process_group()


class Group(World):
    """One rank among several: Gloo on CPU, NCCL on GPU, shared memory among CPUs of one host."""

    def __init__(
        self, device: str, join_timeout: float, shared_memory: bool = True, encrypt: bool = False
    ):
        self._room: dict[Any, int] = {}  # bytes that gatherings of a kind have room for
        env = os.environ
        self.rank, self.size = int(env["RANK"]), int(env["WORLD_SIZE"])
        super().__init__(pick_device(device, int(env.get("LOCAL_RANK", 0))))
        local_size = int(env.get("LOCAL_WORLD_SIZE", self.size))
        if self.device.type == "cuda" and torch.cuda.device_count() < local_size:
            raise WorldError(
                f"{local_size} processes on this host but {torch.cuda.device_count()} GPU(s): each "
                "process needs its own; lower --nproc, name more in run.gpu_ids, let them share "
                "with run.share_gpu=true, or set run.device=cpu"
            )
        address, port = env.get("MASTER_ADDR", "localhost"), int(env.get("MASTER_PORT", 29500))
        # Gloo otherwise resolves the host's name, which many machines do not answer for, or
        # answer with an address of their own that no other host can reach.
        one_host = local_size == self.size
        interface = interface_towards("127.0.0.1" if one_host else address)
        if interface is not None:
            env.setdefault("GLOO_SOCKET_IFNAME", interface)
            if one_host:
                env.setdefault("NCCL_SOCKET_IFNAME", interface)
        self._joined = Joined(self.rank, self.size, address, port, join_timeout, self.host)
        self._store = self._joined.store
        if one_host and shared_memory and self.device.type == "cpu":
            near = dist.PrefixStore("shoal/neighbours", self._store)
            try:
                self.neighbours = meet(near, self.rank, self.size, TIMEOUT.total_seconds())
            except dist.DistStoreError as error:
                raise PeerLost(f"rank {self.rank} lost its peers at the start: {error}") from error
        self._tunnel: Tunnel | None = None
        if encrypt and not one_host:
            self._tunnel = self._open_tunnel(address)
        if self.neighbours is None:
            self._form_group()
        if not one_host:
            self.notes = (OPEN_TALK if self._tunnel is None else TUNNELLED,)

    def _open_tunnel(self, address: str) -> Tunnel:
        secret, mine = read_secret(None), address_towards(address)
        if self.device.type == "cuda" or not secret or mine is None:
            raise WorldError(
                "launch.encrypt is for CPUs (NCCL cannot be led through a tunnel) and needs "
                "launch.secret; leave it out and encrypt the network itself, with WireGuard say"
            )
        tunnel = Tunnel(self._joined.store, self.rank, self.size, secret, mine)
        dist.Backend.register_backend(BACKEND, tunnel.make_group, devices=["cpu"])
        return tunnel

    def _form_group(self) -> None:
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        if backend == "nccl":
            torch.cuda.set_device(self.device)
        try:
            dist.init_process_group(
                backend if self._tunnel is None else BACKEND,
                store=dist.PrefixStore("shoal/group", self._store),
                rank=self.rank,
                world_size=self.size,
                timeout=TIMEOUT,
            )
            self._made_group = True
        except (RuntimeError, ValueError) as error:
            raise WorldError(
                f"rank {self.rank} could not form the {backend} group: {error}"
            ) from error

    def group(self) -> dist.ProcessGroup:
        if not dist.is_initialized():  # neighbours need none, and then nothing listens
            self._form_group()
        return super().group()

    def close(self) -> None:
        super().close()
        if self._tunnel is not None:
            self._tunnel.close()
        self._joined.close()

    @contextmanager
    def _collective(self, what: str, sent: int) -> Iterator[None]:
        self.bytes_sent += sent
        try:
            with BEAT.waiting(what):
                yield
        except RuntimeError as error:
            raise PeerLost(
                f"rank {self.rank} lost its peers during {what}: {first_words(str(error))}"
            ) from error

    def all_reduce(self, tensor: Tensor) -> Tensor:
        with self._collective("all_reduce", tensor.nbytes):
            if self.neighbours is not None:
                self.neighbours.all_reduce(tensor)
            else:
                dist.all_reduce(tensor)
        return tensor

    def start_all_reduce(self, tensor: Tensor) -> Arriving:
        if self.neighbours is not None:
            return super().start_all_reduce(tensor)
        with self._collective("all_reduce", tensor.nbytes):
            wait = dist.all_reduce(tensor, async_op=True).wait
        return self._arriving("all_reduce", tensor, wait)

    def _arriving(self, what: str, tensor: Tensor, wait: Callable[[], Any]) -> Arriving:
        def finish() -> None:
            with self._collective(what, 0):
                wait()

        return Arriving(tensor, finish)

    def gather(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[list[int]]]:
        # One padded byte buffer each, sizes in front. It has room for what the last gathering of
        # such tensors needed, and some more: where that is too little, or would be much to send in
        # vain, a second trip carries the contents.
        if not tensors:
            return [], [[] for _ in range(self.size)]
        if self.neighbours is not None:
            with self._collective("gather", sum(tensor.nbytes + 8 for tensor in tensors)):
                return self.neighbours.gather(tensors)
        kind = tuple((tensor.dtype, tensor.shape[1:]) for tensor in tensors)
        row_bytes = [t[:0].new_empty(1, *t.shape[1:]).nbytes for t in tensors]
        lengths = torch.tensor([len(t) for t in tensors], dtype=torch.int64, device=self.device)
        flat = torch.cat([t.contiguous().view(-1).view(torch.uint8) for t in tensors])
        head, room = lengths.nbytes, self._room.get(kind, 0)
        gathered = self._gather(lengths.view(torch.uint8), flat[:room], head + room)
        # A copy: the line of a rank that is alone is contiguous as it is, and of any width.
        heads = gathered[:, :head].clone(memory_format=torch.contiguous_format)
        per_rank = heads.view(torch.int64).tolist()
        width = max(sum(n * b for n, b in zip(counts, row_bytes)) for counts in per_rank)
        if width > room:
            gathered, head = self._gather(flat[:0], flat, width), 0
        self._room[kind] = width + width // 2 if width <= SMALL_EXCHANGE else 0
        joined, places = [], [head] * self.size
        for tensor, counts, nbytes in zip(tensors, zip(*per_rank), row_bytes):
            sizes = [count * nbytes for count in counts]
            # A copy aligns the bytes for the element type.
            raw = torch.cat([row[p : p + n] for row, p, n in zip(gathered, places, sizes)])
            joined.append(raw.view(tensor.dtype).view(sum(counts), *tensor.shape[1:]))
            places = [place + size for place, size in zip(places, sizes)]
        return joined, per_rank

    def lay_out(self, head: Tensor, kinds: list[Kind]) -> tuple[Tensor, Laid] | None:
        if self.neighbours is None:
            return None
        with self._collective("lay_out", head.nbytes + 8 * len(kinds)):
            heads, laid = self.neighbours.lay_out(head, kinds)
        if laid is None:
            return None
        self.bytes_sent += sum(one.nbytes for one in laid.mine)
        return heads, laid

    def _gather(self, head: Tensor, flat: Tensor, width: int) -> Tensor:
        """Everybody's bytes, padded: [size, width]."""
        mine = torch.zeros(width, dtype=torch.uint8, device=self.device)
        mine[: len(head)] = head
        mine[len(head) : len(head) + len(flat)] = flat
        gathered = torch.empty(self.size * width, dtype=torch.uint8, device=self.device)
        with self._collective("gather", width):
            all_gather_flat(gathered, mine)
        return gathered.view(self.size, width)

    def stack(self, tensor: Tensor) -> Tensor:
        with self._collective("stack", tensor.nbytes):
            if self.neighbours is not None:
                return self.neighbours.stack(tensor)
            out = tensor.new_empty(self.size * tensor.numel())
            all_gather_flat(out, tensor.reshape(-1))
        return out.view(self.size, *tensor.shape)

    def start_all_to_all(
        self, tensor: Tensor, sent: list[int], received: list[int], out: Tensor | None = None
    ) -> Arriving:
        tensor = tensor.contiguous()
        if out is None:
            out = tensor.new_empty(sum(received), *tensor.shape[1:])
        away = sum(sent) - sent[self.rank]  # what stays here is no traffic
        with self._collective("all_to_all", away * out[:0].new_empty(1, *out.shape[1:]).nbytes):
            if self.neighbours is not None:
                wait = self.neighbours.start_all_to_all(tensor, sent, received, out)
            else:
                wait = dist.all_to_all_single(out, tensor, received, sent, async_op=True).wait
        return self._arriving("all_to_all", out, wait)

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        if self.neighbours is not None:
            mine = torch.from_numpy(np.frombuffer(data or b"", dtype=np.uint8).copy())
            joined, lengths = self.gather([mine])
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
        if self.neighbours is None:
            self.all_reduce(torch.zeros(1, device=self.device))
            return
        with self._collective("barrier", 4):
            self.neighbours.barrier()

"""Parameter servers for tests: real sockets, servers as threads or as processes."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import zmq
from forks import forked
from safetensors.torch import load_file
from torch import Tensor

from shoal.config.schema import OptimizerSection
from shoal.distributed.curve import Context
from shoal.embedding.rows.placement import Placement, Sharding
from shoal.ps.server.process import run_server
from shoal.ps.server.server import Server
from shoal.ps.spec import Spec, TableSpec
from shoal.ps.wire import Kind, MessageHeader, parse_header
from shoal.ps.worker.client import Client, ServerRequest

SECONDS = 30.0  # for anything that must happen at all
START_SECONDS = 180.0  # for a process to begin, on a machine that has much else to do
TABLES = [
    TableSpec(name="user", dim=4, rows=1000, init="uniform", scale=0.1),
    TableSpec(name="word", dim=3, init="normal", scale=0.5, padding=0),
]


def make_spec(optimizer: str = "sgd", **values: Any) -> Spec:
    """Two tables, one of which grows, and three dense parameters."""
    given: dict[str, Any] = {
        "seed": 1,
        "workers": 1,
        "servers": 1,
        "mode": "sync",
        "staleness": 1,
        "tables": TABLES,
        "optimizer": OptimizerSection(name=optimizer, lr=0.1),  # type: ignore[arg-type]
        "dense": [[3, 2], [4], [5]],
    }
    return Spec(**{**given, **values})


class Threads:
    """Servers of this process, each a thread; with replicas, k and k + count have the same rows."""

    def __init__(self, count: int = 1, replicas: int = 1, **options: Any):
        numbers = range(count * replicas)
        self.servers = [Server(index=k % count, **options) for k in numbers]
        self.addresses = [server.address for server in self.servers]
        self.statuses: dict[int, int] = {}
        self._threads = [threading.Thread(target=self._serve, args=(k,)) for k in numbers]
        for thread in self._threads:
            thread.start()

    def _serve(self, number: int) -> None:
        self.statuses[number] = self.servers[number].serve()

    def join(self, seconds: float = SECONDS) -> list[int]:
        """Exit statuses, when all have ended by themselves."""
        for thread in self._threads:
            thread.join(seconds)
            assert not thread.is_alive(), "a server goes on"
        return [self.statuses[number] for number in range(len(self.servers))]


def applied(server: Server) -> int:
    """Steps whose gradients a server has applied."""
    return 0 if server.steps is None else server.steps.applied


@contextmanager
def serving(count: int = 1, **options: Any) -> Iterator[Threads]:
    """Servers that are ended with the test, whatever became of it."""
    found = Threads(count, **options)
    try:
        yield found
    finally:
        for server in found.servers:
            server._all_done = lambda: True  # type: ignore[method-assign]
            server._ending = True
        found.join()


@contextmanager
def server_process(
    place: Path, run: Callable[..., Any] = run_server, **options: Any
) -> Iterator[tuple[Any, str]]:
    """A server in a process of its own, and its address."""
    file = place / "address"
    arguments = {"bind": "127.0.0.1:0", "index": 0, "announce": str(file), **options}
    process = forked(run, **arguments)
    process.start()
    try:
        deadline = time.monotonic() + START_SECONDS
        while not file.exists():
            assert process.is_alive() and time.monotonic() < deadline, "no server"
            time.sleep(0.01)
        yield process, file.read_text()
    finally:
        process.kill()
        process.join()


@contextmanager
def joined(
    addresses: Sequence[str], spec: Spec, worker: int = 0, dense: bool = True, **options: Any
) -> Iterator[Client]:
    """A worker that said hello, and gave the servers dense parameters."""
    client = Client(addresses, worker, **options)
    try:
        client.hello(spec, SECONDS)
        if dense and worker == 0:
            set_dense(client, first_dense(spec))
        yield client
    finally:
        client.close()


@contextmanager
def at_servers(spec: Spec, folder: Path | None = None) -> Iterator[Client]:
    """A worker, and the servers of its model."""
    with (
        serving(spec.servers, folder=folder) as running,
        joined(running.addresses, spec, dense=bool(spec.dense)) as client,
    ):
        yield client


# ---- rows ---------------------------------------------------------------------------------------


def share_of(client: Client, table: int, ids: Tensor) -> tuple[ServerRequest, Tensor]:
    """Ids by server, and where each of them stood."""
    spec = client.spec
    assert spec is not None
    sharding = Sharding(spec.tables[table].table(), Placement("row"), spec.servers)
    owners = sharding.owners(ids).clamp(max=spec.servers - 1)  # padding is nobody's: ask the last
    order = owners.argsort(stable=True)
    counts = torch.bincount(owners, minlength=spec.servers).tolist()
    return ServerRequest(table, ids[order], counts), order


def pull(client: Client, table: int, ids: Sequence[int], step: int = -1) -> Tensor:
    """Rows [n, dim] in the order of the ids."""
    share, order = share_of(client, table, torch.tensor(ids))
    (rows,) = client.start_pull([share], step).wait()
    found = torch.empty(rows.shape)
    found[order] = rows
    return found


def push(
    client: Client,
    rows: dict[int, tuple[Sequence[int], Tensor]],
    lr: float = 0.1,
    loss: float = 0.0,
    count: float = 1.0,
    dense: list[Tensor] | None = None,
) -> Any:
    """Gradients on their way: table -> ids, gradients [n, dim]; dense by parameter."""
    shares, grads = [], []
    for table, (ids, some) in rows.items():
        share, order = share_of(client, table, torch.tensor(ids))
        shares.append(share)
        grads.append(some[order])
    flat = None if dense is None else split(client.spec, dense)
    return client.start_push(shares, grads, lr, loss, count, flat)


def grads(seed: int, n: int = 3, dim: int = 4) -> Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


# ---- dense parameters ---------------------------------------------------------------------------


def first_dense(spec: Spec) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator) for shape in spec.dense]


def split(spec: Spec | None, dense: list[Tensor]) -> list[Tensor]:
    """One flat tensor per server."""
    assert spec is not None
    owners = spec.owners()
    pieces: list[list[Tensor]] = [[] for _ in range(spec.servers)]
    for owner, value in zip(owners, dense):
        pieces[owner].append(value.reshape(-1))
    return [torch.cat(some) if some else torch.empty(0) for some in pieces]


def set_dense(client: Client, dense: list[Tensor], state: dict[str, Tensor] | None = None) -> None:
    client.set_dense(split(client.spec, dense), state or {})


def get_dense(client: Client) -> list[Tensor]:
    """Dense parameters, by parameter."""
    spec, values = client.spec, client.dense()
    assert spec is not None
    position, found = [0] * spec.servers, []
    for owner, shape, size in zip(spec.owners(), spec.dense, spec.sizes):
        found.append(values[owner][position[owner] : position[owner] + size].view(shape))
        position[owner] += size
    return found


# ---- files --------------------------------------------------------------------------------------


def rows_in(folder: Path) -> dict[str, dict[int, dict[str, list[float]]]]:
    """Table -> id -> what the files of a save hold of it."""
    found: dict[str, dict[int, dict[str, list[float]]]] = {}
    for file in sorted(folder.glob("rows-*.safetensors")):
        tensors = load_file(file)
        table = found.setdefault(file.name[len("rows-") :].rsplit("-", 1)[0], {})
        for place, number in enumerate(tensors.pop("ids").tolist()):
            assert number not in table, f"row {number} is in two files"
            table[number] = {key: value[place].tolist() for key, value in tensors.items()}
    return found


def save(client: Client, folder: Path, delta: bool = False) -> dict[str, Any]:
    folder.mkdir()
    client.save(str(folder), delta)
    return client.saved()


# ---- bare sockets -------------------------------------------------------------------------------


class Bare:
    """A socket without a client: whatever is to be sent, and what comes back."""

    def __init__(self, address: str):
        self.context = Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(f"tcp://{address}")

    def send(self, header: MessageHeader, *frames: bytes) -> None:
        self.socket.send_multipart([header.pack(), *frames])

    def receive(self, seconds: float = SECONDS) -> tuple[MessageHeader, list[bytes]] | None:
        """An answer; None when none comes."""
        if not self.socket.poll(1000 * seconds):
            return None
        head, *frames = self.socket.recv_multipart()
        return parse_header(head), frames

    def ask(self, header: MessageHeader, *frames: bytes) -> tuple[Kind, list[bytes]]:
        self.send(header, *frames)
        answer = self.receive()
        assert answer is not None, "no answer"
        return answer[0].kind, answer[1]

    def close(self) -> None:
        self.socket.close()
        self.context.term()


class Proxy:
    """Passes bytes on between a worker and a server, or loses them."""

    def __init__(self, address: str):
        self.host, port = address.split(":")
        self.port = int(port)
        self.loses_answers = False
        self.lost = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:  # closed: the test is over
                return
            try:
                far = socket.create_connection((self.host, self.port))
            except OSError:  # the server has ended
                near.close()
                continue
            self._open += [near, far]
            for source, target, answers in ((near, far, False), (far, near, True)):
                arguments = (source, target, answers)
                threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if answers and self.loses_answers:
                    self.lost.set()
                else:
                    target.sendall(data)
        except OSError:  # cut, or ended by either side
            pass

    def cut(self) -> None:
        """End all connections; new ones are taken."""
        while self._open:
            with suppress(OSError):  # its other side has ended it already
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()
        self.cut()

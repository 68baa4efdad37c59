"""A pull beside a bare ZeroMQ echo of the same bytes: over loopback, with CURVE, by Unix sockets.

    python benchmarks/ps_wire.py [--rounds 300] [--ids 10000000]

The echo answers a request of as many bytes as the ids take with as many bytes as the rows take,
and looks at neither. All take turns in one run, medians count. Then ten million distinct ids go
through two servers, and what each of them holds per row is printed.

There are two echoes. The first sends `bytes(n)`, which nobody ever wrote: the kernel keeps one page
of zeros for all of it, which is always in the cache, so this echo reads no memory. The second
sends as many bytes that were written, as rows are.

The second line of each has the processor time of both processes, all threads, which says more than
the first where others use the machine.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import zmq

from shoal.config.schema import OptimizerSection
from shoal.distributed.curve import CurveGate, use_keys
from shoal.distributed.key_files import make_keys, read_keys
from shoal.embedding.rows.table import Init, Table
from shoal.kernels.host_memory import keep_freed_memory
from shoal.ps.address import endpoint
from shoal.ps.server.server import Server
from shoal.ps.spec import Spec, TableSpec
from shoal.ps.worker.client import Client, ServerRequest


def echo(queue: Any, size: int, folder: str | None, bind: str) -> None:
    """Answer every message with `size` bytes, zeros or such as were written: its byte 0 says."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    if folder is not None:
        CurveGate(context, socket, read_keys(folder, "server"))
    socket.bind(endpoint(bind))
    queue.put(socket.getsockopt_string(zmq.LAST_ENDPOINT))
    answers = bytes(size), os.urandom(size)
    while True:
        address, head, *_ = socket.recv_multipart(copy=False)
        answer = answers[head.buffer[0]]
        socket.send_multipart([address, b"x" * 40, answer], copy=size < 1 << 16)


def serve(queue: Any, folder: str | None, index: int = 0, bind: str = "127.0.0.1:0") -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    keys = None if folder is None else read_keys(folder, "server")
    server = Server(bind, index, keys, timeout=600)
    queue.put((index, server.address))
    server.serve()


def start(target: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=target, args=(queue, *arguments), daemon=True)
    process.start()
    return process, queue.get(timeout=120)


def make_client(addresses: list[str], dim: int, folder: str | None = None) -> Client:
    keys = None if folder is None else read_keys(folder, "worker")
    client = Client(addresses, 0, keys, 120)
    spec = Spec(
        seed=1,
        workers=1,
        servers=len(addresses),
        mode="async",
        staleness=1,
        tables=[TableSpec.of(Table("t", dim, None, Init("uniform", 0.1)))],
        optimizer=OptimizerSection(name="adagrad", lr=0.1),
    )
    client.hello(spec)
    return client


def compare(rows: int, dim: int, rounds: int, how: str, scratch: str) -> None:
    """Two lines: ms of pulls and of the echoes; how: plain, CURVE or ipc."""
    folder = f"{scratch}/keys" if how == "CURVE" else None
    binds = [f"ipc://{scratch}/{rows}.{k}" if how == "ipc" else "127.0.0.1:0" for k in range(2)]
    serving, (_, address) = start(serve, folder, 0, binds[0])
    echoing, place = start(echo, rows * dim * 4, folder, binds[1])
    client = make_client([address], dim, folder)
    ids = torch.randperm(10 * rows)[:rows] * 977
    share = ServerRequest(0, ids, [rows])
    client.start_push([share], [torch.randn(rows, dim)], 0.1, 0.0, 1.0).wait()  # now they are held
    socket = zmq.Context.instance().socket(zmq.DEALER)
    if folder is not None:
        use_keys(socket, read_keys(folder, "worker"))
    socket.connect(place)
    ids_bytes, copy = bytes(rows * 8), rows * 8 < 1 << 16

    def bare(head: bytes) -> None:
        socket.send_multipart([head, bytes(16), ids_bytes], copy=copy)
        socket.recv_multipart(copy=False)

    zeros, written = bytes(40), b"\1" + bytes(39)
    # A pull before each echo, so that none of them finds its own threads and caches warm.
    calls: list[tuple[Any, Callable[[], object]]] = [
        (serving, lambda: client.start_pull([share]).wait()),
        (echoing, lambda: bare(zeros)),
        (serving, lambda: client.start_pull([share]).wait()),
        (echoing, lambda: bare(written)),
    ]
    times: list[list[float]] = [[] for _ in calls]
    busy: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 10):
        for (other, call), spent, used in zip(calls, times, busy):
            before = _processor(other.pid) + _processor(os.getpid())
            begun = time.perf_counter()
            call()
            took = time.perf_counter() - begun
            after = _processor(os.getpid()) + _processor(other.pid)  # itself first: looking costs
            if turn >= 10:
                spent.append(took)
                used.append(after - before)
    for what, measured in ((f"{rows:>7,} × {dim} {how}", times), ("processor", busy)):
        pulled, zero, _, full = (1e3 * statistics.median(some) for some in measured)
        line = "".join(f"{one:10.3f} ms{pulled / one:6.2f} ×" for one in (zero, full))
        print(f"  {what:<20}{pulled:10.3f} ms{line}", flush=True)
    client.close()
    socket.close(0)
    for process in (serving, echoing):
        process.terminate()


def many_ids(count: int, dim: int = 16, batch: int = 100_000) -> None:
    """Distinct ids through two servers: rows and bytes held."""
    processes, addresses = zip(*(start(serve, None, k) for k in range(2)))
    client = make_client([address for _, address in addresses], dim)
    from shoal.ps.worker.remote import Served, ServedRows

    rows = ServedRows(client, [Table("t", dim, None, Init("uniform", 0.1))])
    grads = torch.randn(batch, dim)
    begun = time.perf_counter()
    for first in range(0, count, batch):
        ids = (torch.arange(first, first + batch) * 0x9E3779B97F4A7C1) - 5
        owners = rows.tables["t"].layout.owners(ids)
        ids, counts = ids[owners.argsort(stable=True)], owners.bincount(minlength=2).tolist()
        rows.apply({"t": Served(ids, grads, None, counts)}, 0.1)
    spent = time.perf_counter() - begun
    print(f"\n{count:,} distinct ids, dim {dim}, adagrad, through 2 servers in {spent:.0f} s")
    for k, stats in enumerate(client.stats()):
        held = stats["tables"]["t"]
        more = held["bytes"] / held["rows"] - 4 * 2 * dim
        resident = _resident(processes[k].pid)
        print(
            f"  server {k}: {held['rows']:,} rows, {more:.1f} bytes a row over its floats; "
            f"resident {resident / 2**20:,.0f} MiB, {resident / held['rows']:.0f} bytes a row"
        )
    client.bye()
    client.close()


def _processor(pid: int | None) -> float:
    """Seconds that the threads of a process have run."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def _resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--ids", type=int, default=10_000_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    print(f"torch {torch.__version__}, zmq {zmq.zmq_version()}, {platform.machine()}")
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores; ratios: pull to echo")
    print(f"  {'rows':<20}{'pull':>13}{'echo of zeros':>21}{'of written bytes':>21}")
    with tempfile.TemporaryDirectory() as folder:
        make_keys(f"{folder}/keys")
        for rows, dim in ((8, 64), (20_000, 64)):
            for how in ("plain", "CURVE", "ipc"):
                compare(rows, dim, options.rounds, how, folder)
    if options.ids:
        many_ids(options.ids)


if __name__ == "__main__":
    main()

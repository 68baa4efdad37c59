"""Messages to a live server: from strangers, from workers it knows, and in the middle of a step."""

import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from ps_cluster import Bare, get_dense, joined, make_spec, pull, push, server_process

from fuzz.messages import Fuzzer
from shoal.ps.wire import MOST_WORKERS, Kind, MessageHeader
from shoal.ps.worker.client import Client
from shoal.ps.worker.lease import Lease
from shoal.ps.worker.transfer import Pushing

BURST = 500
LIVES = 60  # bursts that a server lives for
PATIENCE = 3600.0  # seconds: the parent judges by CPU time what takes too long
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)  # of ZeroMQ's protocol


class Wrong(Exception):
    """A server did what it must not."""


def bursts(seed: int, folder: Path) -> Iterator[tuple[int, int]]:
    """(frames sent, process id of the server) after every burst; Wrong where a server erred.

    (0, 0): a server starts.
    """
    rng = random.Random(seed)
    life = 0
    while True:
        home = folder / str(life)
        home.mkdir()
        yield 0, 0
        yield from _life(rng, home, elastic=life % 3 == 2)
        life += 1


def _push(client: Client, ids: list[int]) -> Pushing:
    """Ones, of the next batch where batches are lent."""
    if client.lease is not None:
        client.lease.computed += 1
    return push(client, {0: (ids, torch.ones(4, 4))})


def _life(rng: random.Random, folder: Path, elastic: bool) -> Iterator[tuple[int, int]]:
    """elastic: workers come and go, so strangers may come too, and orders are anybody's."""
    spec = make_spec("adagrad", workers=2)
    if elastic:
        spec = make_spec("adagrad", workers=MOST_WORKERS, mode="async", elastic=True)
    ids = [1, 2, 3, 500]
    with (
        server_process(folder, timeout=PATIENCE) as (process, address),
        joined([address], spec, timeout=PATIENCE) as one,
        joined([address], spec, 1, timeout=PATIENCE) as two,
    ):
        for number, each in enumerate((one, two) if elastic else ()):  # of epochs far away
            each.lease = Lease(1 + number, 1 << 40, number << 30, 1 << 31, 0, 0, 2)
        for pushing in [_push(each, ids) for each in (one, two)]:
            pushing.wait()
        hello = json.dumps({**spec.model_dump(mode="json"), "host": "x", "server": 0}).encode()
        sessions = [one.session, two.session]
        known = Fuzzer(rng.getrandbits(32), sessions, hello, str(folder / "nowhere"))
        strange = Fuzzer(rng.getrandbits(32), [5, 6], hello, str(folder / "nowhere"))
        known.open = strange.open = elastic
        strange.strange = True
        lines = [Bare(address) for _ in range(3)]
        yield 0, process.pid
        for number in range(LIVES):
            before, dense = pull(one, 0, ids), get_dense(one)
            # Half of the time a step is under way: one worker has pushed, the other has not.
            held = _push(one, ids) if number % 2 else None
            _raw(rng, address)
            fuzzer = known if number % 3 else strange
            known.steps = {
                1 + number // 2,
                2 + number // 2,
            }  # and of the one ahead
            line = lines[number % len(lines)]
            for _ in range(BURST):
                line.socket.send_multipart(fuzzer.message())
            _wait(line, number, one.session, process)
            if held is not None:
                _push(two, ids).wait()
                held.wait()
            elif not torch.equal(pull(two, 0, ids), before):
                raise Wrong("rows have changed")
            elif not all(map(torch.equal, get_dense(two), dense)):
                raise Wrong("dense parameters have changed")
            yield BURST, process.pid
        for line in lines:
            line.close()
        if elastic:  # who came besides is not gone yet
            return
        one.bye()
        two.bye()
        process.join(PATIENCE)
        if process.exitcode != 0:
            raise Wrong(f"the server ended with status {process.exitcode}")


def _wait(line: Any, number: int, session: int, process: Any) -> None:
    """Until all that was sent is read: then this is answered."""
    sequence = (1 << 50) + number
    line.send(MessageHeader(Kind.PING, 0, 0, sequence, -1, session))
    while process.is_alive():
        if (answer := line.receive(1.0)) is None:
            continue
        header, frames = answer
        if header.kind == Kind.ERROR and b"internal error" in frames[0]:
            raise Wrong(frames[0].decode("utf-8", "replace"))
        if header.sequence == sequence:
            return
    raise Wrong("the server is gone")


def _raw(rng: random.Random, address: str) -> None:
    """A stranger who does not even speak ZeroMQ, or not well."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as line:
        data = bytearray(GREETING + rng.randbytes(rng.choice((0, 9, 300))))
        for _ in range(rng.choice((0, 1, 8))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        line.sendall(data)

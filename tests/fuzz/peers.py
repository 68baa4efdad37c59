"""What other processes send, or leave behind: journals of servers, their answers, the rendezvous,
requests to the HTTP service. Frames to a live server are in frames.py.
"""

import random
import shutil
import socket
import struct
import threading
import time
import zlib
from contextlib import suppress
from io import BytesIO
from pathlib import Path

from fuzz.folders import EVERY
from fuzz.mutate import mutate
from fuzz.target import Target

REQUEST = (
    b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s"
)
BODIES = {
    b"recommend": b'{"history": ["v", "w"], "topk": 3}',
    b"score": b'{"user": "b", "items": ["x", "y"]}',
    b"similar": b'{"item": "v", "topk": 2}',
}
ITEMS = b'{"items": [{"item": "new", "vector": [0.5, -1]}, {"item": "7", "vector": [1e3, 2]}]}'


def peers(folder: Path) -> dict[str, Target]:
    """All of them, with their places in a folder."""
    return journal(folder / "servers") | answers() | rendezvous(folder) | http(folder / "service")


# ---- journals -----------------------------------------------------------------------------------


def journal(folder: Path) -> dict[str, Target]:
    """The segments of a server's journal, read by another process of that server."""
    import torch
    from ps_cluster import joined, make_spec, push, save, serving

    from shoal.ps.server.server import Server
    from shoal.ps.wire import Kind, MessageHeader

    home, again = folder / "run", folder / "again"
    home.mkdir(parents=True)
    with (
        serving(1, folder=home, journal=True) as running,
        joined(running.addresses, make_spec("adagrad", workers=1)) as client,
    ):
        push(client, {0: ([1, 2], torch.ones(2, 4)), 1: ([7], torch.ones(1, 3))}).wait()
        save(client, home / ".step-1.new")
        (home / ".step-1.new").rename(home / "step-1")
        push(client, {0: ([3], torch.ones(1, 4))}).wait()
        shutil.copytree(home, folder / "kept")
        header = MessageHeader(Kind.PING, client.worker, session=client.session, step=2)
    segments = sorted((folder / "kept" / "journal").iterdir())

    def read(made: Path) -> None:
        shutil.rmtree(again, ignore_errors=True)
        shutil.copytree(folder / "kept", again)
        name = segments[-1].name
        (again / "journal" / name).write_bytes(with_checksums(made.read_bytes(), name))
        server = Server(folder=again, journal=True)
        try:
            server.receive(b"worker", header.pack(), [])
            if server.writer is not None:
                server.writer.abandon()
        finally:
            server.close()

    return {"journal": Target([one.read_bytes() for one in segments], "segment", read)}


def with_checksums(data: bytes, name: str) -> bytes:
    """A segment as an author writes it who knows the format: every checksum is right."""
    from shoal.ps.server.journal import CHECK, HEAD, checked, first_check

    made, check, file = bytearray(), first_check(name), BytesIO(data)
    while len(head := file.read(HEAD.size)) == HEAD.size:
        magic, what, count, _, *sizes = HEAD.unpack(head)
        file.read(CHECK.size)
        frames = [file.read(min(size, len(data))) for size in sizes[: min(count, len(sizes))]]
        check = checked(frames, check)
        head = HEAD.pack(magic, what, count, check, *sizes)
        made += head + CHECK.pack(zlib.crc32(head)) + b"".join(frames)
    return bytes(made) + head


# ---- answers of servers -------------------------------------------------------------------------


def answers() -> dict[str, Target]:
    """Answers to a worker of two servers that hold the same rows."""
    import torch
    import zmq
    from ps_cluster import joined, make_spec, share_of
    from safetensors.torch import save as format_tensors

    from shoal.distributed.world import PeerLost
    from shoal.ps.wire import (
        COMPRESSED,
        Kind,
        WireError,
        json_frame,
        numbers_frame,
        parse_header,
        rows_message,
    )
    from shoal.ps.worker.client import Client
    from shoal.ps.worker.link import ServerError

    spec = make_spec()
    size = sum(spec.sizes)
    said: dict[str, bytes] = {}
    context = zmq.Context()
    sockets = [context.socket(zmq.ROUTER) for _ in range(2)]
    ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in sockets]
    parts = {
        Kind.HELLO: [b"lifetime", struct.pack("<q", 0)],
        Kind.PUSH: [numbers_frame(1.0, 1.0), torch.ones(size).numpy().tobytes()],
        Kind.DENSE: [torch.ones(size).numpy().tobytes()],
        Kind.STATE: [format_tensors({"0.sum": torch.ones(2)})],
        Kind.SAVED: [json_frame({"running": False, "files": {"rows-user-0": {"bytes": 1}}})],
        Kind.STATS: [json_frame({"tables": {}, "messages": 1, "rewritten": False})],
        Kind.LEASE: [json_frame({"lease": 1, "first": 0, "last": 5})],
        Kind.PING: [b"", b"lifetime"],
    }

    def answer_all() -> None:
        """Answer as a server does; the answer to one kind of request is an input's."""
        poller = zmq.Poller()
        for one in sockets:
            poller.register(one, zmq.POLLIN)
        while True:
            for one, _ in poller.poll():
                address, head, *_ = one.recv_multipart()
                header = parse_header(head)
                ok = header.answer(Kind.OK)
                frames = [ok.pack(), *parts.get(header.kind, [])]
                if header.kind == Kind.PULL:
                    frames = [rows_message(ok, [torch.ones(2, 4)])]
                if header.kind != Kind.HELLO and said:
                    last = said["input"]
                    if header.kind == Kind.PULL:  # one frame: header, number of values, rows
                        frames = [ok.pack() + last]
                    elif header.kind in parts:
                        frames = [ok.pack(), *([last] if len(frames) == 2 else [last, frames[-1]])]
                one.send_multipart([address, *frames])

    threading.Thread(target=answer_all, daemon=True).start()
    addresses = [f"127.0.0.1:{port}" for port in ports]

    def ask(client: Client) -> None:
        def pull(flags: int) -> None:
            client.flags = flags
            client.start_pull([share_of(client, 0, torch.tensor([1, 2]))[0]]).wait()

        asked = [
            *(lambda: pull(0), lambda: pull(COMPRESSED)),
            lambda: client.start_push([], [], 0.1, 1.0, 1.0, [torch.ones(size)]).wait(),
            *(client.dense, client.dense_state, client.saved, client.stats),
            lambda: client.ask_lease({}),
        ]
        for one in asked:
            with suppress(WireError, ServerError, PeerLost):
                one()

    def read(made: Path) -> None:
        said.clear()
        with joined(addresses, spec, dense=False, replicas=2, timeout=0.3) as client:
            said["input"] = made.read_bytes()
            ask(client)

    seeds = [frames[0] for kind, frames in parts.items() if kind != Kind.HELLO]
    seeds += [struct.pack("<q", 0) + torch.ones(8).numpy().tobytes()]
    return {"answers": Target(seeds, "answer", read, every=EVERY)}


# ---- the rendezvous -----------------------------------------------------------------------------


def rendezvous(folder: Path) -> dict[str, Target]:
    """Messages of a process that belongs to the run, and of strangers at the door."""
    from shoal.distributed.meeting import MeetingPlace, receive, send
    from shoal.distributed.rendezvous import Rendezvous, RunStore

    secret = b"0123456789abcdef"
    near = Rendezvous(MeetingPlace(path=str(folder / "near")))
    with socket.create_server(("127.0.0.1", 0)) as free:
        far = MeetingPlace(host="127.0.0.1", port=free.getsockname()[1])
    Rendezvous(far, secret)

    def sent(*words: bytes) -> bytes:
        one, other = socket.socketpair()
        with one, other:
            send(one, *words)
            return other.recv(1 << 16)

    now = struct.pack("<d", 0.0)
    seeds = [sent(b"set", now, b"name", b"value"), sent(b"get", now, b"name")]
    seeds += [sent(b"add", now, b"count", b"3")]
    seeds += [sent(b"delete", now, b"name"), sent(b"check", now, b"name", b"count")]

    def read(made: Path) -> None:
        one, other = socket.socketpair()
        with one, other, suppress(OSError, EOFError):
            one.sendall(made.read_bytes()[: 1 << 16])
            one.shutdown(socket.SHUT_WR)
            while True:
                verb, _, *rest = receive(other)  # nobody waits for what others would set
                near.answer([verb, now, *rest])

    def connect(made: Path) -> None:
        with suppress(OSError), socket.create_connection((far.host, far.port)) as stranger:
            stranger.sendall(made.read_bytes()[: 1 << 16])
        store = RunStore(far, secret, 3600.0)
        assert store.add("count", 1) > 0

    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE".ljust(55, b"\0")
    hello = greeting + b"\x04\xc8\x05HELLO\x01\x00" + bytes(72 + 32 + 8 + 80)
    return {
        "meeting": Target([*seeds, b"".join(seeds)], "message", read),
        "door": Target([hello], "hello", connect, every=EVERY),
    }


# ---- requests to the service --------------------------------------------------------------------


def http(home: Path) -> dict[str, Target]:
    """Bytes of requests to a live service, which answers a sound one afterwards."""
    import logging

    from small_artifact import write_vectors

    from shoal.serving.http.listening import listen
    from shoal.serving.service.api import Limits
    from shoal.serving.service.server import HttpServer

    limits = Limits(seconds=3600.0, answer_seconds=3600.0)
    added = home.with_name("added")
    server = HttpServer.for_artifact(write_vectors(home), limits, items=added)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # of requests that are none
    listener = listen("127.0.0.1", 0)
    threading.Thread(target=server.run, args=([listener],), daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    seeds = [
        (REQUEST % (len(body), body)).replace(b"recommend", route) for route, body in BODIES.items()
    ]
    seeds.append((REQUEST % (len(ITEMS), ITEMS)).replace(b"/v1/recommend", b"/items"))

    def ask(data: bytes, seconds: float | None) -> bytes:
        """The beginning of an answer, if one comes in time: a request may be half of one."""
        with socket.create_connection(listener.getsockname()) as link, suppress(OSError):
            link.settimeout(seconds)
            link.sendall(data)
            return link.recv(1 << 16)
        return b""

    def read(made: Path) -> None:
        found = ask(made.read_bytes(), 0.2)
        assert b" 500 " not in found[:20], found
        assert ask(seeds[0], None).startswith(b"HTTP/1.1 200"), "a sound request is not answered"

    def spoil(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
        """Half of the time the body alone, whose length is stated rightly."""
        if rng.random() < 0.5:
            return mutate(rng, data, others)
        head, _, body = data.partition(b"\r\n\r\n")
        body = mutate(rng, body, [*BODIES.values(), ITEMS])
        return (REQUEST % (len(body), body)).replace(b"/v1/recommend", head.split()[1], 1)

    return {"http": Target(seeds, "request", read, spoil, EVERY)}

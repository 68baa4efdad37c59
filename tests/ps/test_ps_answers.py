"""Answers of a server that are not right: a worker ends with a wire error that says so."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import zmq
from ps_cluster import joined, make_spec, share_of

from shoal.ps.wire import Kind, MessageHeader, WireError, json_frame, numbers_frame, parse_header
from shoal.ps.worker.client import Client
from shoal.ps.worker.lease import Lease

SPEC = make_spec()
RIGHT = {
    Kind.HELLO: [b"lifetime", struct.pack("<q", 0)],
    Kind.PING: [b"", b"lifetime"],
}


class Answers:
    """A server that answers what a worker asks as it is told."""

    def __init__(self) -> None:
        self.frames: dict[Kind, list[bytes]] = dict(RIGHT)
        self.kind = Kind.OK  # of answers to what is wrong
        self._socket = zmq.Context.instance().socket(zmq.ROUTER)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        while not self._end.is_set():
            if not self._socket.poll(50):
                continue
            address, head, *_ = self._socket.recv_multipart()
            header = parse_header(head)
            kind = Kind.OK if header.kind in RIGHT else self.kind
            frames = self.frames.get(Kind(header.kind), [])
            self._socket.send_multipart([address, header.answer(kind).pack(), *frames])

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self._socket.close(linger=0)


@contextmanager
def worker(**wrong: Any) -> Iterator[tuple[Answers, Client]]:
    answers = Answers()
    try:
        with joined([f"127.0.0.1:{answers.port}"], SPEC, dense=False, timeout=5.0) as client:
            yield answers, client
    finally:
        answers.close()


def pull(client: Client) -> Any:
    return client.start_pull([share_of(client, 0, torch.tensor([1, 2]))[0]]).wait()


def push(client: Client) -> Any:
    dense = [torch.ones(sum(SPEC.sizes))]
    return client.start_push([], [], 0.1, 1.0, 1.0, dense).wait()


ASKED: dict[Kind, Callable[[Client], Any]] = {
    Kind.PULL: pull,
    Kind.PUSH: push,
    Kind.DENSE: lambda client: client.dense(),
    Kind.STATE: lambda client: client.dense_state(),
    Kind.SAVED: lambda client: client.saved(),
    Kind.STATS: lambda client: client.stats(),
    Kind.LEASE: lambda client: client.ask_lease({}),
}
FLOOR = {"floor": True, "turn": None, "stop": False, "loss": 0.0, "losses": 0, "seconds": 0.0}
# Every one of these is made without the core's help to whoever sends it.
WRONG = {
    Kind.PULL: [[b"more"]],
    Kind.PUSH: [[], [b""], [b"x" * 15], [numbers_frame(1.0, 1.0), b"x" * 3]],
    Kind.DENSE: [[], [b"x" * 3], [b"x" * 4]],
    Kind.STATE: [[], [b""], [b"x" * 9]],
    Kind.SAVED: [
        *([], [b""], [b"[]"], [b"{}"], [json_frame({"running": False, "files": 3})]),
        [json_frame({"running": "no?"})],
    ],
    Kind.STATS: [[], [b""], [b"{}"], [json_frame({"rewritten": [1]})]],
    Kind.LEASE: [
        *([], [b"{"], [b"3"], [json_frame({**FLOOR, "loss": "x"})]),
        [json_frame({"floor": True})],
    ],
}


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Answers, Client]]:
    with worker() as found:
        yield found


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.name.lower())
def test_an_answer_with_wrong_frames_is_a_wire_error(
    pair: tuple[Answers, Client], kind: Kind
) -> None:
    answers, client = pair
    for frames in WRONG[kind]:
        answers.kind, answers.frames = Kind.OK, {**RIGHT, kind: frames}
        with pytest.raises(WireError):
            ASKED[kind](client)


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.name.lower())
def test_an_answer_of_another_kind_is_a_wire_error(
    pair: tuple[Answers, Client], kind: Kind
) -> None:
    """An error without a message was an IndexError; an answer of any other kind was taken."""
    answers, client = pair
    for wrong in (Kind.ERROR, Kind.PUSH):
        answers.kind, answers.frames = wrong, RIGHT
        with pytest.raises(WireError):
            ASKED[kind](client)


@pytest.mark.parametrize("frames", [[], [b"life"], [b"life", b"x"], [b"life", b"\xff" * 8]])
def test_a_wrong_answer_to_hello_is_a_wire_error(frames: list[bytes]) -> None:
    answers = Answers()
    answers.frames[Kind.HELLO] = frames
    client = Client([f"127.0.0.1:{answers.port}"], timeout=5.0)
    try:
        with pytest.raises(WireError):
            client.hello(SPEC, 5.0)
    finally:
        client.close()
        answers.close()


@pytest.mark.parametrize(
    "told", [{"lease": 1}, {"lease": "x"}, {"lease": 1, "epoch": 1, "first": 5, "last": 3}]
)
def test_an_incomplete_lease_is_a_wire_error(told: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="a lease without a right"):
        Lease.of({"epoch": 0, "skip": 0, "step": 0, "workers": 1, **told})


def test_an_unreadable_heartbeat_answer_is_a_wire_error(pair: tuple[Answers, Client]) -> None:
    from shoal.ps.worker.heartbeat import _failure_in

    right = MessageHeader(Kind.OK, 0).pack()
    assert "cannot be read" in _failure_in([b"x"])
    assert "cannot be read" in _failure_in([right])
    assert _failure_in([right, b""]) == "" and _failure_in([right, b"full"]) == "full"
    assert _failure_in([MessageHeader(Kind.ERROR, 0).pack()]) == ""

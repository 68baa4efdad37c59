"""Heartbeat: shows the servers that a worker lives, whatever it computes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

import zmq

from shoal.ps.wire import Kind, MessageHeader, WireError, parse_header
from shoal.ps.worker.link import PING_SECONDS, Caller, Link


class Heartbeat:
    """A thread with its own connections: sockets must not be shared."""

    def __init__(self, caller: Caller, shards: Sequence[Sequence[Link]]):
        """shards: of each the links to the servers that hold its rows."""
        self.caller, self.shards = caller, shards
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        """Send heartbeats to the servers, and notice when they do not answer."""
        caller = self.caller
        links = [(one, caller.connect(one.address)) for shard in self.shards for one in shard]
        header = MessageHeader(Kind.PING, caller.worker, session=caller.session).pack()
        heard, failed = {link: 0.0 for link, _ in links}, 0.0
        while not self._stop.wait(PING_SECONDS):
            for link, socket in links:
                if caller.replicas > 1 and link.failure:  # it is left out
                    continue
                with contextlib.suppress(zmq.Again):
                    socket.send(header, zmq.NOBLOCK)
                while socket.poll(0):
                    answer, heard[link] = socket.recv_multipart(), time.monotonic()
                    link.seen = time.time()
                    why = _failure_in(answer)
                    if why and not link.failure:
                        link.failure = f"{link.name}: {why}"
                silent = time.monotonic() - (heard[link] or time.monotonic())
                if caller.registered and silent > caller.patience and not link.failure:
                    link.failure = f"{link.name} has not answered for {silent:.0f} s"
            for shard in self.shards:
                if not caller.failure and all(link.failure for link in shard):
                    caller.failure = "; ".join(link.failure for link in shard)
            failed = failed or (time.monotonic() if caller.failure else 0.0)
            if failed and caller.on_lost and time.monotonic() - failed > caller.timeout:
                caller.on_lost(caller.failure)
                caller.on_lost = None
        for _, socket in links:
            socket.close()


def _failure_in(answer: list[bytes]) -> str:
    """The reason why a server ends, from its answer to a heartbeat; empty: it does not end."""
    try:
        header = parse_header(answer[0])
    except WireError as error:
        return f"its answers cannot be read: {error}"
    if header.kind != Kind.OK:  # an error: hello is still on its way
        return ""
    if len(answer) < 2:
        return "its answers cannot be read: a sign of life without a second frame"
    return answer[1].decode(errors="replace")

"""Heartbeat: tells the servers that a worker lives, whatever it computes."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import zmq

from shoal.ps.wire import Header, Kind, parse_header

if TYPE_CHECKING:
    from shoal.ps.worker.client import Client


class Heartbeat:
    """A thread with connections of its own: sockets must not be shared."""

    def __init__(self, client: Client, period: float):
        self.client, self.period = client, period
        self.greeted = False  # whether all servers know the worker: from then on silence counts
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        """Tell the servers that this worker lives, and notice when they do not."""
        client = self.client
        links = [(link, client.connect(link.address)) for link in client.links]
        header = Header(Kind.PING, client.worker, session=client.session).pack()
        heard, failed = dict.fromkeys(range(len(links)), 0.0), 0.0
        while not self._stop.wait(self.period):
            for link, socket in links:
                with contextlib.suppress(zmq.Again):
                    socket.send(header, zmq.NOBLOCK)
                while socket.poll(0):
                    answer, heard[link.index] = socket.recv_multipart(), time.monotonic()
                    told = parse_header(answer[0]).kind == Kind.OK and answer[1]
                    if told and not client.failure:  # an error: hello is still on its way
                        client.failure = f"{link.name}: {answer[1].decode(errors='replace')}"
                silent = time.monotonic() - (heard[link.index] or time.monotonic())
                if self.greeted and silent > client.timeout and not client.failure:
                    client.failure = f"{link.name} has not answered for {silent:.0f} s"
            failed = failed or (time.monotonic() if client.failure else 0.0)
            if failed and client.on_lost and time.monotonic() - failed > client.timeout:
                client.on_lost(client.failure)
                client.on_lost = None
        for _, socket in links:
            socket.close()

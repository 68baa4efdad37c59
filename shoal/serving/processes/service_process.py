"""One of several processes of a service: it answers as any service, and its parent leads it.

It listens when the parent says that all are ready, stops when the parent passes a signal on, and
asks the parent for the figures of the others. Messages are JSON, one on each line.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from shoal.distributed.parent_process import end_with_parent
from shoal.serving.http.listening import BoundedServer
from shoal.serving.processes.copies import SharedCopies

Document = dict[str, Any]


class ServiceProcess:
    """This process, as it and its parent see it.

    number    from 0; count: how many processes there are
    url       where all of them listen
    """

    def __init__(
        self,
        number: int,
        count: int,
        url: str,
        listener: socket.socket,
        control: socket.socket,
        link: socket.socket,
        parent: int,
    ):
        self.number = number
        self.count = count
        self.url = url
        self.copies = SharedCopies(link)
        self.describe: Callable[[], Document] = dict  # what the others may ask for
        self.catch_up: Callable[[], object] = lambda: None  # with what others have written
        self._listener = listener
        self._control = control
        self._lines = b""
        self._sending = threading.Lock()
        self._looks: list[asyncio.Future[Document]] = []
        self._spreads: list[asyncio.Future[None]] = []
        # Signals come by the parent: what a terminal or a service manager sends to all processes
        # of a group would otherwise come twice, and the second time ends a service at once.
        for number_of_signal in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number_of_signal, signal.SIG_IGN)
        end_with_parent(parent)

    def share(self, total: int) -> int:
        """This process's part of a number that is given for all of them, at least 1.

        Of 8 threads, 3 processes have 3, 3 and 2.
        """
        return max(1, total // self.count + (self.number < total % self.count))

    def run(self, server: BoundedServer, listens: Callable[[str], None]) -> None:
        """Answer until the parent says stop. listens: called with the address."""
        self._send({"ready": True})
        while not (messages := self._read(wait=True)):
            pass
        if "go" not in messages[0]:
            return
        self.catch_up()  # with what came while it was loading
        for message in messages[1:]:
            self._take(server, message)
        server.takes_signals = False

        def report() -> None:
            asyncio.get_running_loop().add_reader(self._control, self._attend, server)
            if self.number == 0:
                listens(self.url)
            self._send({"listening": True})

        server.announce = report
        server.run(sockets=[self._listener])

    async def look(self) -> Document:
        """What the parent knows of the other processes: `metrics`, `processes` and `ready`."""
        future: asyncio.Future[Document] = asyncio.get_running_loop().create_future()
        if all(one.done() for one in self._looks):  # those who wait share an answer
            self._send({"look": True, "document": self.describe()})
        self._looks.append(future)
        return await future

    async def spread(self) -> None:
        """Until every other process has caught up with what this one has written."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._spreads.append(future)
        self._send({"spread": True})
        await future

    def _attend(self, server: BoundedServer) -> None:
        """Do what the parent says."""
        for message in self._read():
            self._take(server, message)

    def _take(self, server: BoundedServer, message: Document) -> None:
        if "stop" in message:
            server.stop(message["stop"])
        elif "tell" in message:
            self._send({"told": message["tell"], "document": self.describe()})
        elif "looked" in message:
            looks, self._looks = self._looks, []
            for looked in looks:
                if not looked.done():
                    looked.set_result(message["looked"])
        elif "catch_up" in message:  # beside those who ask
            threading.Thread(target=self._catch_up, args=(message["catch_up"],)).start()
        elif "spread" in message:  # the parent answers in the order in which it was asked
            future = self._spreads.pop(0)
            if not future.done():
                future.set_result(None)

    def _catch_up(self, spread: int) -> None:
        try:
            self.catch_up()
        finally:
            self._send({"caught_up": spread})

    def _send(self, message: Document) -> None:
        with self._sending:
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def _read(self, wait: bool = False) -> list[Document]:
        """The messages that have come whole."""
        try:
            data = self._control.recv(1 << 20, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        if not data:  # the parent is gone, and the system ends this process
            os._exit(1)
        *lines, self._lines = (self._lines + data).split(b"\n")
        return [json.loads(line) for line in lines]

"""Listening: uvicorn around an application, with its signals, timeouts and encryption."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import uvicorn
from starlette.types import ASGIApp

from shoal.serving.http.connection import Bounds, Connection
from shoal.serving.http.guard import Guard

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServiceReach:
    """Where a service listens, and who may ask it.

    plain     beyond this host without token or TLS
    refresh   seconds between two looks for something newer
    announce  a file that the address is written to
    drain     seconds in which new connections are answered after SIGTERM
    items_token  to post new items with; None: the token
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    certificate: str | None = None
    key: str | None = None
    plain: bool = False
    refresh: float = 2.0
    announce: str | Path | None = None
    drain: float = 5.0
    items_token: str | None = None


class BoundedServer(uvicorn.Server):
    """Signals are the command's affair: it stops in order, and ends with 0."""

    guard: Guard
    drain = ServiceReach.drain
    takes_signals = True  # False: who leads this process calls `stop`
    announce: Callable[[], object] = staticmethod(lambda: None)  # called when it listens

    @classmethod
    def around(
        cls,
        app: ASGIApp,
        guard: Guard,
        bounds: Bounds | None = None,
        certificate: str | None = None,
        key: str | None = None,
    ) -> Self:
        """The server of an application, ready to run; bounds: of each connection."""
        config = uvicorn.Config(
            app,
            http=cast(Any, partial(Connection, bounds=bounds)),  # it is called as a class is
            interface="asgi3",
            proxy_headers=False,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=30,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            backlog=1024,
        )
        server = cls(config)
        server.guard = guard
        return server

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.announce()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if self.takes_signals and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self.stop, number)
        yield

    def stop(self, number: int) -> None:
        """Stop in order after a signal; the second time at once."""
        if self.guard.stopping:
            self.force_exit = self.should_exit = True
        self.guard.stopping = True
        # Who sends requests here must first notice that it is not ready.
        wait = self.drain if number == signal.SIGTERM else 0.0
        asyncio.get_running_loop().call_later(wait, setattr, self, "should_exit", True)


def check_reach(
    host: str, token: str | None, certificate: str | None, key: str | None, plain: bool
) -> bool:
    """Refuse to listen beyond this host without token and encryption; whether it is loopback."""
    local = host in LOOPBACK
    if not local and not plain and (token is None or certificate is None):
        raise ValueError(
            f"--host {host} is reached by others: give a token (--token-file) and encryption "
            "(--tls-cert, --tls-key), or say --plain where something in front of it sees to that"
        )
    if (certificate is None) != (key is None):
        raise ValueError("--tls-cert and --tls-key belong together")
    for file in (certificate, key):
        if file is not None and not Path(file).is_file():
            raise ValueError(f"there is no file {file}")
    return local


def run_at(
    server: BoundedServer,
    host: str,
    port: int,
    listens: Callable[[str], None],
    announce: str | Path | None = None,
) -> None:
    """Answer until a signal comes. listens: called with the address; announce: a file for it."""
    listener = listen(host, port)
    url = url_of(host, listener, server.config.ssl_certfile is not None)

    def report() -> None:
        listens(url)
        if announce is not None:
            Path(announce).write_text(url)

    server.announce = report
    server.run(sockets=[listener])


def url_of(host: str, listener: socket.socket, encrypted: bool) -> str:
    """The address of a service that listens at this socket."""
    return f"{'https' if encrypted else 'http'}://{host}:{listener.getsockname()[1]}"


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address; refuses one that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ValueError(
            f"cannot listen at {host}:{port}: {error.strerror}; name another with --host, --port"
        ) from error
    return listener


def read_token(
    file: str | None, variable: str = "SHOAL_TOKEN", option: str = "--token-file"
) -> str | None:
    """The token of a file, or of an environment variable; None where there is neither."""
    if file is None:
        text, source = os.environ.get(variable, ""), variable
        if not text:
            return None
    else:
        source = f"{option} {file}"
        try:
            with open(file, "rb") as opened:
                others = os.fstat(opened.fileno()).st_mode & 0o077
                text = opened.read(4096).decode("utf-8", "replace").strip()
        except OSError as error:
            raise ValueError(f"{source}: {error.strerror}") from error
        if others:
            raise ValueError(f"{source} can be read or changed by others: chmod 600 {file}")
    if len(text) < 16 or not text.isascii() or not text.isprintable():
        raise ValueError(
            f"{source} must hold 16 plain characters or more, random ones: "
            "(umask 077; head -c 24 /dev/urandom | base64 > FILE)"
        )
    return text

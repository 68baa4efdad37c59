"""Listening: an artifact in service, and the newer one that takes its place."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

from shoal.serving.http.listening import BoundedServer, check_reach, run_at
from shoal.serving.service.app import Api, Limits
from shoal.serving.service.service import Service

log = logging.getLogger("shoal")


class HttpServer(BoundedServer):
    """The server of an artifact."""

    api: Api

    @classmethod
    def for_artifact(
        cls,
        artifact: str | Path,
        limits: Limits,
        token: str | None = None,
        local: bool = True,
        certificate: str | None = None,
        key: str | None = None,
    ) -> HttpServer:
        """A server of an artifact, ready to run."""
        service = Service(artifact, limits.state_bytes, limits.batch)
        api = Api(service, limits, token, local)
        bounds = replace(limits.connection, head_seconds=limits.seconds)
        server = cls.around(api.app(), api, bounds, certificate, key)
        server.api = api
        return server


def serve(
    artifact: str | Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    token: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    plain: bool = False,
    refresh: float = 2.0,
    announce: str | Path | None = None,
    drain: float = HttpServer.drain,
) -> None:
    """Serve an artifact until a signal comes."""
    limits = limits or Limits()
    local = check_reach(host, token, certificate, key, plain)
    server = HttpServer.for_artifact(artifact, limits, token, local, certificate, key)
    server.drain = drain
    service = server.api.service
    stop = threading.Event()
    watcher = threading.Thread(target=service.watch, args=(refresh, stop), name="watch artifacts")
    watcher.start()

    def listens(url: str) -> None:
        log.info("serving %s at %s (/docs tells what may be asked)", service.model.folder, url)

    try:
        run_at(server, host, port, listens, announce)
    finally:
        stop.set()
        watcher.join()
        server.api.close()
    log.info("stopped")

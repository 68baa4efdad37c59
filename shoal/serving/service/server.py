"""Listening: an artifact in service, and the newer one that takes its place."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shoal.serving.artifact import files
from shoal.serving.http.listening import BoundedServer, ServiceReach, check_reach, run_at
from shoal.serving.items.folder import ItemsFolder
from shoal.serving.items.live_items import LiveItems
from shoal.serving.processes.service_process import ServiceProcess
from shoal.serving.service.api import BatchedApi, Limits
from shoal.serving.service.app import Api
from shoal.serving.service.service import Service

log = logging.getLogger("shoal")


class HttpServer(BoundedServer):
    """The server of questions that are answered in batches."""

    api: BatchedApi

    @classmethod
    def of(
        cls, api: BatchedApi, certificate: str | None = None, key: str | None = None
    ) -> HttpServer:
        """A server of an api, ready to run."""
        bounds = replace(api.limits.connection, head_seconds=api.limits.seconds)
        server = cls.around(api.app(), api, bounds, certificate, key)
        server.api = api
        return server

    @classmethod
    def for_artifact(
        cls,
        artifact: str | Path,
        limits: Limits,
        token: str | None = None,
        local: bool = True,
        items: str | Path | None = None,
    ) -> HttpServer:
        """A server of an artifact, ready to run. items: the folder of new items."""
        live = None if items is None else LiveItems(ItemsFolder(items))
        service = Service(artifact, limits.state_bytes, limits.batch, live)
        return cls.of(Api(service, limits, token, local))


def serve(
    artifact: str | Path,
    reach: ServiceReach,
    limits: Limits | None = None,
    process: ServiceProcess | None = None,
    items: str | Path | None = None,
) -> None:
    """Serve an artifact until a signal comes.

    process: this one, where several serve it. items: the folder of new items; None: none are taken.
    """
    limits = limits or Limits()

    def api(local: bool) -> Api:
        service = Service(artifact, limits.state_bytes, limits.batch, live_items(items, reach))
        return Api(service, limits, reach.token, local, reach.items_token)

    serve_api(api, reach, process)


def leave_out_of_collections() -> None:
    """Let the garbage collector walk no more through what is in service.

    It would stop every answer for as long. What was in service before is collected now.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def live_items(folder: str | Path | None, reach: ServiceReach) -> LiveItems | None:
    """The items of a folder, which nobody may add to without a token."""
    if folder is None:
        return None
    if reach.token is None and reach.items_token is None:
        raise ValueError(
            "--items lets others change what is served, so it needs a token: --items-token-file "
            "FILE or SHOAL_ITEMS_TOKEN (or that of the service)"
        )
    return LiveItems(ItemsFolder(folder))


def serve_api(
    make_api: Callable[[bool], BatchedApi],
    reach: ServiceReach,
    process: ServiceProcess | None = None,
) -> None:
    """Answer until a signal comes, and take what is newer meanwhile.

    make_api: called with whether it listens at loopback alone, once that is known to be allowed.
    process: this one, where several answer.
    """
    if process is not None:
        files.share_copies(process.copies)
    local = check_reach(reach.host, reach.token, reach.certificate, reach.key, reach.plain)
    server = HttpServer.of(make_api(local), reach.certificate, reach.key)
    server.drain = reach.drain
    service = server.api.service
    stop = threading.Event()
    leave_out_of_collections()
    watcher = threading.Thread(
        target=service.watch,
        args=(reach.refresh, stop, leave_out_of_collections),
        name="watch artifacts",
    )
    watcher.start()

    def listens(url: str) -> None:
        place = service.place_in_service()
        log.info("serving %s at %s (/docs tells what may be asked)", place, url)

    try:
        if process is None:
            run_at(server, reach.host, reach.port, listens, reach.announce)
        else:
            server.api.join(process)
            process.run(server, listens)
    finally:
        stop.set()
        watcher.join()
        server.api.close()
    log.info("stopped")

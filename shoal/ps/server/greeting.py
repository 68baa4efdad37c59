"""Greeting: what a worker says when it comes, checked before it is believed."""

from __future__ import annotations

from typing import Any, NamedTuple

from shoal.config.tiers import TiersSection
from shoal.ps.server.answers import Request
from shoal.ps.server.state import State
from shoal.ps.spec import Spec, parse_spec
from shoal.ps.wire import WireError, parse_json


class Hello(NamedTuple):
    """A hello that is sound."""

    spec: Spec
    described: dict[str, Any]  # the model, as it was told
    host: str


def read_hello(
    request: Request, index: int, known: Spec | None, described: dict[str, Any]
) -> Hello:
    """What a worker says; it must describe the model that the first one did, and mean us."""
    values = parse_json(request.only(1)[0])
    worker = request.header.worker
    host, server = str(values.pop("host", "?"))[:200], values.pop("server", None)
    if known is not None and values != described:
        raise WireError(
            f"worker {worker} describes another model or run than the first worker did: give every "
            "host the same config and code"
        )
    spec = parse_spec(values) if known is None else known
    if server != index or index >= spec.servers:
        raise WireError(
            f"this is server {index}, and worker {worker} on host {host} takes it for server "
            f"{server} of {spec.servers}: give every host the same --servers"
        )
    return Hello(spec, values, host)


def make_state(
    spec: Spec, index: int, threads: int | None, memory: int, tiers: TiersSection | None
) -> State:
    """What a server is to keep, where it can."""
    needed = spec.first_bytes(index)
    if needed > memory:
        raise WireError(
            f"server {index} cannot hold this model: dense parameters and Bloom filters take up "
            f"to {needed / 2**30:.1f} GiB, and it may take {memory / 2**30:.1f}, half of its "
            "host's memory: use more servers"
        )
    try:
        return State(spec, index, threads, tiers)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise WireError(f"server {index} cannot hold this model: {error}") from None

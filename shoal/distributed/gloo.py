"""Gloo: at which address of this host its ports are.

Left alone, torch takes what the host's name means, or the first address of an interface; neither
need be one that the other hosts reach. Gloo itself can be given any address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

MakeOptions = Callable[[timedelta], Any]  # of a group, by its timeout


def options_at(address: str, timeout: timedelta) -> Any:
    """Options of a group whose ports are at an address; they are open from now on."""
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=address)]
    options._timeout = timeout
    return options


@contextmanager
def gloo_with(options: MakeOptions | None) -> Iterator[None]:
    """In here `init_process_group("gloo")` makes its group with these options; None: as torch does.

    torch takes none for this backend, and libraries ask for a backend of this very name.
    """
    if options is None:
        yield
        return
    make = options
    module: Any = distributed_c10d
    before = module.ProcessGroupGloo

    class Made(before):  # type: ignore[misc,valid-type]
        def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta):
            super().__init__(store, rank, size, make(timeout))

    module.ProcessGroupGloo = Made
    try:
        yield
    finally:
        module.ProcessGroupGloo = before

"""How a command starts: torch and the rooms that it needs come in, without a look for garbage."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import typer

# Modules with native libraries that the schema of a config imports.
LIBRARIES = ("pydantic_core", "yaml", "binascii", "contextvars", "hashlib", "random", "zoneinfo")
under_way: list[bool] = []  # imports
# Bytes of address space that libraries reserve before any data is read, measured with torch for
# CPUs. Below a limit that is lower they end the process: neither torch nor Polars raises there.
TORCH_SPACE = 750_000_000
DATA_SPACE = 1_900_000_000  # torch and Polars
SPACE_OF_A_CORE = 10_000_000  # the threads of both


def begin() -> None:
    """Turn the garbage collector on, once the arguments of the command are parsed."""
    gc.freeze()
    gc.enable()


@contextmanager
def importing(needed: int = TORCH_SPACE) -> Iterator[None]:
    """Freeze what the block imports, so that the garbage collector does not walk through it.

    needed: the address space that the command's libraries reserve.
    """
    check_address_space(needed)
    gc.disable()
    under_way.append(True)
    try:
        yield
    finally:
        under_way.pop()
        begin()


def check_address_space(needed: int = DATA_SPACE) -> None:
    """Refuse a limit on address space (ulimit -v) below which the libraries cannot be loaded."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    needed += SPACE_OF_A_CORE * len(os.sched_getaffinity(0))
    if limit != resource.RLIM_INFINITY and limit < needed:
        message = (
            f"error: this command's libraries reserve {needed / 1e9:.1f} GB of address space "
            f"before they read any data, and the limit is {limit / 1e9:.1f} GB (ulimit -v "
            f"{limit >> 10}): raise it (ulimit -v unlimited). To bound the memory that is used, "
            "run it in a control group: systemd-run --user --scope -p MemoryMax=4G shoal ..."
        )
        typer.secho(message, fg="red", err=True)
        raise typer.Exit(2)  # what else ends a command needs torch


def prepare_config() -> None:
    """Let pydantic make what validates a config, while torch's largest library is loaded aside.

    That takes the system's loader a while, and Python waits wherever it needs another library
    meanwhile; so those that a config needs are loaded before.
    """
    check_address_space()
    for name in LIBRARIES:
        import_module(name)
    aside = Thread(target=_load_library)
    aside.start()
    from shoal.config.loading import Config

    Config.model_rebuild()
    aside.join()


def _load_library() -> None:
    spec = find_spec("torch")
    library = Path(spec.origin).parent / "lib" / "libtorch_cpu.so" if spec and spec.origin else None
    if library is None or not library.exists():
        return
    # By a call of C's, during which other threads run. Should it fail, `import torch` reports why.
    ctypes.CDLL(None).dlopen(os.fsencode(library), os.RTLD_NOW)

"""How a command starts: torch and the rooms that it needs come in, without a look for garbage."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

# Modules with native libraries that the schema of a config imports.
LIBRARIES = ("pydantic_core", "yaml", "binascii", "contextvars", "hashlib", "random", "zoneinfo")
under_way: list[bool] = []  # imports


def begin() -> None:
    """Turn the garbage collector on, once the arguments of the command are parsed."""
    gc.freeze()
    gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """Freeze what the block imports, so that the garbage collector does not walk through it."""
    gc.disable()
    under_way.append(True)
    try:
        yield
    finally:
        under_way.pop()
        begin()


def prepare_config() -> None:
    """Let pydantic make what validates a config, while torch's largest library is loaded aside.

    That takes the system's loader a while, and Python waits wherever it needs another library
    meanwhile; so those that a config needs are loaded before.
    """
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

"""Rows sent and received by the native core, which calls pyzmq's own libzmq.

It sends rows from the memory that they are gathered into, and puts those that come where they
belong. Without it, or where libzmq's functions cannot be found, Python does the same.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import zmq
from zmq.backend import Socket

from shoal.kernels.core import load_core

_core = load_core()


def native_outlet(socket: zmq.Socket) -> Any:
    """What native code sends by, or None."""
    functions = _functions()
    return _core.Outlet(functions, socket.underlying) if functions else None


def native_arriving(header: bytes, address: int, places: list[tuple[int, int]]) -> Any:
    """Native code's part of `Arriving`, or None; address: of the tensor."""
    return None if _core is None else _core.Arriving(header, address, places)


def _functions() -> list[int]:
    """Addresses of libzmq's functions zmq_msg_NAME; none where they cannot be had."""
    if _core is None:
        return []
    try:
        # The library that pyzmq's sockets are of: linked to libzmq or with it inside, it has both
        # the names and the very functions that made them. Not where it is written in Python.
        library = ctypes.CDLL(sys.modules[Socket.__module__].__file__)
        functions = [
            getattr(library, f"zmq_msg_{name}") for name in ("init_size", "data", "send", "close")
        ]
    except (KeyError, OSError, AttributeError):
        return []
    return [ctypes.cast(one, ctypes.c_void_p).value or 0 for one in functions]

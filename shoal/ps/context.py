"""Context: of ZeroMQ, as workers and servers use it."""

from __future__ import annotations

import zmq


class Context(zmq.Context):
    """One that nobody waits for when it is dropped without being closed.

    ZeroMQ's own waits until its sockets are closed, in whichever thread happens to collect it;
    after an error these may be garbage themselves, and then it waits for ever.
    """

    def __del__(self) -> None:
        pass

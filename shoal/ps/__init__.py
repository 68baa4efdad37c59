"""Parameter servers: rows and dense parameters in processes of their own, reached by ZeroMQ."""

from importlib.util import find_spec


def check_installed() -> None:
    """Refuse to go on without pyzmq, which the extra `servers` brings."""
    if find_spec("zmq") is None:
        raise ValueError(
            "parameter servers need pyzmq: pip install pyzmq (in a clone: make extras "
            "EXTRAS=servers)"
        )

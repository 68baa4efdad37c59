"""Parameter servers: rows and dense parameters in processes of their own, reached by ZeroMQ."""

from importlib.util import find_spec

from shoal import how_to_install


def check_installed() -> None:
    """Refuse to go on without pyzmq, which the extra `servers` brings."""
    if find_spec("zmq") is None:
        raise ValueError(f"parameter servers need pyzmq: {how_to_install('servers')}")

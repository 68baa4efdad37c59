"""Parameter servers: rows and dense parameters in separate processes, reached by ZeroMQ."""

from importlib.util import find_spec

from shoal import how_to_install


def check_installed() -> None:
    """Raise an error without pyzmq, which the extra `servers` installs."""
    if find_spec("zmq") is None:
        raise ValueError(f"parameter servers need pyzmq: {how_to_install('servers')}")

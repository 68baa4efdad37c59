"""A Ray cluster, for those who have one."""

from __future__ import annotations

from types import ModuleType

from shoal import how_to_install


def open_ray(address: str | None) -> ModuleType:
    """Ray, connected to a cluster: that of an address, the one this process uses, or a new one."""
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            f"Ray is not installed ({error}): {how_to_install('ray')}, on every node"
        ) from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, include_dashboard=False if address is None else None)
        except ConnectionError as error:
            raise ValueError(
                f"there is no Ray cluster at {address!r}: {error}; start one with `ray start "
                "--head`, or leave the address out to have one on this machine alone"
            ) from None
    return ray

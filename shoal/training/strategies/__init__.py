"""Strategies by name: how dense parameters agree, and where rows live.

One registers here from anywhere: `register_strategy("name", make)`, and configs may name it.
"""

from collections.abc import Callable

from shoal.config.schema import StrategySection
from shoal.config.strategy_section import STRATEGIES
from shoal.distributed.world import World
from shoal.training.strategies.base import Single, Strategy

Make = Callable[[StrategySection, World, float], Strategy]  # float: launch.join_timeout


def _single(section: StrategySection, world: World, join_timeout: float) -> Strategy:
    if world.size > 1:
        raise ValueError(
            f"strategy single cannot run on {world.size} processes; use ddp or sharded"
        )
    if section.graph and world.device.type == "cuda":
        from shoal.training.strategies.graphed import Graphed

        return Graphed(world, section.fused, auto=section.graph == "auto")
    return Single(world, fused=section.fused)


def _ddp(section: StrategySection, world: World, join_timeout: float) -> Strategy:
    from shoal.training.strategies.ddp import DDP

    return DDP(world, fused=section.fused)


def _sharded(section: StrategySection, world: World, join_timeout: float) -> Strategy:
    from shoal.training.strategies.sharded import Sharded

    return Sharded(world, section)


def _ps(section: StrategySection, world: World, join_timeout: float) -> Strategy:
    from shoal.training.strategies.geo import Geo
    from shoal.training.strategies.ps import ParameterServers

    kind = Geo if section.ps.mode == "geo" else ParameterServers
    return kind(world, section, join_timeout)


_MAKERS: dict[str, Make] = {}


def register_strategy(name: str, make: Make) -> None:
    """Let configs choose a strategy: `strategy.name: NAME`; make(section, world, join_timeout)."""
    _MAKERS[name] = make
    STRATEGIES.add(name)


# Each imports its file when it is chosen: a run pays for one of them.
register_strategy("single", _single)
register_strategy("ddp", _ddp)
register_strategy("sharded", _sharded)
register_strategy("ps", _ps)


def make_strategy(section: StrategySection, world: World, join_timeout: float = 60.0) -> Strategy:
    """The strategy of a config; `auto` is single alone and ddp among several."""
    name = section.name
    if name == "auto":
        name = "single" if world.size == 1 else "ddp"
    return _MAKERS[name](section, world, join_timeout)


__all__ = ["Strategy", "make_strategy", "register_strategy"]

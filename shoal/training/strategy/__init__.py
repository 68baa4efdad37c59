"""Strategies by name: how dense parameters agree, and where rows live."""

from __future__ import annotations

from shoal.config.schema import StrategySection
from shoal.training.strategy.base import Strategy
from shoal.world.world import World


def make_strategy(section: StrategySection, world: World, join_timeout: float = 60.0) -> Strategy:
    """The strategy of a config; `auto` is single alone and ddp among several.

    Each is imported where it is chosen: a run pays for one of them.
    """
    name = section.name
    if name == "auto":
        name = "single" if world.size == 1 else "ddp"
    if name == "single" and world.size > 1:
        raise ValueError(
            f"strategy single cannot run on {world.size} processes; use ddp or sharded"
        )
    if section.backend != "native" and name != "sharded":
        raise ValueError(
            f"strategy.backend is {section.backend}, which strategy {name} does not have; set "
            "strategy.name=sharded, or strategy.backend=native"
        )
    if name == "sharded" and section.backend == "torchrec":
        from shoal.training.strategy.torchrec import ShardedByTorchRec

        return ShardedByTorchRec(world, section)
    if name == "single":
        if section.graph and world.device.type == "cuda":
            from shoal.training.strategy.graphed import Graphed

            return Graphed(world, section.fused, auto=section.graph == "auto")
        from shoal.training.strategy.single import Single

        return Single(world, fused=section.fused)
    if name == "sharded":
        from shoal.training.strategy.sharded import Sharded

        return Sharded(world, section)
    if name == "ps":
        from shoal.training.strategy.geo import Geo
        from shoal.training.strategy.ps import ParameterServers

        kind = Geo if section.ps.mode == "geo" else ParameterServers
        return kind(world, section, join_timeout)
    from shoal.training.strategy.ddp import DDP

    return DDP(world, fused=section.fused)


__all__ = ["Strategy", "make_strategy"]

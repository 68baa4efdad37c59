"""Strategies by name: how dense parameters agree, and where rows live."""

from __future__ import annotations

from shoal.config.schema import StrategySection
from shoal.training.strategy.base import Strategy
from shoal.training.strategy.ddp import DDP
from shoal.training.strategy.graphed import Graphed
from shoal.training.strategy.sharded import Sharded
from shoal.training.strategy.single import Single
from shoal.world.world import World


def make_strategy(section: StrategySection, world: World, join_timeout: float = 60.0) -> Strategy:
    """The strategy of a config; `auto` is single alone and ddp among several."""
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
        from shoal.training.strategy.torchrec import (
            ShardedByTorchRec,  # only here is TorchRec needed
        )

        return ShardedByTorchRec(world, section)
    if name == "single":
        on_gpu = world.device.type == "cuda"
        return Graphed(world) if section.graph and on_gpu else Single(world, fused=section.fused)
    if name == "sharded":
        return Sharded(world, section)
    if name == "ps":
        from shoal.training.strategy.geo import Geo  # only here is pyzmq needed
        from shoal.training.strategy.ps import ParameterServers

        kind = Geo if section.ps.mode == "geo" else ParameterServers
        return kind(world, section, join_timeout)
    return DDP(world, fused=section.fused)


__all__ = ["DDP", "Graphed", "Sharded", "Single", "Strategy", "make_strategy"]

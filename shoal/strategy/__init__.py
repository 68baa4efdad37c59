"""Strategies by name: how dense parameters agree, and where rows live."""

from __future__ import annotations

from shoal.strategy.base import Strategy
from shoal.strategy.ddp import DDP
from shoal.strategy.single import Single
from shoal.world import World

STRATEGIES: dict[str, type[Strategy]] = {"single": Single, "ddp": DDP}


def make_strategy(name: str, world: World) -> Strategy:
    """The named strategy; `auto` is single alone and ddp among several."""
    if name == "auto":
        name = "single" if world.size == 1 else "ddp"
    if name == "single" and world.size > 1:
        raise ValueError(
            f"strategy single cannot run on {world.size} processes; use strategy.name=ddp or auto"
        )
    return STRATEGIES[name](world)


__all__ = ["DDP", "STRATEGIES", "Single", "Strategy", "make_strategy"]

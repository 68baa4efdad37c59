"""A strategy from outside of the package: registered by a name, chosen in a config."""

from small import small_config
from torch import Tensor

from shoal.config.schema import StrategySection
from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.training.strategies import _MAKERS, STRATEGIES, register_strategy
from shoal.training.strategies.base import Single, Strategy, Sums


class Counting(Single):
    """single, which counts its updates."""

    name = "counting"
    updates = 0

    def update(self, sums: Sums, lr: float) -> Tensor:
        self.updates += 1
        return super().update(sums, lr)


def test_a_strategy_from_outside_trains_as_single() -> None:
    def make(section: StrategySection, world: World, join_timeout: float) -> Strategy:
        return Counting(world, section.fused)

    register_strategy("counting", make)
    try:
        losses = {}
        for name in ("single", "counting"):
            parts = build(small_config("BPR", strategy__name=name), World())
            batches = list(parts.reader.batches(0))
            losses[name] = [float(parts.strategy.train_step(batch)) for batch in batches]
        assert parts.strategy.updates == len(batches)  # type: ignore[attr-defined]
        assert losses["single"] == losses["counting"]
    finally:
        del _MAKERS["counting"]
        STRATEGIES.names.remove("counting")

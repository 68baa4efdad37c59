"""The model of a run, and the strategy that holds its rows and dense parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shoal.config.schema import Config, StrategySection
from shoal.distributed.world import World
from shoal.models.base import Facts, Model
from shoal.runs.vectors import RunVectors
from shoal.runs.warm_start import frozen_optimizer
from shoal.training.averages import Averages
from shoal.training.strategies import Strategy

MakeStrategy = Callable[[StrategySection, World, float], Strategy]


def set_up(
    config: Config,
    world: World,
    model_class: type[Model],
    facts: Facts,
    make: MakeStrategy,
    vectors: RunVectors | None = None,
) -> tuple[Model, Strategy]:
    """The model of a config, and the strategy with the model in it.

    vectors: of items and users, which the model's tables read.
    """
    torch.manual_seed(config.run.seed)  # dense parameters: the same on every rank
    model = model_class(model_class.Options(**config.model.options), facts)
    if vectors is not None:
        vectors.put_into(model, config.model.title)
    if config.train.recompute:
        _recompute_layers(model, config.model.title)
    if config.train.ema is not None:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError(
                f"train.ema averages dense parameters, and {config.model.title} has none"
            )
        model.averages = Averages(model, config.train.ema)
    strategy = make(config.strategy, world, config.launch.join_timeout)
    strategy.setup(
        model,
        frozen_optimizer(config.train.optimizer, config.start.pretrained),
        config.run.seed,
        config.train.clip_grad_norm,
        rows=config.rows,
        precision=config.train.precision,
        compiled=config.train.compile,
    )
    return model, strategy


def _recompute_layers(model: Model, title: str) -> None:
    """Let backward compute the layers of transformers again; title: the model, for errors."""
    layers: list[Any] = [layer for layer in model.modules() if hasattr(layer, "recompute")]
    if not layers:
        raise ValueError(f"train.recompute=true: {title} has no layers of transformers")
    for layer in layers:
        layer.recompute = True

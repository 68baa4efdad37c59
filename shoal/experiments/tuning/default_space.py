"""Default spaces: for every model, from its options and a table of ranges by their names."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shoal.config.keys import KEYS, options_of
from shoal.experiments.tuning.space import Parameter
from shoal.models import find
from shoal.models.base import Model
from shoal.models.options import Share
from shoal.runs.data_size import USUAL_BATCH

# What a search of this key is, given its default; None: it is left out.
Rule = Callable[[str, Any], Parameter | None]


def default_space(model: str | type[Model]) -> list[Parameter]:
    """What is searched where no space is given; ValueError where a model has nothing to search."""
    model_class = find(model) if isinstance(model, str) else model
    space = [*_training(model_class)] if model_class.trainable else []
    for key, option in options_of(model_class.Options).items():
        rule = _rule(key.removeprefix("model."))
        if rule is _weight and option.kind == Share:
            rule = _share
        if rule is not None and (parameter := rule(key, option.default)) is not None:
            space.append(_possible(parameter, model_class))
    if not space:
        raise ValueError(f"{model_class.__name__} has no option that a search would change")
    return space


def _possible(parameter: Parameter, model: type[Model]) -> Parameter:
    """Without the choices that the model's options refuse beside their other defaults."""
    name = parameter.key.removeprefix("model.")

    def is_taken(choice: Any) -> bool:
        try:
            model.Options(**{name: choice})
        except ValueError:
            return False
        return True

    return replace(parameter, choices=tuple(filter(is_taken, parameter.choices)))


def _training(model: type[Model]) -> list[Parameter]:
    """Parameters of training: the learning rate, and what depends on the model."""
    decay = "train.optimizer.weight_decay"
    space = [
        Parameter("train.optimizer.lr", low=2e-4, high=2e-2, log=True),
        Parameter(decay, (KEYS[decay].default, 1e-6, 1e-5, 1e-4)),
    ]
    number = getattr(model.Options, "DEFAULTS", {}).get("train.negatives.num")
    if number is not None:  # models that draw many depend on how many
        space.append(Parameter("train.negatives.num", _scaled(number, 0.2, 0.5, 1, 2)))
    if model.kind == "sequential":  # a sample is a history: large batches leave few steps
        lengths = {20, 100, 200, KEYS["data.max_len"].default}
        space.append(Parameter("data.max_len", tuple(sorted(lengths))))
        space.append(Parameter("train.batch_size", (128, 512, USUAL_BATCH)))
    return space


def _rule(name: str) -> Rule | None:
    return _dropout if "dropout" in name else RULES.get(name)


def _width(key: str, default: Any) -> Parameter | None:
    """32 to 256; click models, whose rows are narrow, half to four times theirs."""
    if not isinstance(default, int):
        return None
    if default < 32:
        return Parameter(key, _scaled(default, 0.5, 1, 2, 4))
    return Parameter(key, tuple(sorted({32, 64, 128, 256, default})))


def _inner(key: str, default: Any) -> Parameter | None:
    """Inner width of a transformer, a half to four times the default; None where it is derived."""
    return Parameter(key, _scaled(default, 0.5, 1, 2, 4)) if isinstance(default, int) else None


def _widths(key: str, default: Any) -> Parameter | None:
    """Widths of layers: half, the same, twice."""
    if not isinstance(default, list) or not default:
        return None
    return Parameter(key, tuple([max(1, int(one * by)) for one in default] for by in (0.5, 1, 2)))


def _dropout(key: str, default: Any) -> Parameter | None:
    return Parameter(key, (), 0.0, 0.7, 0.1) if isinstance(default, float) else None


def _depth(key: str, default: Any) -> Parameter | None:
    deep = isinstance(default, int) and default > 0
    return Parameter(key, (), 1, max(4, default)) if deep else None


def _heads(key: str, default: Any) -> Parameter | None:
    return Parameter(key, (1, 2, 4))  # these divide every width above


def _count(key: str, default: Any) -> Parameter | None:
    return Parameter(key, _scaled(default, 0.2, 0.5, 1, 2, 5))


def _weight(key: str, default: Any) -> Parameter | None:
    """A hundredth to a hundred times the default."""
    if not isinstance(default, float) or default <= 0:
        return None
    return Parameter(key, low=_short(default / 100), high=_short(default * 100), log=True)


def _share(key: str, default: Any) -> Parameter | None:
    """From none to all."""
    return Parameter(key, (), 0.0, 1.0, 0.1)


def _few_times(key: str, default: Any) -> Parameter | None:
    """A fifth to five times."""
    return Parameter(key, low=_short(default / 5), high=_short(default * 5), log=True)


def _temperature(key: str, default: Any) -> Parameter | None:
    """A fifth to five times; 1.0 stands for scores that are not divided."""
    return None if default == 1.0 else _few_times(key, default)


def _shrink(key: str, default: Any) -> Parameter | None:
    return Parameter(key, (0.0, 10.0, 50.0, 100.0, 500.0))


RULES: dict[str, Rule] = {
    **dict.fromkeys(("embedding_size", "hidden_size", "mf_embedding_size"), _width),
    **dict.fromkeys(("mlp_embedding_size", "kg_embedding_size", "dim"), _width),
    **dict.fromkeys(("latent_dimension", "hidden_dimension", "vector_size"), _width),
    **dict.fromkeys(("layers", "mlp_hidden_size", "hidden_size_list", "tower_layers"), _widths),
    **dict.fromkeys(("expert_layers", "mlp_hidden_dimension", "top_layers"), _widths),
    **dict.fromkeys(("n_layers", "num_layers", "cross_layers", "context_hops", "n_hop"), _depth),
    **dict.fromkeys(("reg_weight", "alpha", "l1", "l2", "cl_weight", "ssl_weight"), _weight),
    **dict.fromkeys(("kg_weight", "negative_weight", "sim_weight", "pretext_weight"), _weight),
    **dict.fromkeys(("temperature", "ssl_tau"), _temperature),
    "inner_size": _inner,
    "n_heads": _heads,
    "k": _count,
    "rounds": _count,
    "num_leaves": _count,
    "max_depth": _depth,
    "learning_rate": _few_times,
    "shrink": _shrink,
}


def _scaled(default: int, *factors: float) -> tuple[int, ...]:
    return tuple(sorted({max(1, round(default * by)) for by in factors}))


def _short(value: float) -> float:
    """Two digits are enough for an end of a range."""
    digits = 1 - math.floor(math.log10(value))
    return round(value, digits)

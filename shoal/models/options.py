"""Options of models: types with bounds, and meanings.

A meaning is the comment beside an option, or the common meaning of its name:

class Options(Retrieval.Options):
    embedding_size: int = 64                 means the same in every model: COMMON has it
    gamma: Share = 0.5  # of the user's own vector
"""

import dataclasses
import inspect
import re
from functools import cache
from typing import Annotated, Any

from pydantic import ConfigDict, Field

# Configs are checked against these as against the bounds of any key.
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
# Of an option that is a TypedDict: other keys and other types are errors.
STRICT = ConfigDict(strict=True, extra="forbid")

COMMON = {
    "alpha": "weight of every pair that was not taken, beside 1 of those taken",
    "attn_dropout_prob": "dropout of attention weights",
    "cl_weight": "weight of the contrastive terms",
    "cross_layers": "layers that multiply features by each other",
    "dim": "width of an id's row",
    "dropout": "dropout of the perceptron's layers",
    "dropout_prob": "dropout of inputs and layers",
    "embedding_size": "width of the vectors of users and items",
    "epochs": "sweeps over all users and items",
    "expert_layers": "widths of an expert's layers",
    "hidden_act": "activation of the feed-forward layers",
    "hidden_dropout_prob": "dropout of states",
    "hidden_size": "width of the states",
    "initial_range": "first values lie within +- this",
    "initializer_range": "standard deviation of the first weights",
    "inner_size": "width inside the feed-forward layers",
    "interests": "vectors of a user, one for each interest",
    "k": "neighbours that are kept",
    "kg_weight": "weight of the knowledge graph's loss",
    "l2": "penalty on the squared weights",
    "latent_dimension": "width of a user's latent vector",
    "layer_norm_eps": "added to the variance in layer norms",
    "layers": "widths of the perceptron's layers",
    "mlp_hidden_size": "widths of the perceptron's layers",
    "n_heads": "attention heads",
    "n_layers": "layers, one after the other",
    "negative_weight": "weight of what was not taken",
    "num_layers": "layers, one after the other",
    "reg_weight": "weight of the L2 penalty",
    "require_pow": "true: half the squared norm of each vector, as in the paper; false: the norm",
    "shrink": "added to the divisor of a similarity: few common items count less",
    "sweeps": "passes over all items, at most",
    "temperature": "scores are divided by it",
    "tower_layers": "widths of a label's own layers",
}


def meanings(options: type[Any]) -> dict[str, str]:
    """Option -> what it means. A class without a comment on an option inherits the base's."""
    texts = {field.name: COMMON.get(field.name, "") for field in dataclasses.fields(options)}
    for base in reversed(options.__mro__):
        texts |= {name: text for name, text in _comments(base).items() if text and name in texts}
    return texts


@cache
def _comments(options: type[Any]) -> dict[str, str]:
    """Option -> the comment beside it, or the lines above it; of this class alone."""
    try:
        lines = inspect.getsource(options).splitlines() if dataclasses.is_dataclass(options) else []
    except (OSError, TypeError):  # typed in a session, or made by a program
        lines = []
    comments, above = dict.fromkeys(inspect.get_annotations(options), ""), ""
    for line in lines:
        match = re.match(r"\s+(\w+): [^#]*(?:# (.*))?$", line)
        if match and match[1] in comments:
            comments[match[1]] = (match[2] or above).strip()
        comment = re.match(r"\s+# (.*)", line)
        above = f"{above} {comment[1]}" if comment else ""
    return comments

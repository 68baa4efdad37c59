"""What model classes from RecBole are made of here; `shoal import recbole` writes the import.

    from shoal.compat.recbole import BPRLoss, GeneralRecommender, TableEmbedding

models.py       GeneralRecommender, SequentialRecommender: their batches and scores
context.py      ContextRecommender: the same for clicks
interaction.py  what `calculate_loss` is given, and what a class reads of its data
tables.py       TableEmbedding: nn.Embedding whose rows are a table
losses.py       BPRLoss, EmbLoss, RegLoss
layers.py       MLPLayers, TransformerEncoder and its parts, VanillaAttention, initial values

Names and arguments are those of RecBole 1.2.1. See docs/from/recbole.md.
"""

from importlib import import_module
from typing import Any

# Name -> the module that has it. `shoal import recbole` knows the names without importing torch.
NAMES = {
    "GeneralRecommender": "models",
    "SequentialRecommender": "models",
    "ContextRecommender": "context",
    "InputType": "interaction",
    "ModelType": "interaction",
    "TableEmbedding": "tables",
    "BPRLoss": "losses",
    "EmbLoss": "losses",
    "RegLoss": "losses",
    "Dropout": "layers",
    "FeedForward": "layers",
    "MLPLayers": "layers",
    "MultiHeadAttention": "layers",
    "TransformerEncoder": "layers",
    "TransformerLayer": "layers",
    "VanillaAttention": "layers",
    "activation_layer": "layers",
    "xavier_normal_initialization": "layers",
    "xavier_uniform_initialization": "layers",
}
__all__ = [*NAMES]


def __getattr__(name: str) -> Any:
    if name in NAMES:
        return getattr(import_module(f"shoal.compat.recbole.{NAMES[name]}"), name)
    raise AttributeError(f"module 'shoal.compat.recbole' has no attribute {name!r}")

"""RecBole's layers and initial values that classes use most, by its names and arguments."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.init import xavier_normal_, xavier_uniform_

from shoal.models.nn.dropout import Dropout

__all__ = [
    "Dropout",
    "FeedForward",
    "MLPLayers",
    "MultiHeadAttention",
    "TransformerEncoder",
    "TransformerLayer",
    "VanillaAttention",
    "activation_layer",
    "xavier_normal_initialization",
    "xavier_uniform_initialization",
]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "leakyrelu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "swish": nn.SiLU,
}


def activation_layer(activation_name: Any = "relu", emb_dim: int | None = None) -> Any:
    """The activation of a name; None for none."""
    if activation_name is None or activation_name == "none":
        return None
    if isinstance(activation_name, type):
        return activation_name()
    if str(activation_name).lower() not in ACTIVATIONS:
        raise ValueError(
            f"activation {activation_name!r} is not here; choose one of {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[activation_name.lower()]()


class MLPLayers(nn.Module):
    """Dropout, linear, activation, for every layer: [..., layers[0]] -> [..., layers[-1]]."""

    def __init__(
        self,
        layers: list[int],
        dropout: float = 0.0,
        activation: Any = "relu",
        bn: bool = False,
        init_method: str | None = None,
        last_activation: bool = True,
    ):
        super().__init__()
        modules: list[nn.Module] = []
        for number, (width_in, width_out) in enumerate(pairwise(layers), start=2):
            linear = nn.Linear(width_in, width_out)
            if init_method is not None:
                nn.init.zeros_(linear.bias)
            if init_method == "norm":
                nn.init.normal_(linear.weight, 0.0, 0.01)
            modules += [Dropout(dropout), linear]
            if bn:
                modules.append(nn.BatchNorm1d(width_out))
            function = activation_layer(activation)
            if function is not None and (last_activation or number < len(layers)):
                modules.append(function)
        self.mlp_layers = nn.Sequential(*modules)

    def forward(self, input_feature: Tensor) -> Tensor:
        return self.mlp_layers(input_feature)


class VanillaAttention(nn.Module):
    """A weighted sum of places: [..., n, d] -> [..., d], and the weights [..., n]."""

    def __init__(self, hidden_dim: int, attn_dim: int):
        super().__init__()
        self.projection = nn.Sequential(
            nn.Linear(hidden_dim, attn_dim), nn.ReLU(), nn.Linear(attn_dim, 1)
        )

    def forward(self, input_tensor: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.projection(input_tensor).squeeze(-1).softmax(-1)
        return (input_tensor * weights.unsqueeze(-1)).sum(-2), weights


class MultiHeadAttention(nn.Module):
    """Self-attention with dropout, a residual and a layer norm: [b, l, d] -> [b, l, d]."""

    def __init__(
        self,
        n_heads: int,
        hidden_size: int,
        hidden_dropout_prob: float,
        attn_dropout_prob: float,
        layer_norm_eps: float,
    ):
        super().__init__()
        if hidden_size % n_heads:
            raise ValueError(f"hidden_size {hidden_size} is no multiple of n_heads {n_heads}")
        self.n_heads = n_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.attn_dropout = Dropout(attn_dropout_prob)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.out_dropout = Dropout(hidden_dropout_prob)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)

    def forward(self, input_tensor: Tensor, attention_mask: Tensor) -> Tensor:
        """attention_mask is added to the scores [b or 1, heads or 1, l or 1, l]."""
        parts = (self.query(input_tensor), self.key(input_tensor), self.value(input_tensor))
        query, key, value = (
            part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in parts
        )
        scores = query @ key.mT / query.shape[-1] ** 0.5 + attention_mask
        attended = self.attn_dropout(scores.softmax(-1)) @ value
        attended = self.dense(attended.transpose(1, 2).flatten(2))
        return self.LayerNorm(input_tensor + self.out_dropout(attended))


class FeedForward(nn.Module):
    """Two linear layers with dropout, a residual and a layer norm: [..., d] -> [..., d]."""

    def __init__(
        self,
        hidden_size: int,
        inner_size: int,
        hidden_dropout_prob: float,
        hidden_act: str,
        layer_norm_eps: float,
    ):
        super().__init__()
        self.dense_1 = nn.Linear(hidden_size, inner_size)
        self.activation = activation_layer(hidden_act)
        self.dense_2 = nn.Linear(inner_size, hidden_size)
        self.dropout = Dropout(hidden_dropout_prob)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)

    def forward(self, input_tensor: Tensor) -> Tensor:
        inner = self.dense_2(self.activation(self.dense_1(input_tensor)))
        return self.LayerNorm(input_tensor + self.dropout(inner))


class TransformerLayer(nn.Module):
    """Self-attention, then two linear layers: states [b, l, d] -> [b, l, d]."""

    def __init__(
        self,
        n_heads: int,
        hidden_size: int,
        intermediate_size: int,
        hidden_dropout_prob: float,
        attn_dropout_prob: float,
        hidden_act: str,
        layer_norm_eps: float,
    ):
        super().__init__()
        self.multi_head_attention = MultiHeadAttention(
            n_heads, hidden_size, hidden_dropout_prob, attn_dropout_prob, layer_norm_eps
        )
        self.feed_forward = FeedForward(
            hidden_size, intermediate_size, hidden_dropout_prob, hidden_act, layer_norm_eps
        )

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        return self.feed_forward(self.multi_head_attention(hidden_states, attention_mask))


class TransformerEncoder(nn.Module):
    """Layers of self-attention: states [b, l, d] -> a list of the states behind every layer."""

    def __init__(
        self,
        n_layers: int = 2,
        n_heads: int = 2,
        hidden_size: int = 64,
        inner_size: int = 256,
        hidden_dropout_prob: float = 0.5,
        attn_dropout_prob: float = 0.5,
        hidden_act: str = "gelu",
        layer_norm_eps: float = 1e-12,
    ):
        super().__init__()
        self.layer = nn.ModuleList(
            TransformerLayer(
                n_heads,
                hidden_size,
                inner_size,
                hidden_dropout_prob,
                attn_dropout_prob,
                hidden_act,
                layer_norm_eps,
            )
            for _ in range(n_layers)
        )

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor, output_all_encoded_layers: bool = True
    ) -> list[Tensor]:
        every_layer = []
        for layer in self.layer:
            hidden_states = layer(hidden_states, attention_mask)
            every_layer.append(hidden_states)
        return every_layer if output_all_encoded_layers else every_layer[-1:]


def xavier_normal_initialization(module: nn.Module) -> None:
    """Xavier's normal values for tables and linear layers, zeros for biases."""
    _begin(module, xavier_normal_)


def xavier_uniform_initialization(module: nn.Module) -> None:
    """Xavier's uniform values for tables and linear layers, zeros for biases."""
    _begin(module, xavier_uniform_)


def _begin(module: nn.Module, initialize: Any) -> None:
    if isinstance(module, nn.Embedding | nn.Linear):
        initialize(module.weight)
    if isinstance(module, nn.Linear) and module.bias is not None:
        torch.nn.init.zeros_(module.bias)

"""SoftmaxCPR: a softmax over all items with states of its own for items that are likely to repeat.

Chang, Agarwal and McCallum, To Copy, or not to Copy; That is a Critical Issue of the Output Softmax
Layer in Neural Sequential Recommenders, WSDM 2024. With e_i the vector of an item and q what is
known of the history at its last place, a logit is

    <W q, e_i>                            of most items
    <W_R q, e_i>                          R: of the reranker_CAN_NUM items with the largest ones
    <W_C q, e_i> + mean of <W_P q, W_S q_j>   C and P: of items of the history, at their places j

q is the state h at a place and, with n_facet_MLP, gelu(W [states of the last layers, at this place
and at those before it]) (Chang and McCallum, ACL 2022). With n_facet above 1 there are so many
softmaxes, which are mixed (Yang et al., ICLR 2018).
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from shoal.models.nn.transformer import HIDDEN
from shoal.models.options import Count

NotPositive = Annotated[int, Field(le=0)]


# How RecBole's keys of these models are read (shoal/models/base.py).
CPR_SWITCHES = {name: name for name in ("context_norm", "use_proj_bias", "post_remove_context")}
CPR_WITHOUT_EFFECT = {
    "loss_type": "the loss is always the cross entropy over all items",
    "n_facet_all": "it is the sum of the other numbers of projections",
}


@dataclass
class CPROptions:
    """Options of models that end in a SoftmaxCPR, which reads them."""

    use_out_emb: bool = False  # items that are recommended have separate vectors
    n_facet: Count = 1  # softmaxes over all items that are mixed
    n_facet_context: int = 1  # softmaxes that treat items of the history apart: 0, 1 or all
    n_facet_reranker: int = 1  # softmaxes that score their largest logits anew: 0, 1 or all
    # how many items are reranked: a number, or several such as 500,100,20, the largest first
    reranker_CAN_NUM: int | str = 100
    n_facet_emb: Literal[0, 2] = 2  # 2: places of the history are compared (P), 0: they are not
    n_facet_hidden: Count = 1  # layers whose states are read
    n_facet_window: NotPositive = -2  # minus how many places before are read
    n_facet_MLP: Literal[0, -1] = -1  # -1: these states are mixed, 0: h alone is read
    # how softmaxes are mixed: alike, by weights that learn, or the largest logits are taken
    weight_mode: Literal["", "dynamic", "static", "max_logits"] = ""
    context_norm: bool = True  # false: the sum over places, not their mean
    # whether logits of the history replace those of all items, or are added to them or to half
    partition_merging_mode: Literal["replace", "add", "half"] = "replace"
    # whether logits of reranked items replace the first ones, or are added to them
    reranker_merging_mode: Literal["replace", "add"] = "replace"
    use_proj_bias: bool = True  # whether projections W have biases
    post_remove_context: bool = False  # items of the history are not recommended

    RANKING: ClassVar[tuple[str, ...]] = ("post_remove_context",)

    def __post_init__(self) -> None:
        for name in ("n_facet_context", "n_facet_reranker"):
            if getattr(self, name) not in (0, 1, self.n_facet):
                raise ValueError(f"model.{name} is 0, 1 or model.n_facet ({self.n_facet})")


class SoftmaxCPR(nn.Module):
    """States of all places -> ln P of every item: [b, num_items]."""

    def __init__(self, options: Any, width: int, layers: int):
        """layers: how many layers' states are read."""
        super().__init__()
        self.options = options
        self.sizes = [int(size) for size in str(options.reranker_CAN_NUM).split(",")]
        num_states = layers * (1 - options.n_facet_window)
        self.mix = nn.Linear(width * num_states, width) if options.n_facet_MLP else None
        input_width = width if self.mix is None else 2 * width

        def projections(number: int) -> nn.ModuleList:
            layers = (
                nn.Linear(input_width, width, bias=options.use_proj_bias) for _ in range(number)
            )
            return nn.ModuleList(layers)

        self.every = projections(options.n_facet)
        self.rerank = projections(options.n_facet_reranker * len(self.sizes))
        self.context = projections(options.n_facet_context)
        self.places = projections(options.n_facet_emb)
        self.weights: nn.Module | nn.Parameter | None = None
        if options.weight_mode == "dynamic":
            self.weights = nn.Linear(input_width, options.n_facet)
        elif options.weight_mode == "static":
            self.weights = nn.Parameter(torch.ones(options.n_facet))

    def forward(self, states: list[Tensor], history: Tensor, items: Tensor) -> Tensor:
        """states: of the last layers [b, l, d], the last one first; items [num_items, d]."""
        inputs = self._read(states)  # [b, l, d or 2 d]
        last = ((history > 0).sum(1) - 1).clamp(min=0)
        query = inputs[torch.arange(last.shape[0], device=last.device), last]
        empty = query.new_zeros(query.shape[0], items.shape[0])
        times = empty.scatter_add(1, history, torch.ones_like(history, dtype=empty.dtype))
        compared = empty
        if len(self.places):
            ahead, back = self.places
            alike = (back(inputs) @ ahead(query).unsqueeze(2)).squeeze(2)  # [b, l]
            compared = empty.scatter_add(1, history, alike)
            if self.options.context_norm:
                compared = compared / times.clamp(min=1.0)
        padding = torch.arange(len(items), device=items.device) == 0
        facets = []
        for number, project in enumerate(self.every):
            logits = (project(query) @ items.T).masked_fill(padding, HIDDEN)
            if number < self.options.n_facet_reranker:
                logits = self._reranked(logits, query, items, number)
            if number < self.options.n_facet_context:
                own = self.context[number](query) @ items.T + compared
                share = {"replace": 0.0, "add": 1.0, "half": 0.5}
                own = own + share[self.options.partition_merging_mode] * logits
                logits = torch.where(times > 0, own, logits)
            facets.append(logits.masked_fill(padding, HIDDEN))
        mixed = self._mixed(torch.stack(facets, 2), query)
        if self.options.post_remove_context and not self.training:
            return mixed.masked_fill(times > 0, HIDDEN)
        return mixed

    def _read(self, states: list[Tensor]) -> Tensor:
        """What is known at places: their states and, mixed, those of layers and places before."""
        if self.mix is None:
            return states[0]
        length = states[0].shape[1]
        shifts = range(1 - self.options.n_facet_window)
        stacked = [F.pad(state, (0, 0, k, 0))[:, :length] for state in states for k in shifts]
        return torch.cat([states[0], F.gelu(self.mix(torch.cat(stacked, 2)))], 2)

    def _reranked(self, logits: Tensor, query: Tensor, items: Tensor, facet: int) -> Tensor:
        """Logits whose largest are computed anew, for fewer and fewer items."""
        for number, size in enumerate(self.sizes):
            best = logits.topk(min(size, len(items)), 1).indices
            chosen = torch.zeros_like(logits).scatter(1, best, 1.0) > 0
            anew = self.rerank[facet * len(self.sizes) + number](query) @ items.T
            if self.options.reranker_merging_mode == "add":
                anew = anew + logits
            logits = torch.where(chosen, anew, logits)
        return logits

    def _mixed(self, logits: Tensor, query: Tensor) -> Tensor:
        """ln of the mean of softmaxes, maybe weighed: [b, num_items, n] -> [b, num_items]."""
        if self.options.weight_mode == "max_logits":
            return logits.amax(2).log_softmax(1)
        shares = query.new_zeros(1, logits.shape[2])
        if isinstance(self.weights, nn.Module):
            shares = self.weights(query)
        elif self.weights is not None:
            shares = self.weights.unsqueeze(0)
        return (logits.log_softmax(1) + shares.log_softmax(1).unsqueeze(1)).logsumexp(2)

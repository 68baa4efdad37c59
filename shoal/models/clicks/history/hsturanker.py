"""HSTURanker: HSTU as a click model. Actions Speak Louder than Words, Zhai et al., ICML 2024; 4.1.

A user is one sequence; candidates stand behind it:

    [ features of the user | item 1 + action 1, item 2 + action 2, ... | candidates ]

An action is what the labels were: the sum of a vector for each label's value. With `actions:
interleaved`, the paper's form, items and actions have places of their own: item 1, action 1, item
2, action 2, ... A candidate sees the sequence and itself, no other candidate, so that any number of
them is scored at once, each as if it were alone. Layers are those of HSTU
(shoal/models/sequential/hstu.py); the time bias looks at how long before a place's own time another
was. What a candidate became, and the features of its item and of the interaction, go through a
perceptron:

    logits = tower of [state of the candidate, vectors of its other features, numbers]
"""

from dataclasses import field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.joined import candidates
from shoal.models.base import Batch, Facts, Init
from shoal.models.clicks.history.user_sequence import UserSequence
from shoal.models.nn.dropout import Dropout, recomputed
from shoal.models.nn.hstu import HSTULayer, HSTUOptions, buckets_of, places_between, without_pads
from shoal.models.nn.mlp import Tower

PAIRS = 1 << 23  # of places that see each other, of samples that are predicted together


class HSTURanker(UserSequence):
    """Reads what the user did before, with its actions and times; a logit for each label.

    A history is that of `DIN`, but of all interactions, not of positive ones alone.
    """

    several_labels = True
    cuda_graph_safe = False
    recompute = False  # whether backward computes layers again instead of keeping what they made

    class Options(HSTUOptions, UserSequence.Options):
        # added: an item and its action share a position; interleaved: each has its own, item first
        actions: Literal["added", "interleaved"] = "added"
        # first values lie within +- this; near 0 interleaved actions do not find their items
        initial_range: float = 0.5
        layers: list[int] = field(default_factory=lambda: [128])
        dropout: float = 0.0

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        width = options.hidden_size
        init = Init("uniform", options.initial_range)
        self.make_places(width, init, interleaved=options.actions == "interleaved")
        self.dropout = Dropout(options.hidden_dropout_prob)
        if self.time is None:
            options = replace(options, use_times=False)
        layers = [HSTULayer(options, self.places + 1) for _ in range(options.n_layers)]
        self.layers = nn.ModuleList(layers)
        self.widest = max((layer.widest for layer in layers), default=0)  # head
        read = width + sum(one.dim or width for one in self.others)
        read += sum(one.width for one in self.numbers)
        outputs = max(1, len(facts.labels))
        self.deep = Tower([read, *options.layers], options.dropout, outputs)

    def logits(self, batch: Batch) -> Tensor:
        if self.training or torch.compiler.is_exporting():
            return self.ranked(batch, batch, 1)
        step = max(1, PAIRS // self.places**2)
        parts = [batch.rows(k, min(k + step, batch.size)) for k in range(0, batch.size, step)]
        return torch.cat([self.ranked(part, part, 1) for part in parts or [batch]])

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        table, users = self.facts.table, batch.tensor(self.facts.user_field)
        assert table is not None, "build lets click logs rank nothing"
        every = items.expand(len(users), -1) if items.dim() == 1 else items
        no_items = torch.zeros_like(users)
        user_batch = candidates(table, users, no_items, False, users.device)
        pair_users, pair_items = users[:, None].expand_as(every).reshape(-1), every.reshape(-1)
        candidate_batch = candidates(
            table, pair_users, pair_items, False, users.device, histories=False
        )
        logits = self.ranked(user_batch, candidate_batch, every.shape[1])
        return (logits if logits.dim() == 1 else logits[:, 0]).view(every.shape)

    def ranked(self, user_batch: Batch, candidate_batch: Batch, count: int) -> Tensor:
        """Logits of `count` candidates for each of b users: [b * count], or [b * count, labels].

        user_batch: b samples with the users' features and histories; candidate_batch: b * count
        samples with what is known of the candidates.
        """
        rows = self.rows(self.embed, candidate_batch, self.others)
        x = rows[self.item.name].reshape(-1, count, self.options.hidden_size)
        state = self.states(user_batch, x).reshape(-1, self.options.hidden_size)
        state = F.layer_norm(state, [state.shape[-1]], eps=self.options.layer_norm_eps)
        numbers = [candidate_batch.dense[one.name].reshape(-1, one.width) for one in self.numbers]
        return self.deep(torch.cat([state, *rows.values(), *numbers], 1))

    def states(self, batch: Batch, x: Tensor) -> Tensor:
        """What candidates x [b, c, width] become behind the sequences of b samples."""
        there, sequence = self.there(batch), self.vectors_of_places(batch)
        sequence, x = self.dropout(sequence) * there.unsqueeze(-1), self.dropout(x)
        lengths = (there * (torch.arange(self.places, device=x.device) + 1)).amax(1)
        event_times, request_times = self.times(batch)
        buckets = buckets_of(request_times, event_times)  # [b, 1, l]
        own, sequences = places_between(sequence, there, event_times, event_times, self.widest)
        sequence = without_pads(sequence, sequences)

        def onward(
            layer: HSTULayer, sequence: Tensor, x: Tensor, last: bool
        ) -> tuple[Tensor, Tensor]:
            parts = layer.parts(sequence, sequences)
            x = layer.candidates(x, layer.past(parts, sequences), lengths, buckets)
            # After the last layer nobody looks at the sequence.
            return sequence if last else layer.attended(sequence, parts, own, sequences), x

        layers: list[Any] = list(self.layers)
        for number, layer in enumerate(layers, 1):
            is_last = number == len(layers)
            if self.recompute and self.training:
                sequence, x = recomputed(onward, layer, sequence, x, is_last)
            else:
                sequence, x = onward(layer, sequence, x, is_last)
        return x

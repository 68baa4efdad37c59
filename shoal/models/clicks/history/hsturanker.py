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

from shoal.data.features import action_of, time_of
from shoal.data.joined import candidates
from shoal.models.base import Batch, ClickModel, Embeddings, Facts, Feature, Init, Jagged, Table
from shoal.models.clicks.history.base import LENGTH, history_pairs
from shoal.models.nn.dropout import Dropout, recomputed
from shoal.models.nn.hstu import HSTULayer, HSTUOptions, buckets_of, places_between, without_pads
from shoal.models.nn.mlp import Tower

PAIRS = 1 << 23  # of places that see each other, of samples that are predicted together


class HSTURanker(ClickModel):
    """Reads what the user did before, with its actions and times; a logit for each label.

    A history is that of `DIN`, but of all interactions, not of positive ones alone.
    """

    reads_history = True
    reads_actions = True
    several_labels = True
    cuda_graph_safe = False
    recompute = False  # whether backward computes layers again instead of keeping what they made

    class Options(HSTUOptions, ClickModel.Options):
        # added: an item and its action share a position; interleaved: each has its own, item first
        actions: Literal["added", "interleaved"] = "added"
        # first values lie within +- this; near 0 interleaved actions do not find their items
        initial_range: float = 0.5
        layers: list[int] = field(default_factory=lambda: [128])
        dropout: float = 0.0

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.history, self.item = _only(type(self).__name__, facts, options.hidden_size)
        self.length = self.history.length or LENGTH
        features = {one.name: one for one in facts.sparse}
        of_labels = [action_of(self.history.name, one.name) for one in facts.labels]
        self.acted = tuple(features[name] for name in of_labels if name in features)
        time = time_of(self.history.name)
        self.time = time if time in features and options.use_times else None
        sequence = {self.history.name, time, *(one.name for one in self.acted)}
        others = tuple(one for one in facts.sparse if one.name not in sequence)
        self.front = tuple(one for one in others if one.side == "user")
        self.others = tuple(one for one in others if one.side != "user")
        self.embed = self._embeddings(options.hidden_size)
        width = options.hidden_size
        self.contexts = nn.ModuleList(nn.Linear(one.dim or width, width) for one in self.front)
        self.numbers = [one for one in facts.numeric if one.side != "user"]
        of_user = sum(one.width for one in facts.numeric) - sum(one.width for one in self.numbers)
        if of_user:  # numbers of the user are one more place in front
            self.contexts.append(nn.Linear(of_user, width))
        self.each = 2 if self.acted and options.actions == "interleaved" else 1
        self.places = len(self.contexts) + self.each * self.length
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

    def _embeddings(self, width: int) -> Embeddings:
        """A table for every feature but the times; of each label in a history one too."""
        init = Init("uniform", self.options.initial_range)
        features = (self.history, *self.acted, *self.front, *self.others)
        return Embeddings(
            {
                feature.name: Table(
                    feature.table, feature.dim or width, feature.rows, init, padding=0
                )
                for feature in features
            }
        )

    # ---- answers --------------------------------------------------------------------------------

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
        there, places = self._there(batch), [*self._contexts(batch), *self._sequence(batch)]
        sequence = torch.cat(places, 1)
        sequence, x = self.dropout(sequence) * there.unsqueeze(-1), self.dropout(x)
        lengths = (there * (torch.arange(self.places, device=x.device) + 1)).amax(1)
        event_times, request_times = self._times(batch)
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

    # ---- what stands where ----------------------------------------------------------------------

    def _contexts(self, batch: Batch) -> list[Tensor]:
        """A place for each feature of the user, and one for numbers: [b, 1, width] each."""
        read = list(self.rows(self.embed, batch, self.front).values())
        of_user = [one for one in self.facts.numeric if one.side == "user"]
        if of_user:
            read.append(torch.cat([batch.dense[f.name].reshape(-1, f.width) for f in of_user], 1))
        return [layer(one).unsqueeze(1) for layer, one in zip(self.contexts, read)]

    def _sequence(self, batch: Batch) -> list[Tensor]:
        """Items and actions: [b, each * length, width]."""
        items = self.embed.listed(self.history.name, batch, self.length)
        if not self.acted:
            return [items]
        actions = sum(self.embed.listed(one.name, batch, self.length) for one in self.acted)
        assert isinstance(actions, Tensor)
        if self.each == 1:
            return [items + actions]
        return [torch.stack([items, actions], 2).flatten(1, 2)]

    def _there(self, batch: Batch) -> Tensor:
        """Which places hold something: bool [b, places]."""
        items = _padded(batch, self.history.name, self.length) != 0
        front = torch.ones_like(items[:, :1]).expand(-1, len(self.contexts))
        return torch.cat([front, items.repeat_interleave(self.each, 1)], 1)

    def _times(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """When each place was [b, places], features of the user as early as the first item; and
        when candidates are asked for [b, 1]."""
        if self.time is None:
            return None, None
        times = _padded(batch, self.time, self.length + 1)
        front = times[:, :1].expand(-1, len(self.contexts))
        events = times[:, : self.length].repeat_interleave(self.each, 1)
        return torch.cat([front, events], 1), times.amax(1, keepdim=True)


def _padded(batch: Batch, name: str, length: int) -> Tensor:
    """The last `length` ids of every list, left-aligned, 0 pads: [b, length]."""
    ids = batch.ids[name]
    if not isinstance(ids, Jagged):  # lists of one
        ids = Jagged(ids, torch.arange(ids.shape[0] + 1, device=ids.device))
    return ids.padded(length)


def _only(model: str, facts: Facts, width: int) -> tuple[Feature, Feature]:
    """The history and the feature of the candidate."""
    (history, item), *more = history_pairs(model, facts)
    if more:
        names = ", ".join(one.name for one, _ in ((history, item), *more))
        raise ValueError(f"{model} reads one history, and data.features has {names}; keep one")
    if history.dim not in (None, width):
        raise ValueError(
            f"{model} reads items as they are, so their vectors are model.hidden_size wide: set "
            f"model.hidden_size={history.dim}, or leave out data.features.{history.name}.dim"
        )
    return history, item

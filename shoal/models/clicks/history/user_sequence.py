"""UserSequence: click models that read a user as one sequence of places, candidates behind it.

    [ features of the user | item 1 + action 1, item 2 + action 2, ... ]

An action is the sum of a vector for each label's value. Interleaved, items and actions have places
of their own: item 1, action 1, item 2, action 2, ...
"""

from typing import Any

import torch
from torch import Tensor, nn

from shoal.data.features import action_of, time_of
from shoal.models.base import Batch, ClickModel, Embeddings, Facts, Init, Table
from shoal.models.clicks.history.base import LENGTH, only_history, padded_ids


class UserSequence(ClickModel):
    """Knows what stands at each place of a user's sequence, and when it happened.

    `front` are features of the user, `others` those of the candidate and of the interaction.
    """

    reads_history = True
    reads_actions = True

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.history, self.item = only_history(type(self).__name__, facts, options.hidden_size)
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
        self.numbers = [one for one in facts.numeric if one.side != "user"]

    def make_places(self, width: int, init: Init, interleaved: bool) -> None:
        """The tables and layers that places are made of, and how many there are."""
        self.embed = self._embeddings(width, init)
        self.contexts = nn.ModuleList(nn.Linear(one.dim or width, width) for one in self.front)
        of_user = sum(one.width for one in self.facts.numeric)
        of_user -= sum(one.width for one in self.numbers)
        if of_user:  # numbers of the user are one more place in front
            self.contexts.append(nn.Linear(of_user, width))
        self.each = 2 if self.acted and interleaved else 1
        self.places = len(self.contexts) + self.each * self.length

    def _embeddings(self, width: int, init: Init) -> Embeddings:
        """A table for every feature but the times; of each label in a history one too."""
        features = (self.history, *self.acted, *self.front, *self.others)
        return Embeddings(
            {
                feature.name: Table(
                    feature.table, feature.dim or width, feature.rows, init, padding=0
                )
                for feature in features
            }
        )

    def vectors_of_places(self, batch: Batch) -> Tensor:
        """What stands at each place: [b, places, width]."""
        return torch.cat([*self._contexts(batch), *self._sequence(batch)], 1)

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

    def there(self, batch: Batch) -> Tensor:
        """Which places hold something: bool [b, places]."""
        items = padded_ids(batch, self.history.name, self.length) != 0
        front = torch.ones_like(items[:, :1]).expand(-1, len(self.contexts))
        return torch.cat([front, items.repeat_interleave(self.each, 1)], 1)

    def times(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """When each place was [b, places], features of the user as early as the first item; and
        when candidates are asked for [b, 1]."""
        if self.time is None:
            return None, None
        times = padded_ids(batch, self.time, self.length + 1)
        front = times[:, :1].expand(-1, len(self.contexts))
        events = times[:, : self.length].repeat_interleave(self.each, 1)
        return torch.cat([front, events], 1), times.amax(1, keepdim=True)

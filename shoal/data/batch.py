"""Batch and Jagged: what a model is given. Ids are explicit, so any placement can prefetch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Jagged:
    """A list of id lists, flattened.

    [[3, 5], [], [7]]   ->   values  3 5 7
                             offsets 0 2 2 3
    """

    values: Tensor  # [total], int64
    offsets: Tensor  # [size + 1], int64, starts at 0 and ends at total
    weights: Tensor | None = None  # [total], float32; None means 1 each

    @classmethod
    def from_lists(cls, lists: list[list[int]]) -> Jagged:
        """Build from plain lists (for tests and small inputs)."""
        lengths = torch.tensor([0] + [len(one) for one in lists])
        flat = [value for one in lists for value in one]
        return cls(torch.tensor(flat, dtype=torch.int64), lengths.cumsum(0))

    @classmethod
    def cat(cls, parts: Sequence[Jagged]) -> Jagged:
        """All lists, one part after the other."""
        lengths = torch.cat([one.lengths for one in parts])
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        weights = None
        if any(one.weights is not None for one in parts):
            part_weights = [
                torch.ones(len(p.values)) if p.weights is None else p.weights for p in parts
            ]
            weights = torch.cat(part_weights)
        return cls(torch.cat([one.values for one in parts]), offsets, weights)

    @classmethod
    def of_single(cls, ids: Tensor) -> Jagged:
        """A list of one for each id."""
        return cls(ids.reshape(-1), torch.arange(ids.numel() + 1))

    @property
    def lengths(self) -> Tensor:
        return self.offsets[1:] - self.offsets[:-1]

    def lists(self, start: int, stop: int) -> Jagged:
        """Lists start..stop-1; values and weights as views."""
        offsets = self.offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        weights = None if self.weights is None else self.weights[first:last]
        return Jagged(self.values[first:last], offsets - first, weights)

    def take(self, lists: Tensor) -> Jagged:
        """The given lists, in that order."""
        lengths = self.lengths[lists]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        places = (self.offsets[lists] - offsets[:-1]).repeat_interleave(lengths)
        places = places + torch.arange(len(places), device=places.device)
        weights = None if self.weights is None else self.weights[places]
        return Jagged(self.values[places], offsets, weights)

    def places(self, length: int) -> Tensor:
        """Where the last `length` ids of every list are, left-aligned, -1 pads: [size, length]."""
        lengths = self.lengths.clamp(max=length)
        column = torch.arange(length, device=self.values.device)
        places = (self.offsets[1:] - lengths)[:, None] + column
        return torch.where(column < lengths[:, None], places, -1)

    def padded(self, length: int) -> Tensor:
        """The last `length` ids of every list, left-aligned, 0 pads: [size, length]."""
        places = self.places(length)
        if self.values.numel() == 0:
            return torch.zeros_like(places)
        return torch.where(places >= 0, self.values[places.clamp(min=0)], 0)

    def to(self, device: torch.device | str) -> Jagged:
        weights = None if self.weights is None else self.weights.to(device, non_blocking=True)
        return Jagged(
            self.values.to(device, non_blocking=True),
            self.offsets.to(device, non_blocking=True),
            weights,
        )

    def __len__(self) -> int:
        return self.offsets.numel() - 1


@dataclass(frozen=True)
class Batch:
    """One rank's slice of a global batch of samples.

    ids     field -> int64 tensor of any shape that begins with [size] (0 is padding), or a Jagged
            of as many lists for each sample, sample after sample
    dense   field -> float32 tensor [size] or [size, width]
    labels  float32 [size], or [size, labels] where there are several; None where the samples are
            plain positives
    weights float32 [size]: how much each sample counts in the loss; None: 1 each
    first   number of the first sample in the global batch; the others come after it
    """

    size: int
    ids: dict[str, Tensor | Jagged]
    dense: dict[str, Tensor] = field(default_factory=dict)
    labels: Tensor | None = None
    first: int = 0
    weights: Tensor | None = None

    def tensor(self, field: str) -> Tensor:
        """Ids of a field that is no list of lists."""
        ids = self.ids.get(field)
        if ids is None:
            remedy = "; set train.negatives.num to 1" if field == "neg_item" else ""
            raise ValueError(f"the batch has no ids {field}, but {', '.join(self.ids)}{remedy}")
        assert isinstance(ids, Tensor), f"{field} is jagged"
        return ids

    def flat_ids(self, field: str) -> Tensor:
        """All ids of a field in one tensor: that of the field itself, or the values of its lists.

        It is the same object at every call: a lookup of ids that were sent ahead is recognised by
        it.
        """
        ids = self.ids[field]
        return ids.values if isinstance(ids, Jagged) else ids

    def _tensors(self) -> Iterator[Tensor]:
        """All tensors of the batch."""
        for ids in self.ids.values():
            if isinstance(ids, Jagged):
                yield from (x for x in (ids.values, ids.offsets, ids.weights) if x is not None)
            else:
                yield ids
        yield from self.dense.values()
        yield from (x for x in (self.labels, self.weights) if x is not None)

    def rows(self, start: int, stop: int, first: int | None = None) -> Batch:
        """Samples start..stop-1, as views; first: its number of the first one; None: as now."""
        ids: dict[str, Tensor | Jagged] = {}
        for name, values in self.ids.items():
            if isinstance(values, Jagged):
                lists_per_sample = len(values) // max(1, self.size)  # lists of a sample
                ids[name] = values.lists(start * lists_per_sample, stop * lists_per_sample)
            else:
                ids[name] = values[start:stop]
        return Batch(
            stop - start,
            ids,
            {name: x[start:stop] for name, x in self.dense.items()},
            None if self.labels is None else self.labels[start:stop],
            self.first + start if first is None else first,
            None if self.weights is None else self.weights[start:stop],
        )

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device; the batch itself if it is there already."""
        device = torch.device(device)
        if all(tensor.device == device for tensor in self._tensors()):
            return self
        go = device.type == "cuda"  # the other way the host must wait
        return Batch(
            self.size,
            {
                name: ids.to(device) if isinstance(ids, Jagged) else ids.to(device, non_blocking=go)
                for name, ids in self.ids.items()
            },
            {name: x.to(device, non_blocking=True) for name, x in self.dense.items()},
            None if self.labels is None else self.labels.to(device, non_blocking=True),
            self.first,
            None if self.weights is None else self.weights.to(device, non_blocking=True),
        )

"""Knowledge: the files .kg and .link of a data set as triples that a model can read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.data.dataset import Column, Dataset


@dataclass(frozen=True)
class Knowledge:
    """A graph of what is known of items: triples (head, relation, tail) of entities, int64 [n].

    item_entity [num_items] is the entity that an item is, 0 where it is none. Entities and
    relations are numbered from 1; their counts include the padding 0.
    """

    heads: Tensor
    relations: Tensor
    tails: Tensor
    num_entities: int
    num_relations: int
    item_entity: Tensor


def knowledge_of(dataset: Dataset) -> Knowledge | None:
    """The knowledge graph of a data set; None where no .kg file is loaded."""
    if "kg" not in dataset.extra:
        return None
    triples, link = dataset.extra["kg"], dataset.extra.get("link", {})
    for name in ("head_id", "relation_id", "tail_id"):
        if name not in triples:
            raise ValueError(
                f"the .kg file of {dataset.name!r} has no column {name!r}; it has "
                f"{', '.join(triples)}"
            )
    item_entity = np.zeros(dataset.num_items, np.int64)
    if "entity_id" in link and dataset.item_field in link:
        item_entity[np.asarray(link[dataset.item_field])] = np.asarray(link["entity_id"])
        item_entity[0] = 0
    return Knowledge(
        _tensor(triples["head_id"]),
        _tensor(triples["relation_id"]),
        _tensor(triples["tail_id"]),
        len(dataset.vocab["head_id"]),
        len(dataset.vocab["relation_id"]),
        torch.from_numpy(item_entity),
    )


def _tensor(column: Column) -> Tensor:
    return torch.from_numpy(np.array(column))

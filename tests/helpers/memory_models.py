"""Small models over a plain matrix of rows: what tests of single models build and train."""

from __future__ import annotations

import torch
from services import attach, taken
from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.store import Every, Ids
from shoal.embedding.table import Table
from shoal.models import find
from shoal.models.base import Facts, Model


class MemoryStore:
    """The least that a model needs of a store: a matrix of rows and Adagrad."""

    far = False

    def __init__(self, table: Table):
        assert table.rows is not None
        self.table = table
        seed = sum(map(ord, table.name))
        self.weight = torch.randn(table.rows, table.dim, generator=torch.manual_seed(seed)) * 0.3
        self.squares = torch.zeros(table.rows, table.dim)
        if table.padding is not None:
            self.weight[table.padding] = 0

    def lend(self) -> None:
        """They are not."""

    def pull(self, ids: Ids) -> Tensor:
        return self.weight.clone() if isinstance(ids, Every) else self.weight[ids]

    @staticmethod
    def pull_many(stores: list[MemoryStore], ids: list[Ids], learn: bool = False) -> list[Tensor]:
        return [store.pull(some) for store, some in zip(stores, ids)]

    def push(self, ids: Tensor, grads: Tensor, lr: float) -> None:
        total = torch.zeros_like(self.weight).index_add_(0, ids, grads)
        if self.table.padding is not None:
            total[self.table.padding] = 0
        self.squares += total.square()
        self.weight -= lr * total / (self.squares.sqrt() + 1e-10)


# 6 users and 8 items, with padding 7 and 9; users 1-3 take items 1-4, users 4-6 take items 5-8
USERS = torch.tensor([1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6])
ITEMS = torch.tensor([1, 2, 3, 2, 3, 4, 3, 4, 1, 5, 6, 7, 6, 7, 8, 7, 8, 5])
FACTS = Facts(7, 9, "user_id", "item_id", 6, USERS, ITEMS)
SMALL = {
    "Pop": {},
    "BPR": {"embedding_size": 8},
    "NeuMF": {
        "mf_embedding_size": 4,
        "mlp_embedding_size": 6,
        "mlp_hidden_size": [10, 5],
        "dropout_prob": 0.0,
    },
    "LightGCN": {"embedding_size": 8, "reg_weight": 0.05},
    "SASRec": {"hidden_size": 16, "inner_size": 32},
}


def build(name: str, facts: Facts = FACTS, **options) -> Model:
    """A small model with stores attached and no dropout."""
    name, _, loss_type = name.partition("-")
    kind = find(name)
    options = {**SMALL[name], **options}
    if name == "SASRec":
        options = {"hidden_dropout_prob": 0.0, "attn_dropout_prob": 0.0} | options
        options["loss_type"] = loss_type or "CE"
    torch.manual_seed(11)
    model = kind(kind.Options(**options), facts)
    for module in model.modules():
        if isinstance(module, Embeddings):
            attach(module, MemoryStore)
    return model


def stores(model: Model) -> dict[str, MemoryStore]:
    found: dict[str, MemoryStore] = {}
    for module in model.modules():
        if isinstance(module, Embeddings):
            found.update(module.service.stores)
    return found


def row_gradients(model: Model) -> dict[str, Tensor]:
    """Table -> gradient of the whole table, gathered from what backward left."""
    found = {}
    for module in model.modules():
        if isinstance(module, Embeddings):
            for name, (ids, grads) in taken(module.service).items():
                weight = module.service.stores[name].weight
                found[name] = torch.zeros_like(weight).index_add(0, ids, grads)
    return found


def training_batch(model: Model, k: int = 2) -> Batch:
    random = torch.Generator().manual_seed(5)
    if model.kind == "general":
        negatives = torch.randint(1, 9, (18, k), generator=random)
        return Batch(18, {"user_id": USERS, "item_id": ITEMS, "neg_item": negatives})
    # 11 windows of 0 to 6 items, so that some rows are all padding
    lengths = torch.tensor([6, 5, 4, 3, 2, 1, 6, 0, 3, 5, 2]).unsqueeze(1)
    history = torch.randint(1, 9, (11, 6), generator=random)
    target = torch.randint(1, 9, (11, 6), generator=random)
    negatives = torch.randint(1, 9, (11, 6, k), generator=random)
    pads = torch.arange(6) >= lengths
    users = torch.arange(11) % 6 + 1
    ids = {"user_id": users, "history": history.masked_fill(pads, 0)}
    ids |= {"target": target.masked_fill(pads, 0), "neg_item": negatives}
    return Batch(11, ids)


def part(batch: Batch, start: int, stop: int) -> Batch:
    return Batch(stop - start, {name: x[start:stop] for name, x in batch.ids.items()})


def train(model: Model, batch: Batch, steps: int) -> None:
    dense = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(dense, lr=0.01) if dense else None
    model.train()
    for _ in range(steps):
        output = model(batch)
        (output.loss / output.count).backward()
        for module in model.modules():
            if isinstance(module, Embeddings):
                for name, (ids, grads) in taken(module.service).items():
                    module.service.stores[name].push(ids, grads, 0.3)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

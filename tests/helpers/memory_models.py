"""Small models over a plain matrix of rows: what tests of single models build and train."""

import torch
from services import Weights, attach, taken
from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.models import find
from shoal.models.base import Facts, Model

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
            attach(module, Weights)
    return model


def stores(model: Model) -> dict[str, Weights]:
    found: dict[str, Weights] = {}
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

"""Small click models and the batches they learn from, the same on every rank."""

from typing import Any

import torch

from shoal.data.batch import Batch, Jagged
from shoal.data.reader import one_ahead
from shoal.models import find
from shoal.models.base import Facts, Model
from shoal.training.strategies import Strategy

BATCH, SLOTS, DENSE, ROWS = 61, 5, 3, 300
SMALL = {"dim": 6, "layers": [16, 8], "initial_range": 0.1}
MODELS: dict[str, dict[str, Any]] = {
    "LR": {},
    "FM": {"dim": 6},
    "DNN": SMALL,
    "WideDeep": {**SMALL, "wide_slots": True},
    "DeepFM": SMALL,
    "DCNV2": SMALL,
    "DLRM": {"dim": 6, "bottom_layers": [16], "top_layers": [16]},
}


def make_model(name: str, rows: str = "fixed") -> Model:
    """A small model, `fixed` or with tables that grow; the same weights every time."""
    facts = Facts(num_slots=SLOTS, num_dense=DENSE, rows=ROWS if rows == "fixed" else None)
    torch.manual_seed(5)
    found = find(name)
    return found(found.Options(**MODELS[name]), facts)


def global_batch(step: int, kind: str, rows: str) -> Batch:
    """The same on every rank; some lists are empty."""
    random = torch.Generator().manual_seed(100 + step)
    size = BATCH if step % 7 else 1  # one sample: the other ranks have none
    dense = torch.randn(size, DENSE, generator=random)
    labels = torch.randint(0, 2, (size,), generator=random).float()

    def draw(*shape: int) -> torch.Tensor:
        ids = torch.randint(0, ROWS, shape, generator=random)
        return ids * 0x123456789ABCD - 7 if rows == "grows" else ids

    ids: torch.Tensor | Jagged = draw(size, SLOTS)
    if kind != "one":
        lengths = torch.randint(0, 4, (size * SLOTS,), generator=random)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        values = draw(int(offsets[-1]))
        weights = torch.rand(len(values), generator=random) if kind == "weighted" else None
        ids = Jagged(values, offsets, weights)
    return Batch(size, {"slots": ids}, {"dense": dense}, labels)


def losses(strategy: Strategy, steps: int, kind: str = "one", rows: str = "fixed") -> list[float]:
    """Mean losses of some global batches, each rank on its slice, ids sent one batch ahead."""
    return walk(strategy, [global_batch(step, kind, rows) for step in range(steps)])


def walk(strategy: Strategy, batches: list[Batch]) -> list[float]:
    """The same of given global batches."""
    slices = [batch.rows(*strategy.world.slice(batch.size)) for batch in batches]
    found = []
    for batch, following in one_ahead(slices):
        if following is not None:
            strategy.prefetch(following)
        found.append(float(strategy.train_step(batch)))
    return found

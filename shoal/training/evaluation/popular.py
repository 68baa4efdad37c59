"""What the most popular items for everyone are worth: the line that a model has to beat."""

import torch
from torch import Tensor

from shoal.data.batch import Batch
from shoal.models.base import Facts, Retrieval
from shoal.training.metrics import higher_is_better

MEND = (
    "train longer (train.epochs), in smaller batches (train.batch_size), search its settings "
    "(shoal tune), or take EASE"
)


class PopularVectors(Retrieval):
    """The scores of Pop as dot products of width one, which an evaluation ranks fastest."""

    trainable = False
    counts: Tensor

    def __init__(self, counts: Tensor):
        """counts: training interactions of each item [n]."""
        super().__init__(Retrieval.Options(), Facts(num_items=len(counts)))
        self.register_buffer("counts", counts.float())

    def encode_query(self, batch: Batch) -> Tensor:
        return torch.ones(batch.size, 1, device=self.counts.device)

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.counts[ids].unsqueeze(-1)


def popular_line(base: dict[str, float], test: dict[str, float], metric: str, digits: int) -> str:
    """A line for the log; metric: the one by which the best epoch was chosen."""
    line = f"the most popular items for everyone: {metric} {base[metric]:.{digits}f}"
    sign = 1.0 if higher_is_better(metric) else -1.0
    if sign * test[metric] >= sign * base[metric]:
        return line
    return f"{line}. The model has {test[metric]:.{digits}f}, which is worse: {MEND}"

"""Popular: the same items for everyone, those that most took. The line that a model has to beat."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.training.metrics import higher_is_better

MEND = "train longer (train.epochs), search its settings (shoal tune), or take EASE"


class Popular(nn.Module):
    """Scores as a model does: an item's is how often it was taken, counts [num_items]."""

    counts: Tensor

    def __init__(self, counts: Tensor):
        super().__init__()
        self.register_buffer("counts", counts.float())

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        """The same for every user: items [n] or [b, n] -> [b, n]."""
        return self.counts[items].expand(batch.size, items.shape[-1]).contiguous()

    def scorer(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        """`score`, for block after block."""
        return partial(self.score, batch)


def popular_line(found: dict[str, float], test: dict[str, float], metric: str, digits: int) -> str:
    """A line for the log; metric: the one by which the best epoch was chosen."""
    line = f"the most popular items for everyone: {metric} {found[metric]:.{digits}f}"
    sign = 1.0 if higher_is_better(metric) else -1.0
    if sign * test[metric] >= sign * found[metric]:
        return line
    return f"{line}. The model has {test[metric]:.{digits}f}, which is worse: {MEND}"

"""Distribution: models that compute how probable every item is next, not by one dot product."""

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from shoal.models.base import Batch, Model, Output
from shoal.models.sequential.base import SEQUENCE_DEFAULTS

CE_ALONE = "the loss is always the cross entropy over all items"


class Distribution(Model):
    """A sequential model of ln P(item | history); its loss is -ln P of the next item.

    Every step reads the item table whole and holds [b, num_items] numbers: a process of a sharded
    run gathers the table, and rows are updated where they live.
    """

    kind = "sequential"
    samples = "prefixes"

    class Options(Model.Options):
        DEFAULTS: ClassVar[dict[str, Any]] = SEQUENCE_DEFAULTS

    def log_probabilities(self, batch: Batch) -> Tensor:
        """ln P of every item, padding included, where it means nothing: [b, num_items]."""
        raise NotImplementedError  # every such model writes its own

    def forward(self, batch: Batch) -> Output:
        target = batch.tensor("target")
        wanted = self.log_probabilities(batch).gather(1, target.unsqueeze(1))
        return Output(-wanted.sum(), len(target))

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        return self.scorer(batch)(items)

    def scorer(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        """`score` of blocks of items: what all of them share is computed once."""
        scores = self.log_probabilities(batch)

        def score(items: Tensor) -> Tensor:
            return scores[:, items] if items.dim() == 1 else scores.gather(1, items)

        return score

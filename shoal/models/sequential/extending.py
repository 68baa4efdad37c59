"""Extending: models whose state of a history is kept between requests and extended by new items."""

from torch import Tensor

from shoal.models.base import Batch
from shoal.models.sequential.base import NextItem


class Extending(NextItem):
    """A NextItem model where a place sees itself and those before it, and is never changed later.

    What layers made of the first places of a history (keys and values, `state_width` numbers for
    each place) is then true of every longer one, and a new item costs its own place alone.
    """

    state_width: int  # 0: a model of this family that keeps nothing

    def extended(self, batch: Batch) -> Tensor:
        """States of m new places of a history, behind n that are kept: [m, state_width + d].

        The batch has ids `new` [m], times `taken` and `asked` [m] (when an item was taken, and when
        the one behind it was, or is asked for) and `kept_taken` [n]; dense `kept` [n, state_width].
        Each row is what is to be kept of a place, and behind it what `encode_query` has there.
        """
        raise NotImplementedError  # every such model writes its own

"""GRU4Rec: Session-based Recommendations with Recurrent Neural Networks, Hidasi et al., ICLR 2016.

A recurrent network reads the items in order, and its state is asked for the next one:

    h_t = GRU(x_t, h_t-1)        state = W h_t        score(item) = <state, item>
"""

from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.recurrent import GRU
from shoal.models.sequential.base import NextItem


class GRU4Rec(NextItem):
    """Gated recurrent units over the history, trained at every position."""

    class Options(NextItem.Options):
        embedding_size: int = 64
        hidden_size: int = 128
        num_layers: int = 1
        dropout_prob: float = 0.3

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.make_items(options.embedding_size)
        self.dropout = Dropout(options.dropout_prob)
        self.gru = GRU(options.embedding_size, options.hidden_size, options.num_layers)
        self.dense = nn.Linear(options.hidden_size, options.embedding_size)

    def states(self, batch: Batch) -> Tensor:
        return self.dense(self.gru(self.dropout(self.embed.field("history", batch))))

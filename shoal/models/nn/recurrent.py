"""Gated recurrent units over padded sequences."""

from torch import Tensor, nn


class GRU(nn.Module):
    """States of every position: [b, l, width] -> [b, l, hidden]; pads come after the items."""

    def __init__(self, width: int, hidden: int, layers: int = 1):
        super().__init__()
        self.hidden = hidden
        self.gru = nn.GRU(width, hidden, layers, bias=False, batch_first=True)
        for weight in self.gru.parameters():
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 0:  # torch's own refuses a batch without samples
            nothing = sum(weight.sum() * 0.0 for weight in self.gru.parameters())
            return x.new_zeros(0, x.shape[1], self.hidden) + x.sum() + nothing
        return self.gru(x)[0]

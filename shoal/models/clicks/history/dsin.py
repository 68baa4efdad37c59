"""DSIN: Deep Session Interest Network for Click-Through Rate Prediction, Feng et al., IJCAI 2019.

A history is sessions. Attention within each makes its interest I_s, a recurrent network in both
directions sets it among the others, H_s, and the candidate c weighs both:

    interest = [sum of softmax(<I_s, W c>) I_s, sum of softmax(<H_s, W' c>) H_s]
"""

import torch
from torch import Tensor, nn

from shoal.models.clicks.history.base import Bilinear, HistoryModel, HistoryReader
from shoal.models.nn.transformer import Transformer


class Sessions(HistoryReader):
    """[b, d], [b, l, d], bool [b, l] -> [b, 3 * d]."""

    def __init__(self, dim: int, length: int, sessions: int, heads: int):
        super().__init__()
        self.width, self.sessions = 3 * dim, min(sessions, length)
        self.each = -(-length // self.sessions)  # places of a session
        self.pads = self.each * self.sessions - length
        self.session_bias = nn.Parameter(torch.randn(self.sessions, 1, 1) * 0.02)
        self.place_bias = nn.Parameter(torch.randn(self.each, 1) * 0.02)
        self.unit_bias = nn.Parameter(torch.randn(dim) * 0.02)
        # without dropout: its masks are of samples, and here sessions take their place
        self.transformer = Transformer(
            1, heads, dim, 4 * dim, activation="relu", init_std=0.1, causal=False
        )
        self.lstm = nn.LSTM(dim, dim, batch_first=True, bidirectional=True)
        self.alone, self.among = Bilinear(dim, dim), Bilinear(dim, 2 * dim)

    def forward(self, candidate: Tensor, vectors: Tensor, there: Tensor) -> Tensor:
        size, _, dim = vectors.shape
        there = nn.functional.pad(there, (0, self.pads)).view(size, self.sessions, self.each)
        vectors = nn.functional.pad(vectors, (0, 0, 0, self.pads))
        vectors = vectors.view(size, self.sessions, self.each, dim)
        bias = self.session_bias + self.place_bias + self.unit_bias  # [sessions, each, dim]
        real = there.flatten(0, 1)
        states = self.transformer((vectors + bias).flatten(0, 1), ~real)
        count = real.sum(1, keepdim=True).clamp(min=1)
        interests = ((states * real.unsqueeze(2)).sum(1) / count).view(size, self.sessions, dim)
        if size:
            among = self.lstm(interests)[0]
        else:  # torch's own refuses a batch without samples
            nothing = sum(weight.sum() * 0.0 for weight in self.lstm.parameters())
            among = torch.cat([interests, interests], 2) + nothing
        any_there = there.any(2)
        read = []
        for attention, states in ((self.alone, interests), (self.among, among)):
            weights = attention(candidate, states, any_there)
            read.append(torch.bmm(weights.unsqueeze(1), states).squeeze(1))
        return torch.cat(read, 1)


class DSIN(HistoryModel):
    """Features have no times of single items: sessions are so many equal parts of the length."""

    class Options(HistoryModel.Options):
        sessions: int = 4  # parts that a history is cut into
        n_heads: int = 2

    def reader(self, dim: int, length: int) -> HistoryReader:
        return Sessions(dim, length, self.options.sessions, self.options.n_heads)

"""Codebooks: vectors to codes, each of what the codes before it left over.

    r(1) = encoder(x)    c(k) = nearest of codebook k to r(k)    r(k+1) = r(k) - e(c(k))

rqvae     RQ-VAE (Lee et al., CVPR 2022; Rajput et al., NeurIPS 2023): an autoencoder whose latent
          vector is the sum of one vector out of each codebook, learned with
          loss = |x - decoder(sum of e)|^2 + sum of |sg r - e|^2 + beta |r - sg e|^2
kmeans    each codebook is k-means of what is left over; x itself is the latent vector
balanced  the same with groups of equal sizes (OneRec, Deng et al., 2025), so that all codes of a
          level are used equally often

Once learned they are frozen: `Codebooks.codes` gives later items theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.nn.k_means import balanced_k_means, k_means, nearest

Method = Literal["rqvae", "kmeans", "balanced"]
BLOCK = 1 << 15  # vectors that are reconstructed at a time
WIDEST = 512  # of a layer of the autoencoder


class RQVAE(nn.Module):
    """Vectors [n, width] to codes [n, levels]."""

    def __init__(self, width: int, hidden: int, latent: int, levels: int, size: int):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.books = nn.Parameter(torch.randn(levels, size, latent) * 0.1)

    def begin(self, vectors: Tensor) -> None:
        """Codebooks begin as k-means of what they will be asked for: none stays unused."""
        with torch.no_grad():
            rest = self.encoder(vectors)
            for book in self.books:
                book.copy_(k_means(rest, len(book)))
                rest = rest - book[nearest(rest, book)]

    def quantised(self, rest: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the vectors of codes [n, latent], and the loss of choosing."""
        total, loss = torch.zeros_like(rest), rest.new_zeros(())
        for book in self.books:
            row = book[nearest(rest.detach(), book)]
            loss = loss + F.mse_loss(row, rest.detach()) + 0.25 * F.mse_loss(rest, row.detach())
            total, rest = total + row, rest - row.detach()
        return total, loss

    def forward(self, vectors: Tensor) -> Tensor:
        """The loss of vectors, a mean."""
        latent = self.encoder(vectors)
        total, loss = self.quantised(latent)
        through = latent + (total - latent).detach()  # gradients pass the choice by
        return loss + F.mse_loss(self.decoder(through), vectors)


@dataclass(frozen=True, eq=False)
class Codebooks:
    """What makes codes of vectors, frozen.

    books    [levels, size, latent]
    mean, deviation  of the vectors that they were learned from: [width], []
    layers   of an autoencoder: its weights by name, such as encoder.0.weight; else none
    """

    books: Tensor
    mean: Tensor
    deviation: Tensor
    layers: Mapping[str, Tensor]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Codebooks:
        """Codebooks of the tensors of a file; what cannot be codebooks is refused."""
        layers = {name: one for name, one in tensors.items() if "coder." in name}
        names = {"books", "mean", "deviation", *layers}
        if tensors.keys() != names or not _fit(tensors, layers):
            raise ValueError("its codebooks are not of the shapes that codebooks have")
        return cls(tensors["books"], tensors["mean"], tensors["deviation"], layers)

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.mean.shape[0]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that is kept of them, by name."""
        return {"books": self.books, "mean": self.mean, "deviation": self.deviation, **self.layers}

    def scaled(self, vectors: Tensor) -> Tensor:
        """Vectors as the codebooks read them: around 0, of about unit deviation."""
        return (vectors.float() - self.mean) / self.deviation

    def rests(self, vectors: Tensor, codes: Tensor) -> Tensor:
        """What the first codes of vectors leave over: [n, width], [n, k] -> [n, latent]."""
        rest = self._coded("encoder", self.scaled(vectors))
        for level, column in enumerate(codes.T):
            rest = rest - self.books[level][column]
        return rest

    def codes(self, vectors: Tensor) -> Tensor:
        """Codes of vectors: [n, width] -> [n, levels]."""
        rest, columns = self._coded("encoder", self.scaled(vectors)), []
        for book in self.books:
            columns.append(nearest(rest, book))
            rest = rest - book[columns[-1]]
        return torch.stack(columns, 1)

    def kept(self, vectors: Tensor, codes: Tensor) -> float:
        """The share of the variance of vectors that their codes keep."""
        lost = total = 0.0
        for part, own in zip(vectors.split(BLOCK), codes.split(BLOCK)):
            rows = sum(book[column] for book, column in zip(self.books, own.T))
            assert isinstance(rows, Tensor)
            numbers = self.scaled(part)
            lost += float((numbers - self._coded("decoder", rows)).square().sum())
            total += float(numbers.square().sum())
        return 1.0 - lost / max(total, 1e-12)

    def _coded(self, coder: str, x: Tensor) -> Tensor:
        """What the encoder or the decoder makes of vectors; they stay as they are without."""
        if not self.layers:
            return x
        first, last = (
            (self.layers[f"{coder}.{place}.weight"], self.layers[f"{coder}.{place}.bias"])
            for place in (0, 2)
        )
        return F.linear(F.relu(F.linear(x, *first)), *last)


def _fit(tensors: Mapping[str, Tensor], layers: Mapping[str, Tensor]) -> bool:
    """Whether the tensors of codebooks are of shapes that fit together, and finite."""
    books, mean, deviation = (tensors.get(name) for name in ("books", "mean", "deviation"))
    if books is None or mean is None or deviation is None:
        return False
    if (books.dim(), mean.dim(), deviation.dim()) != (3, 1, 0) or not books.numel():
        return False
    width, latent = len(mean), books.shape[2]
    shapes: dict[str, tuple[int, ...]] = {}
    if layers:
        hidden = tensors.get("encoder.0.bias", books).shape[0]
        for coder, first, last in (("encoder", width, latent), ("decoder", latent, width)):
            shapes |= {
                f"{coder}.0.weight": (hidden, first),
                f"{coder}.0.bias": (hidden,),
                f"{coder}.2.weight": (last, hidden),
                f"{coder}.2.bias": (last,),
            }
    elif latent != width:
        return False
    if {name: tuple(one.shape) for name, one in layers.items()} != shapes:
        return False
    return float(deviation) > 0 and all(bool(one.isfinite().all()) for one in tensors.values())


def learn_codebooks(
    vectors: Tensor, levels: int, size: int, steps: int, method: Method
) -> tuple[Codebooks, Tensor]:
    """Codebooks of vectors [n, width], and their codes [n, levels].

    Learned with torch's present generator, from all vectors at once. steps: of the RQ-VAE.
    """
    width, size = vectors.shape[1], min(size, max(1, len(vectors)))
    mean, deviation = vectors.mean(0), vectors.std().nan_to_num().clamp(min=1e-6)
    scaled = (vectors - mean) / deviation
    if method == "rqvae":
        with torch.enable_grad():
            model = RQVAE(width, min(2 * width, WIDEST), min(32, width), levels, size)
            model.begin(scaled)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
            for _ in range(steps):
                optimizer.zero_grad()
                model(scaled).backward()
                optimizer.step()
        layers = {name: one.detach() for name, one in model.state_dict().items()}
        books = Codebooks(layers.pop("books"), mean, deviation, layers)
        return books, books.codes(vectors)
    each, columns, rest = [], [], scaled
    for _ in range(levels):
        if method == "balanced":
            centres, column = balanced_k_means(rest, size)
        else:
            centres = k_means(rest, size)
            column = nearest(rest, centres)
        each.append(centres)
        columns.append(column)
        rest = rest - centres[column]
    return Codebooks(torch.stack(each), mean, deviation, {}), torch.stack(columns, 1)

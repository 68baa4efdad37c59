"""Exchange between ranks: many pieces as one buffer, vectors in the precision of the config."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.distributed.world import World


@dataclass(frozen=True)
class WirePrecision:
    """How rows, sums and gradients travel (strategy.wire_dtype); ids and counts stay exact.

    Each value is rounded once on each way, to the nearest: bfloat16 is off by at most 2^-8 of it,
    float16 by 2^-11, below 6.1e-5 by at most 2^-25, and has no value beyond 65,504.
    """

    dtype: torch.dtype = torch.float32

    @property
    def itemsize(self) -> int:
        """Bytes of a value."""
        return self.dtype.itemsize

    def narrow(self, vectors: Tensor) -> Tensor:
        """Float32 of any shape as it travels: flat."""
        flat = vectors.reshape(-1).to(self.dtype)
        if self.dtype == torch.float16 and bool(
            (flat.isinf() & ~vectors.reshape(-1).isinf()).any()
        ):
            raise ValueError(
                "strategy.wire_dtype: given float16, which ends at 65504, and a row or the "
                "gradient "
                f"of a row holds {float(vectors.abs().max()):g}: set strategy.wire_dtype=bfloat16"
            )
        return flat

    def widen(self, flat: Tensor) -> Tensor:
        """Values in wire precision as float32 [n] (reverses `narrow`)."""
        return flat.float()

    def exact(self, counts: Tensor) -> Tensor:
        """Float32 of any shape as its bits: flat, among values of the precision."""
        return counts.reshape(-1).view(self.dtype)

    def from_exact(self, flat: Tensor) -> Tensor:
        """Float32 [n] from its bits among values of the precision (reverses `exact`)."""
        return flat.clone().view(torch.float32)  # aligned


def exchange(
    world: World, outgoing: list[list[Tensor]], lengths: list[list[int]]
) -> list[list[Tensor]]:
    """Send outgoing[rank][table]; lengths[rank][table] come back, as `unpack` has them."""
    sent = [sum(len(piece) for piece in pieces) for pieces in outgoing]
    received = [sum(rank_lengths) for rank_lengths in lengths]
    return unpack(world.all_to_all(pack(outgoing), sent, received), lengths)


def pack(pieces: list[list[Tensor]]) -> Tensor:
    """One buffer of pieces[rank][table], rank by rank."""
    return torch.cat([piece for rank_pieces in pieces for piece in rank_pieces])


def unpack(buffer: Tensor, lengths: list[list[int]]) -> list[list[Tensor]]:
    """pieces[table][rank] as views into a buffer that `pack` wrote."""
    views = buffer.split([length for rank_lengths in lengths for length in rank_lengths])
    tables = len(lengths[0])
    return [list(views[table::tables]) for table in range(tables)]

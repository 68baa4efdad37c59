"""Which values a mask of dropout keeps: the definition, in torch's integers.

    mixed   64 bits, the finaliser of splitmix64 of key + INCREMENT
    word    of position i: the finaliser of lowbias32 (Wellons) of the low half of mixed + i * STEP,
            with the high half between its rounds and without its last shift
    kept    where the word is not below p * 2^32

Words are 32 bits; after 2^32 positions they repeat. csrc/dropout.cpp and gpu/dropout.py make the
same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.kernels.common.rules import INCREMENT, mix, signed

STEP = 0x9E3779B9
WORD = 0xFFFFFFFF


def kept(
    key: Tensor, p: float, shape: torch.Size, first: int, rows: Tensor | None, stride: int = 0
) -> Tensor:
    """Which values of a tensor are kept, bool of its shape; key int64 [1], 0 < p < 1."""
    return random_words(key, shape, first, rows, stride) >= threshold(p)


def random_words(
    key: Tensor, shape: torch.Size, first: int, rows: Tensor | None, stride: int = 0
) -> Tensor:
    """32 random bits for every value of a tensor, int64 of its shape; key int64 [1].

    Value i is at position first + i; with `rows` [n], value c of row r at (first + rows[r]) *
    stride + c. stride 0: the values of a row.
    """
    width = shape[1:].numel()
    if rows is None:
        rows = torch.arange(shape[0], device=key.device)
        position = first + rows[:, None] * width
    else:
        position = (first + rows[:, None]) * (stride or width)
    position = position + torch.arange(width, device=key.device)  # [n, width]
    mixed = mix(key + signed(INCREMENT))
    # A 32-bit factor as the signed number of least size: no product leaves 63 bits.
    word = ((position & WORD) * (STEP - 2**32) + mixed) & WORD
    word = ((word ^ word >> 16) * 0x7FEB352D & WORD) ^ (mixed >> 32 & WORD)
    word = (word ^ word >> 15) * (0x846CA68B - 2**32) & WORD
    return word.view(shape)


def threshold(p: float) -> int:
    """Words below it are dropped."""
    return min(int(p * 2.0**32), WORD)

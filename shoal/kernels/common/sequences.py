"""Where sequences are among tokens, and buckets of the time between two of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

BUCKETS = 128  # of times; log2 of seconds reaches 64 at most
CELLS = 4 * 62  # of times below 2^62


@dataclass(frozen=True)
class Sequences:
    """Where sequences are among tokens, and when each token was.

        sample 0      sample 1  sample 2 (empty)
        a b c d       e f
        starts [0, 4, 6], lengths [4, 2, 0], longest 4

    Tokens that belong to no sequence are pads: what is made of them is 0.
    """

    starts: Tensor  # int32 [b]
    lengths: Tensor  # int32 [b]
    longest: int  # no sequence is longer
    # Times are int64, or int32 of 0 and above, which is faster.
    request_times: Tensor | None = None  # [tokens]: when the token after this one was asked for
    event_times: Tensor | None = None  # [tokens]: when this token was taken
    # Lengths where the host knows them: work is laid out by these, so that a batch of very
    # different lengths costs what its tokens cost. None: as if all were the longest.
    sizes: tuple[int, ...] | None = None
    # Of packed sequences, int64 [tokens]: which of the places side by side, b * longest, tokens
    # are. None: every place is a token.
    tokens: Tensor | None = None

    @property
    def length_bounds(self) -> tuple[int, ...]:
        """For each sequence a length that it does not exceed."""
        return (self.longest,) * len(self.lengths) if self.sizes is None else self.sizes


def request_and_event_times(times: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """When the item after each is asked for, and when each was taken, [b, l]: of times [b, l + 1],
    of items and of what is asked."""
    return (None, None) if times is None else (times[:, 1:], times[:, :-1])


def buckets_between(request_times: Tensor, event_times: Tensor) -> Tensor:
    """Buckets of request_time_i - event_time_j: [b, q], [b, l] -> [b, q, l]."""
    return bucket_of(request_times.unsqueeze(2) - event_times.unsqueeze(1))


def time_buckets(times: Tensor) -> Tensor:
    """Buckets of t_i+1 - t_j: times [b, l + 1], of items and of what is asked -> [b, l, l]."""
    return buckets_between(times[:, 1:], times[:, :-1])


def bucket_of(between: Tensor) -> Tensor:
    """The bucket of the time between two items, int64 of any shape."""
    return (between.abs().clamp(min=1).float().log() / 0.301).long().clamp(max=BUCKETS)


@cache
def bucket_steps(device: torch.device, times: torch.dtype) -> tuple[Tensor, Tensor]:
    """How a kernel finds the bucket that `bucket_of` finds there, without a logarithm.

    A cell is what times have in common whose float32 has the same exponent and first two bits: at
    most one bucket begins inside. For each: the least time of the next bucket, [CELLS] of the type
    of times, and the bucket of the cell's least time, int32 [CELLS + 1].
    """
    never = 2**62 if times == torch.int64 else 2**31 - 1
    bucket = torch.arange(1, BUCKETS + 1, device=device)
    ends = torch.tensor([0, 2**62], device=device)
    steps = torch.cat([ends[:1], _least(bucket_of, bucket), ends[1:]])
    cells = _least(cell_of, torch.arange(1, CELLS, device=device))
    buckets = bucket_of(torch.cat([ends[:1], cells, ends[1:]]))
    return steps[buckets[:-1] + 1].clamp(max=never).to(times), buckets.int()


def cell_of(between: Tensor) -> Tensor:
    """The cell of times >= 1: int64 of any shape."""
    return (between.clamp(min=1).float().view(torch.int32) >> 21).long() - 4 * 127


def _least(rises: Callable[[Tensor], Tensor], wanted: Tensor) -> Tensor:
    """The least time at which a function that never falls is at least `wanted`: int64 [n]."""
    low, high = torch.zeros_like(wanted), torch.full_like(wanted, 2**62)
    for _ in range(62):
        middle = (low + high) // 2
        above = rises(middle) >= wanted
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return high

"""HSTU's attention over sequences of any lengths: without a softmax, with biases of position and
time. On a GPU by kernels, which keep nothing of all pairs of places.

    weight_ij = silu(<query_i, key_j> + position bias(i - j) + time bias(asked_i - taken_j)) / n
    out_i     = sum of weight_ij value_j over j <= i of the same sequence
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.kernels.machine import takes_triton

BUCKETS = 128  # of times; log2 of seconds reaches 64 at most
TYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 256  # of a head; wider tiles do not fit
LARGE = 2**27  # pairs of places in a batch from which on waiting for its lengths pays off
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
    asked: Tensor | None = None  # [tokens]: when the token after this one was asked for
    taken: Tensor | None = None  # [tokens]: when this token was taken
    # Lengths where the host knows them: work is laid out by these, so that a batch of very
    # different lengths costs what its tokens cost. None: as if all were the longest.
    sizes: tuple[int, ...] | None = None

    @property
    def known(self) -> tuple[int, ...]:
        """Of each sequence a length that it does not exceed."""
        return (self.longest,) * len(self.lengths) if self.sizes is None else self.sizes


def sequences_of(history: Tensor, times: Tensor | None) -> Sequences:
    """Of sequences side by side: history [b, l], 0 where a pad is; times [b, l + 1].

    For a LARGE batch the host waits once: it reads lengths, and whether int32 holds the times.
    """
    size, length = history.shape
    place = torch.arange(length + 1, device=history.device)
    # A state is asked of an empty history as well: its first pad is a token.
    lengths = ((history > 0) * place[1:]).amax(1).clamp(min=1)
    sizes = None
    if size * length**2 > LARGE:
        if history.is_cuda and torch.cuda.is_current_stream_capturing():
            raise ValueError(
                f"a step over {size} histories of {length} places reads their lengths on the host "
                "and cannot be recorded: set strategy.graph to auto or false"
            )
        read = [lengths]
        if times is not None:  # seconds since the first of each sequence
            within = place <= lengths.unsqueeze(1)
            first = times.masked_fill(~within, 2**62).amin(1, keepdim=True)
            since = (times - first).masked_fill(~within, 0)
            read.append(since.amax().view(1))
        found = torch.cat(read).tolist()
        sizes = tuple(found[:size])
        if times is not None and found[-1] < 2**31:
            times = since.int()
    asked = taken = None
    if times is not None:
        asked, taken = times[:, 1:].reshape(-1), times[:, :-1].reshape(-1)
    starts = torch.arange(size, dtype=torch.int32, device=history.device) * length
    return Sequences(starts, lengths.int(), length, asked, taken, sizes)


def takes_hstu(x: Tensor, widest: int) -> bool:
    """Whether there is a kernel for heads of this width, of layers that read x."""
    return takes_triton(x) and x.dtype in TYPES and widest <= WIDEST


def hstu_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sequences: Sequences,
    position_bias: Tensor | None,
    time_bias: Tensor | None,
    n: int,
) -> Tensor:
    """By the kernel, where `takes_hstu`: query, key [tokens, heads, d], value [tokens, heads, e]
    -> [tokens, heads, e]; position_bias [longest or more], time_bias [BUCKETS + 1].

    Nothing is kept of all pairs of places. Backward has a scratch buffer of at most 1 GiB for them.
    """
    from shoal.kernels.gpu.hstu import HSTUAttended

    return HSTUAttended.apply(query, key, value, sequences, position_bias, time_bias, n)


def plain_hstu_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position_bias: Tensor,
    time_bias: Tensor | None,
    buckets: Tensor | None,
    n: int,
) -> Tensor:
    """By torch's functions, of sequences side by side: query, key, value [b, heads, l, d], buckets
    [b, l, l] -> [b, heads, l, d].
    """
    place = torch.arange(query.shape[2], device=query.device)
    back = place.unsqueeze(1) - place  # [l, l]; below 0: a later item, which is not seen
    bias = position_bias[back.clamp(min=0)]
    if time_bias is not None and buckets is not None:
        bias = (bias + time_bias[buckets]).unsqueeze(1)  # [b, 1, l, l]
    weights = F.silu(query @ key.transpose(-1, -2) + bias) / n
    return weights.masked_fill(back < 0, 0.0) @ value


def time_buckets(times: Tensor) -> Tensor:
    """Buckets of t_i+1 - t_j: times [b, l + 1], of items and of what is asked -> [b, l, l]."""
    return bucket_of(times[:, 1:].unsqueeze(2) - times[:, :-1].unsqueeze(1))


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

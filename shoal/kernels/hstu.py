"""HSTU's attention over sequences of any lengths: without a softmax, with biases of position and
time. On a GPU by kernels, which keep nothing of all pairs of places.

    weight_ij = silu(<query_i, key_j> + position bias(i - j) + time bias(asked_i - taken_j)) / n
    out_i     = sum of weight_ij value_j over j <= i of the same sequence
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.kernels.common.sequences import Sequences
from shoal.kernels.machine import runs_triton

TYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 256  # of a head; wider tiles do not fit
LARGE = 2**27  # pairs of places in a batch from which on waiting for its lengths pays off


def sequences_of(
    history: Tensor, request_times: Tensor | None, event_times: Tensor | None
) -> Sequences:
    """Sequences of a batch: history [b, l], 0 where a pad is; request and event times [b, l].

    For a LARGE batch the host waits once, unless its step is being recorded: it reads lengths, and
    whether int32 holds the times. Then pads are left out: tokens are those of `Sequences.tokens`.
    """
    size, length = history.shape
    place = torch.arange(length, device=history.device)
    # A state is asked of an empty history as well: its first pad is a token.
    lengths = ((history > 0) * (place + 1)).amax(1).clamp(min=1)
    times = (
        None
        if request_times is None or event_times is None
        else torch.stack([request_times, event_times])
    )  # [2, b, l]
    sizes = None
    recorded = history.is_cuda and torch.cuda.is_current_stream_capturing()
    if size * length**2 > LARGE and not recorded:
        read = [lengths]
        if times is not None:  # seconds since the first of each sequence
            within = place < lengths.unsqueeze(1)
            first = times.masked_fill(~within, 2**62).amin((0, 2), keepdim=True)
            since = (times - first).masked_fill(~within, 0)
            read.append(since.amax().view(1))
        numbers = torch.cat(read).tolist()
        sizes = tuple(numbers[:size])
        if times is not None and numbers[-1] < 2**31:
            times = since.int()
    request_times, event_times = (None, None) if times is None else times.flatten(1).unbind()
    starts = torch.arange(size, device=history.device) * length
    tokens = None
    if sizes is not None and sum(sizes) < size * length:
        total = sum(sizes)
        packed = lengths.cumsum(0) - lengths
        sequence_of = torch.repeat_interleave(lengths, output_size=total)  # the sequence of a token
        tokens = (
            starts[sequence_of] + torch.arange(total, device=history.device) - packed[sequence_of]
        )
        starts = packed
        request_times, event_times = (
            None if x is None else x[tokens] for x in (request_times, event_times)
        )
    return Sequences(starts.int(), lengths.int(), length, request_times, event_times, sizes, tokens)


def takes_hstu(x: Tensor, widest: int) -> bool:
    """Whether there is a kernel for heads of this width, of layers that read x."""
    return x.is_cuda and runs_triton() and x.dtype in TYPES and widest <= WIDEST


def normed(x: Tensor, eps: float) -> Tensor:
    """The layer norm of x [n, width] by a kernel, where `takes_hstu`; in autocast of its type."""
    from shoal.kernels.gpu.hstu_norms import Normed

    device = x.device.type
    autocast = torch.is_autocast_enabled(device)
    return Normed.apply(x, eps, torch.get_autocast_dtype(device) if autocast else x.dtype)


def normed_and_gated(
    mixed: Tensor,
    gate: Tensor,
    eps: float,
    p: float,
    key: Tensor | None,
    first: int,
    rows: Tensor | None,
) -> Tensor:
    """dropout(layer norm of mixed * gate) by a kernel, where `takes_hstu`: [n, width] each.

    key: of the mask, None where nothing is dropped; first, rows: as for `drop` (dropout.py).
    """
    from shoal.kernels.gpu.hstu_norms import NormedAndGated

    return NormedAndGated.apply(mixed, gate, eps, p, key, first, rows)


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
    position_bias: Tensor | None,
    time_bias: Tensor | None,
    buckets: Tensor | None,
    n: int,
) -> Tensor:
    """By torch's functions, of sequences side by side: query [b, heads, q, d] of the last q of l
    places, key, value [b, heads, l, d], buckets [b, q, l] -> [b, heads, q, d].
    """
    place = torch.arange(key.shape[2], device=query.device)
    back = place[place.shape[0] - query.shape[2] :].unsqueeze(1) - place
    # [q, l]; below 0: a later item, which is not seen
    scores = query @ key.transpose(-1, -2)
    if position_bias is not None:
        scores = scores + position_bias[back.clamp(min=0)]
    if time_bias is not None and buckets is not None:
        scores = scores + time_bias[buckets].unsqueeze(1)  # [b, 1, q, l]
    weights = F.silu(scores) / n
    return weights.masked_fill(back < 0, 0.0) @ value


def plain_hstu_candidates(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: tuple[Tensor, Tensor],
    lengths: Tensor,
    position_bias: Tensor | None,
    time_bias: Tensor | None,
    buckets: Tensor | None,
    n: int,
) -> Tensor:
    """Attention of candidates behind a sequence: each sees the sequence and itself, no other one.

    query, key, value [b, heads, c, d]; past: keys and values [b, heads, l, d], of which the first
    lengths [b] are there; buckets [b, 1 or c, l] -> [b, heads, c, d].
    """
    place = torch.arange(past[0].shape[2], device=query.device)
    back = (lengths.unsqueeze(1) - place).view(-1, 1, 1, place.shape[0])  # 1 and above: there
    scores, own = query @ past[0].transpose(-1, -2), (query * key).sum(-1)
    if position_bias is not None:
        scores = scores + position_bias[back.clamp(min=0)]
        own = own + position_bias[0]
    if time_bias is not None and buckets is not None:
        scores = scores + time_bias[buckets].unsqueeze(1)
        own = own + time_bias[0]
    weights = F.silu(scores).masked_fill(back < 1, 0.0)
    return (weights @ past[1] + F.silu(own).unsqueeze(-1) * value) / n

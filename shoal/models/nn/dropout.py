"""Dropout whose masks are the same on any number of processes, on CPUs and GPUs.

Whether a value is dropped is a pure function of (seed, step, layer, sample, place in the sample):

    step key   hash of (seed, step)
    layer      how many masks this pass drew before: the first layer is 0
    position   number of the sample in the global batch * values of a sample + place in the sample

A rank's slice of the global batch is so many positions in a row, and a rank needs to know no more
than where its slice begins. Strategies call:

    begin_step(seed, step, device)    once a step
    begin_slice(first)                before each forward pass

Outside of any step a mask has a key from torch's generator. The native core, a Triton kernel and
torch's integers make the same bits.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from shoal.data.random import hash64
from shoal.kernels.common.mask_words import random_words
from shoal.kernels.common.rules import INCREMENT, signed
from shoal.kernels.dropout import drop, takes_int_key


class _Draws:
    """Which masks come next."""

    def __init__(self) -> None:
        self.begun = False  # whether in a step
        self.key = 0  # of the step; compiled code must not read it, or is compiled in every step
        # The same by type of device, int64 [1]. Always the same memory: a CUDA graph reads from
        # where it read when it was recorded.
        self.on_device: dict[str, Tensor] = {}
        self.first = 0  # number of the slice's first sample in the global batch
        self.layer = 0  # masks drawn in this pass

    def next_layer(self) -> int:
        """The number of the next mask."""
        self.layer += 1
        return self.layer - 1


_draws = _Draws()


def begin_step(seed: int, step: int, device: torch.device) -> None:
    """From now on masks are those of this step."""
    key = int(hash64(seed, 0xD509, step))
    _draws.begun, _draws.key = True, key
    if device.type not in _draws.on_device:
        _draws.on_device[device.type] = torch.empty(1, dtype=torch.int64, device=device)
    _draws.on_device[device.type].fill_(signed(key))
    begin_slice(0)


def begin_slice(first: int) -> None:
    """A forward pass over samples first, first + 1, ... of the global batch begins."""
    _draws.first, _draws.layer = first, 0


def end_steps() -> None:
    """From now on keys come from torch's generator again."""
    _draws.begun = False
    begin_slice(0)


def dropout(x: Tensor, p: float, rows: Tensor | None = None, each: int = 1) -> Tensor:
    """Zeros with probability p, the other values divided by 1 - p; shaped as x, [b, ...].

    Where x is not a row for each sample but some rows of [b * each, ...], `rows` [n] names them:
    they are dropped as they would be among all.
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"a dropout rate is between 0 and 1, and this one is {p}")
    layer = _draws.next_layer()
    if p == 0.0:
        return x
    if p == 1.0 or x.numel() == 0:
        return x * 0.0
    values = x.shape[1:].numel() if rows is None else each
    return drop(x, p, _key(layer, x.device), _draws.first * values, rows)


def draw_key(device: torch.device, values: int) -> tuple[Any, int]:
    """The next mask for a kernel that computes it where it needs it: its key (see `takes_int_key`)
    and the position of the slice's first value, where a sample has so many `values`.
    """
    return _key(_draws.next_layer(), device), _draws.first * values


def uniform_like(x: Tensor, shared: bool = False) -> Tensor:
    """Numbers between 0 and 1, shaped as x, [b, ...]: as masks are, of (seed, step, layer, sample).

    shared: x is no slice of samples but something that all processes have alike.
    """
    first = 0 if shared else _draws.first * x.shape[1:].numel()
    key = _key_on(x.device, _draws.next_layer())
    numbers = (random_words(key, x.shape, first, None) + 0.5) * 2.0**-32
    # Rounded to float32 one number of 33 million is 1, where the normal is infinite.
    return numbers.clamp(max=1.0 - 2.0**-24)


def normal_like(x: Tensor, shared: bool = False) -> Tensor:
    """Standard normal numbers, shaped as x: as `uniform_like`, of (seed, step, layer, sample)."""
    return (torch.erfinv(2.0 * uniform_like(x, shared).double() - 1.0) * 2.0**0.5).to(x.dtype)


def shared_dropout(x: Tensor, p: float) -> Tensor:
    """Dropout of what all processes have alike (a whole graph), with one mask for all."""
    return dropout(x, p, torch.arange(len(x), device=x.device), each=0)


def recomputed(compute: Callable[..., Any], *inputs: Any) -> Any:
    """compute(*inputs); backward computes it again instead of keeping what lies between.

    The second time masks are those of the first.
    """
    first, layer, again = _draws.first, _draws.layer, False

    def replayed(*inputs: Any) -> Any:
        nonlocal again
        now = _draws.first, _draws.layer
        _draws.first, _draws.layer = first, layer
        outputs = compute(*inputs)
        if again:
            _draws.first, _draws.layer = now
        again = True
        return outputs

    return torch.utils.checkpoint.checkpoint(replayed, *inputs, use_reentrant=False)


def _key(layer: int, device: torch.device) -> int | Tensor:
    """The key of a layer's mask: 64 bits, as an integer where kernels take one."""
    if not takes_int_key(device):
        return _key_on(device, layer)
    if not _draws.begun:
        return int(torch.empty((), dtype=torch.int64).random_(-(2**63), None)) % 2**64
    return (_draws.key + layer * INCREMENT) % 2**64


def _key_on(device: torch.device, layer: int) -> Tensor:
    """The key of a layer's mask as a tensor, int64 [1], for which the host does not wait."""
    if not _draws.begun:
        return torch.empty(1, dtype=torch.int64, device=device).random_(-(2**63), None)
    return _draws.on_device[device.type] + signed(layer * INCREMENT)


class Dropout(nn.Dropout):
    """Dropout in training, the identity otherwise: [b, ...] -> [b, ...]; see `dropout`."""

    def __init__(self, p: float):
        super().__init__(p)

    def forward(self, x: Tensor, rows: Tensor | None = None, each: int = 1) -> Tensor:
        return dropout(x, self.p, rows, each) if self.training else x

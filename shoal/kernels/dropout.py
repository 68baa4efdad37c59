"""Masks of dropout: by the native core on a CPU, by Triton on a GPU, else in torch's integers.

All make the same bits, those that mask_words.py defines.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.kernels.common.mask_words import kept
from shoal.kernels.core import load_core
from shoal.kernels.machine import runs_triton

_core = load_core()
TYPES = (torch.float32, torch.bfloat16, torch.float16)  # that kernels of masks take


def takes_int_key(device: torch.device) -> bool:
    """Whether masks of tensors there are made of an integer; else of a tensor on the device."""
    return _core is not None and device.type == "cpu" and not torch.compiler.is_compiling()


def makes_masks(x: Tensor) -> bool:
    """Whether kernels that make masks where they need them can take x."""
    return x.is_cuda and runs_triton() and x.dtype in TYPES


def drop(
    x: Tensor,
    p: float,
    key: int | Tensor,
    first: int,
    rows: Tensor | None = None,
    stride: int = 0,
) -> Tensor:
    """Zeros with probability p, other values divided by 1 - p; x [n, ...], 0 < p < 1.

    key: of the mask, 64 bits, or int64 [1] on x's device (see `takes_int_key`). Value i is at
    position first + i of the mask; with `rows` [n], value c of row r at (first + rows[r]) * stride
    + c. stride 0: the values of a row; more where x is the beginning of longer rows.
    """
    if isinstance(key, int):
        # The mask is kept for backward. To make it again there takes a function in Python, and that
        # costs more than the mask.
        mask = _mask_by_core(x.shape, p, key, first, rows, stride)
        return x * mask if x.dtype == torch.float32 else (x * (mask > 0)) * (1.0 / (1.0 - p))
    if makes_masks(x) and not stride:
        from shoal.kernels.gpu.dropout import Masked

        return Masked.apply(x, p, key, first, rows)
    return (x * kept(key, p, x.shape, first, rows, stride)) * (1.0 / (1.0 - p))


def _mask_by_core(
    shape: torch.Size, p: float, key: int, first: int, rows: Tensor | None, stride: int
) -> Tensor:
    """0 or 1 / (1 - p) for every value, float32 and contiguous."""
    mask = torch.empty(shape, dtype=torch.float32, device="cpu")
    threads = torch.get_num_threads()
    if rows is None:
        _core.dropout_mask(key, p, first, mask.numel(), mask.data_ptr(), threads)
    else:
        rows, count, width = rows.contiguous(), shape[0], mask.numel() // shape[0]
        assert rows.shape == (count,) and rows.dtype == torch.int64 and rows.is_cpu
        _core.dropout_rows(
            key,
            p,
            first,
            rows.data_ptr(),
            count,
            width,
            stride or width,
            mask.data_ptr(),
            threads,
        )
    return mask

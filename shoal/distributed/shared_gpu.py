"""Processes that share a GPU: what they send each other goes through host memory.

NCCL needs a separate GPU for each rank. With `run.share_gpu` several compute on one GPU all the
same, to be compared with one process: slower, and with the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.distributed.world import Arriving, Subset, World


class SharedGpu(World):
    """Ranks that talk as `inner` does, in host memory, and compute on a device."""

    def __init__(self, inner: World, device: torch.device | str):
        self.inner = inner
        super().__init__(device)
        self.rank, self.size, self.host = inner.rank, inner.size, inner.host
        self.notes = (
            *inner.notes,
            f"{inner.size} processes share GPUs (run.share_gpu): what they send each other passes "
            "through host memory",
        )

    @property
    def bytes_sent(self) -> int:
        return self.inner.bytes_sent

    @bytes_sent.setter
    def bytes_sent(self, value: int) -> None:
        self.inner.bytes_sent = value

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(self.inner.all_reduce(tensor.cpu()))

    def gather(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[list[int]]]:
        joined, lengths = self.inner.gather([tensor.cpu() for tensor in tensors])
        return [one.to(self.device) for one in joined], lengths

    def stack(self, tensor: Tensor) -> Tensor:
        return self.inner.stack(tensor.cpu()).to(self.device)

    def start_all_to_all(
        self,
        tensor: Tensor,
        sent: list[int],
        received: list[int],
        out: Tensor | None = None,
        among: Subset | None = None,
    ) -> Arriving:
        on_cpu = self.inner.start_all_to_all(tensor.cpu(), sent, received, among=among).wait()
        # What was in host memory stays there: ids and counts are looked at by the host.
        return Arriving(on_cpu.to(tensor.device) if out is None else out.copy_(on_cpu))

    def subset(self, ranks: list[int]) -> Subset:
        return self.inner.subset(ranks)

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        return self.inner.broadcast_bytes(data)

    def barrier(self) -> None:
        self.inner.barrier()

    def group(self) -> Any:
        return self.inner.group()

    def close(self) -> None:
        self.inner.close()

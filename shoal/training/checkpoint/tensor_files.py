"""Tensor files: rows of a checkpoint as safetensors, held in memory or written as they come."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from shoal.world.durable import write_counted


class Files:
    """Files of a checkpoint that is being taken: a few are held, to be written in the background,
    the others are written as they come. After a failure they are dropped.
    """

    held_bytes = 1 << 28  # of rows that are kept in memory until they are written

    def __init__(self, folder: Path):
        self.folder = folder
        self.held: dict[str, dict[str, Tensor]] = {}
        self.written: dict[str, Any] = {}  # name -> bytes and checksum
        self.failure: OSError | None = None
        self._room = self.held_bytes

    def put(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Take one file. Other ranks send on whatever happens here, so nothing is raised."""
        size = sum(tensor.nbytes for tensor in tensors.values())
        if size <= self._room:
            self.held[name] = tensors
            self._room -= size
        elif self.failure is None:
            try:
                self.written[name] = write_tensors(self.folder / name, tensors)
            except OSError as error:
                self.failure = error

    def write_held(self) -> dict[str, Any]:
        """Write those too, and let go of them; of all of them bytes and checksum."""
        while self.held:
            name = next(iter(self.held))
            self.written[name] = write_tensors(self.folder / name, self.held.pop(name))
        return self.written


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write a safetensors file durably; its bytes and checksum."""
    dense = torch.contiguous_format  # a column of one number has its table's stride otherwise
    copies = {name: tensor.clone(memory_format=dense) for name, tensor in tensors.items()}
    return write_counted(path, save(copies))

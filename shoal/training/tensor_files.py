"""Tensor files: safetensors written from the tensors themselves, without a copy in between.

Large pieces are written and summed up without Python's lock, so that training is not held up.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HELD_BYTES = 1 << 28  # of rows that are kept in memory until they are written
DTYPES = {torch.float32: "F32", torch.int64: "I64", torch.uint8: "U8"}  # that rows consist of


class Files:
    """Files of a checkpoint that is being taken: a few are held, to be written in the background,
    the others are written as they come. After a failure they come in vain.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.held: dict[str, dict[str, Tensor]] = {}
        self.written: dict[str, Any] = {}  # name -> bytes and checksum
        self.failure: OSError | None = None
        self._room = HELD_BYTES

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

    def write_held(self) -> list[Path]:
        """Write those too; where all of them are."""
        while self.held:
            name, tensors = self.held.popitem()
            self.written[name] = write_tensors(self.folder / name, tensors)
        return [self.folder / name for name in sorted(self.written)]


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write a safetensors file of contiguous tensors durably; its bytes and checksum."""
    # Wide numbers first, so that each tensor begins where its kind may.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {}
    position = 0
    for name in names:
        tensor = tensors[name]
        bounds = [position, position + tensor.nbytes]
        dtype = DTYPES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": bounds}
        position = bounds[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        flat = (tensors[name].reshape(-1).view(torch.uint8).numpy() for name in names)
        for piece in map(memoryview, (struct.pack("<Q", len(text)) + text, *flat)):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}

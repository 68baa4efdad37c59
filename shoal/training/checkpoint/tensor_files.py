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

from shoal.world.durable import no_links, written

HELD_BYTES = 1 << 28  # of rows that are kept in memory until they are written
DTYPES = {torch.float32: "F32", torch.int64: "I64", torch.uint8: "U8"}  # that rows consist of


class Files:
    """Files of a checkpoint that is being taken: a few are held, to be written in the background,
    the others are written as they come. After a failure they are dropped.
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

    def write_held(self) -> dict[str, Any]:
        """Write those too, and let go of them; of all of them bytes and checksum."""
        while self.held:
            name = next(iter(self.held))
            self.written[name] = write_tensors(self.folder / name, self.held.pop(name))
        return self.written


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write a safetensors file durably; its bytes and checksum."""
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
    head = struct.pack("<Q", len(text)) + text
    digest = hashlib.sha256(head)
    with written(path), open(path, "wb", opener=no_links) as file:
        file.write(head)
        for name in names:
            flat = tensors[name].reshape(-1)
            if flat.stride(0) != 1:  # a column, even of one number, which torch calls contiguous
                flat = flat.clone(memory_format=torch.contiguous_format)
            piece: Any = flat.view(torch.uint8).numpy()  # not copied
            file.write(piece)
            digest.update(piece)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(head) + position, "sha256": digest.hexdigest()}

"""The folder of new items: what was posted to a service, on the disk before it is answered.

    00000001-3f0c6a51d2e4b897.safetensors    the items of one request; the name has its number, and
                                             the beginning of the SHA-256 of its bytes
        vectors                              [n, width] float32, as they came
        ids.bytes, ids.offsets               the ids, as `pack_words` packs them
        title.bytes, title.offsets           captions, where items came with them; picture, too
    .lock                                    held by who writes

An artifact stays as it was exported: its bytes are those of its manifest. Whoever serves it reads
this folder beside it, and so does another artifact that takes its place. Several processes, and
services, may read and write the same folder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import torch
from safetensors.torch import load as parse_tensors
from safetensors.torch import save
from torch import Tensor

from shoal.data.loading.captions import ENDINGS
from shoal.data.vocabulary import pack_words, unpack_words
from shoal.files.durable import open_regular, replace_durably, sole_holder, sync_folder
from shoal.serving.artifact.new_items import NewItems

NAME = re.compile(r"(\d{8})-([0-9a-f]{16})\.safetensors")
MOST_BYTES = 1 << 30  # of a folder: what is served has all of it in memory
MOST_FILES = 100_000


@dataclass(frozen=True)
class PostedItems:
    """The items of one request, and the number of its file."""

    number: int
    items: NewItems


class ItemsFolder:
    """A folder of new items, as one process reads and writes it."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if (self.path / "manifest.json").exists():
            raise ValueError(
                f"{self.path} is an artifact, which stays as it is; name another folder for new "
                "items, such as added"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"cannot make the folder of new items {self.path}: {error.strerror}"
            ) from error
        self.posted: list[PostedItems] = []
        self._bytes = 0

    @property
    def last(self) -> int:
        """The number of the last file that was read; 0: none was."""
        return self.posted[-1].number if self.posted else 0

    def read(self) -> bool:
        """Read the files that are new; whether there were any."""
        names = sorted(one.name for one in self.path.iterdir() if NAME.fullmatch(one.name))
        new = [name for name in names if int(name[:8]) > self.last]
        for name in new:
            self.posted.append(self._read_file(name))
        return bool(new)

    def writing(self) -> AbstractContextManager[FileIO]:
        """Context of who writes; others, of any process, wait until it ends."""
        return sole_holder(self.path / ".lock")

    def write(self, new: NewItems) -> int:
        """Keep new items; the number of their file. The caller is in `writing` and has read all."""
        data = packed(new)
        if self._bytes + len(data) > MOST_BYTES or len(self.posted) >= MOST_FILES:
            raise ValueError(
                f"the folder of new items has {self._bytes} bytes in {len(self.posted)} files, and "
                f"{MOST_BYTES} in {MOST_FILES} are the most; write them into an artifact by `shoal "
                "artifact add-items`, serve that, and name an empty folder"
            )
        number = self.last + 1
        name = f"{number:08d}-{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
        replace_durably(self.path / name, data)
        sync_folder(self.path)
        self.posted.append(PostedItems(number, new))
        self._bytes += len(data)
        return number

    def _read_file(self, name: str) -> PostedItems:
        path = self.path / name
        with open_regular(path, links=False) as file:
            data = file.read(MOST_BYTES - self._bytes + 1)
        self._bytes += len(data)
        if self._bytes > MOST_BYTES:
            raise ValueError(f"{self.path} has more than {MOST_BYTES} bytes of new items")
        return PostedItems(int(name[:8]), read_posted(path, data))


def read_posted(path: Path, data: bytes) -> NewItems:
    """The items of a file's bytes; ValueError where they are not what was written."""
    named = NAME.fullmatch(path.name)
    if named is None or hashlib.sha256(data).hexdigest()[:16] != named[2]:
        raise ValueError(
            f"{path} is damaged: its bytes are not those that its name states; bring it back from "
            "a copy, or remove it and post its items again"
        )
    try:
        tensors = parse_tensors(data)
        vectors, ids = tensors["vectors"], _texts(tensors, "ids")
        captions = {role: _texts(tensors, role) for role in ENDINGS if f"{role}.bytes" in tensors}
        if vectors.dim() != 2 or vectors.dtype != torch.float32 or not vectors.numel():
            raise ValueError("its vectors are not [n, width]")
        if any(len(texts) != len(vectors) for texts in (ids, *captions.values())):
            raise ValueError("each item has one id, vector and caption")
    except Exception as error:  # of safetensors and of what is read
        raise ValueError(f"{path} holds no new items: {str(error)[:200]}") from error
    return NewItems(path.name, ids, vectors, captions)


def packed(new: NewItems) -> bytes:
    """The bytes of a file of new items."""
    tensors = {"vectors": new.vectors.float().contiguous()}
    for name, texts in {"ids": new.ids, **new.captions}.items():
        tensors |= {f"{name}.{part}": one for part, one in pack_words(texts).items()}
    return save(tensors)


def _texts(tensors: dict[str, Tensor], name: str) -> Sequence[str]:
    return unpack_words({part: tensors[f"{name}.{part}"] for part in ("bytes", "offsets")}).tolist()

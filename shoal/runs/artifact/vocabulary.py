"""The words of an artifact: the ids that the data has for users, items and values, by number."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from shoal.data.ids import Ids
from shoal.runs.artifact.files import ArtifactError, read_tensors

KINDS = {"int": int, "float": float, "str": str}  # types that ids come back in


def write_words(folder: Path, field: str, words: Iterable[str]) -> None:
    """All words in one run of bytes, and where each begins."""
    parts = [str(word).encode() for word in words]
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    text = np.frombuffer(b"".join(parts), np.uint8).copy()
    tensors = {"bytes": torch.from_numpy(text), "offsets": torch.from_numpy(offsets)}
    save_file(tensors, folder / f"words-{field}.safetensors")


def read_words(folder: Path, manifest: dict[str, Any], field: str, kind: str = "str") -> Ids:
    """The same back; they are decoded when they are needed."""
    found = read_tensors(folder, f"words-{field}.safetensors", manifest, ["bytes", "offsets"])
    text, offsets = found["bytes"].numpy(), found["offsets"].numpy()
    if not (
        text.dtype == np.uint8
        and offsets.dtype == np.int64
        and text.ndim == offsets.ndim == 1
        and len(offsets) >= 2
        and offsets[0] == 0
        and offsets[-1] == len(text)
        and bool((np.diff(offsets) >= 0).all())
        and kind in KINDS
    ):
        raise ArtifactError(f"artifact {folder} is damaged: its words of {field!r}")

    def words() -> np.ndarray:
        data, ends = text.tobytes(), offsets.tolist()
        made = np.empty(len(offsets) - 1, dtype=object)
        made[:] = [data[a:b].decode("utf-8", "replace") for a, b in pairwise(ends)]
        return made

    return Ids(words, KINDS[kind], len(offsets) - 1)

"""Words: the ids that the data has for users or items, by number, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from shoal.runs.artifact.files import ArtifactError, read_tensors


def write_words(folder: Path, field: str, words: Iterable[str]) -> None:
    """All words in one run of bytes, and where each begins."""
    parts = [str(word).encode() for word in words]
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    text = np.frombuffer(b"".join(parts), np.uint8).copy()
    tensors = {"bytes": torch.from_numpy(text), "offsets": torch.from_numpy(offsets)}
    save_file(tensors, folder / f"words-{field}.safetensors")


class Words:
    """Words by number; 0 is padding."""

    def __init__(self, folder: Path, manifest: dict[str, Any], field: str):
        found = read_tensors(folder, f"words-{field}.safetensors", manifest, ["bytes", "offsets"])
        self.field = field
        self._text, self._offsets = found["bytes"].numpy(), found["offsets"].numpy()
        right = self._text.dtype == np.uint8 and self._offsets.dtype == np.int64
        if not (
            right
            and self._text.ndim == self._offsets.ndim == 1
            and len(self._offsets) >= 1
            and self._offsets[0] == 0
            and self._offsets[-1] == len(self._text)
            and bool((np.diff(self._offsets) >= 0).all())
        ):
            raise ArtifactError(f"artifact {folder} is damaged: its words of {field!r}")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @cached_property
    def all(self) -> np.ndarray:
        """Every word, as an array of str."""
        text, ends = self._text.tobytes(), self._offsets.tolist()
        out = np.empty(len(self), dtype=object)
        out[:] = [text[a:b].decode("utf-8", "replace") for a, b in pairwise(ends)]
        return out

    @cached_property
    def _numbers(self) -> dict[str, int]:
        numbers = dict(zip(self.all.tolist(), range(len(self))))
        numbers.pop(self.all[0], None)  # padding is nobody
        return numbers

    def find(self, word: object) -> int | None:
        """The number of a word; None where there is no such word."""
        return self._numbers.get(str(word))

    def numbers(self, words: Sequence[object]) -> np.ndarray:
        """Numbers of words, int64; an unknown one is refused."""
        found = [self._numbers.get(str(word), 0) for word in words]
        if 0 in found:
            word = str(words[found.index(0)])[:80]
            first = ", ".join(self.all[1:4].tolist())
            raise ValueError(
                f"{self.field} {word!r} is not known to this model; it knows {len(self) - 1}, such "
                f"as {first}"
            )
        return np.array(found, dtype=np.int64)

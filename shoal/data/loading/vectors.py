"""Vectors of items or users, aligned with the ids of a data set and checked.

A file's vectors stay where they are, in the file's order; `place` says where the vector of an id
is. What is found wrong is one error before the first step; what is counted is in the log.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.config.vectors_section import VectorsSection
from shoal.data.ids import Ids
from shoal.data.loading.vector_files import VectorFile, read_vector_file

log = logging.getLogger("shoal")
CHUNK_BYTES = 1 << 26  # of vectors that are checked at a time


@dataclass(frozen=True, eq=False)
class Shift:
    """What makes each number of a vector alike: (value - mean) * factor, both [width]."""

    mean: Tensor
    factor: Tensor


@dataclass(frozen=True, eq=False)
class AlignedVectors:
    """The vectors of a data set's items or users, numbers 0 to n - 1.

    The vector of id i is values[place[i]], shifted, times scale[i]; a scale of 0: it has none.
    """

    values: Tensor  # [rows of the file, width], as they are stored
    place: Tensor  # int64 [n + 1]; the last is of a number behind all ids, which has none
    scale: Tensor  # float32 [n + 1]
    shift: Shift | None  # of `standard`
    length: float  # the mean length of those that there are, squared and rooted
    with_rows: bool  # whether a row is added
    digest: str  # of what must be the same for a checkpoint to fit

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.values.shape[1]


def read_vectors(
    section: VectorsSection, id_column: str, ids: Ids, noun: str
) -> AlignedVectors | None:
    """The vectors that a section of the config names; None: it names none.

    id_column: the column of ids in a table; noun: item or user, for keys and messages.
    """
    key = f"data.{noun}_vectors"
    if section.file is None:
        extra_keys = [name for name in ("ids", "column") if getattr(section, name) is not None]
        if extra_keys:
            raise ValueError(f"{key}.{extra_keys[0]}: there is no {key}.file; name one")
        return None
    try:
        file = read_vector_file(section.file, id_column, section.ids, section.column)
        numbers = ids.find(file.ids)
        _refuse_strangers(file, numbers, noun)
        content = examine(file)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
    kept = np.flatnonzero(numbers)
    place = torch.zeros(len(ids) + 1, dtype=torch.int64)
    scale = torch.zeros(len(ids) + 1)
    place[numbers[kept]] = torch.from_numpy(kept)
    lengths, shift = content.lengths, None
    present = lengths > 0
    if section.normalise == "unit":
        of_file = torch.where(present, 1.0 / lengths.clamp(min=1e-30), 0.0)
        length = 1.0
    else:
        of_file = present.float()
        length = float(lengths.square().mean().sqrt())
    if section.normalise == "standard":
        shift = content.shift()
        length = float((shift.factor > 0).sum()) ** 0.5
    scale[numbers[kept]] = of_file[kept]
    _report(key, section, file, numbers, scale, int((~present).sum()), noun)
    digest = hashlib.sha256(content.digest)
    digest.update(place.numpy().tobytes())
    digest.update(f"{section.normalise} {section.rows}".encode())
    return AlignedVectors(
        values=file.values,
        place=place,
        scale=scale,
        shift=shift,
        length=length,
        with_rows=section.rows == "add",
        digest=digest.hexdigest(),
    )


def _refuse_strangers(file: VectorFile, numbers: np.ndarray, noun: str) -> None:
    """Refuse a file that knows none of the ids, or one of them under two names (7 and 7.0)."""
    in_data = numbers[numbers > 0]
    if not len(in_data):
        raise ValueError(
            f"none of the {len(numbers)} ids of {file.path} is a {noun} of the data, such as "
            f"{file.ids[0][:80]!r}; write the ids as the data has them"
        )
    counts = np.bincount(in_data)
    if counts.max() > 1:
        twice = np.flatnonzero(numbers == counts.argmax())[:2]
        first, second = (file.ids[int(k)][:80] for k in twice)
        raise ValueError(
            f"{file.path}: the ids {first!r} and {second!r} are one {noun}; leave one of them"
        )


def _report(
    key: str,
    section: VectorsSection,
    file: VectorFile,
    numbers: np.ndarray,
    scale: Tensor,
    zeros: int,
    noun: str,
) -> None:
    """Log what the file has, and what it lacks."""
    total, having = len(scale) - 2, int((scale > 0).sum())
    kind = str(file.values.dtype).removeprefix("torch.")
    log.info(
        "%s: %d of %d %ss have a vector of %d numbers (%s, normalise: %s)",
        key,
        having,
        total,
        noun,
        file.width,
        kind,
        section.normalise,
    )
    unknown = int((numbers == 0).sum())
    if unknown:
        log.info("%s: %d ids of the file are no %ss of the data; not read", key, unknown, noun)
    if having < total:
        log.warning(
            "%s: %d of %d %ss have no vector, or one of zeros; it reads as zeros",
            key,
            total - having,
            total,
            noun,
        )
    if zeros:
        log.warning("%s: %d vectors of the file are zeros", key, zeros)


# ---- what all vectors of a file are like --------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Content:
    """What one pass over a file finds."""

    lengths: Tensor  # of its vectors [n]
    mean: Tensor  # of each number [width], in 64 bits
    variance: Tensor
    digest: bytes

    def shift(self) -> Shift:
        """What `standard` does; a number that is the same in all vectors becomes 0."""
        varies = self.variance > 1e-12 * self.mean.square()
        factor = torch.where(varies, self.variance.clamp(min=1e-60).rsqrt(), 0.0)
        return Shift(self.mean.float(), factor.float())


def examine(file: VectorFile) -> Content:
    """Read all vectors once; refuse what is no number."""
    values, digest = file.values, hashlib.sha256()
    step = max(1, CHUNK_BYTES // (8 * file.width))
    lengths = []
    total = torch.zeros(file.width, dtype=torch.float64)
    squares = torch.zeros(file.width, dtype=torch.float64)
    center = values[0].double()  # sums of squares lose nothing then where means are large
    for first in range(0, len(values), step):
        part = values[first : first + step]
        digest.update(part.contiguous().view(torch.uint8).numpy().tobytes())
        numbers = part.float()
        finite = numbers.isfinite().all(1)
        if not bool(finite.all()):
            odd = file.ids[first + int(finite.int().argmin())][:80]
            raise ValueError(
                f"{file.path}: the vector of {odd!r} has numbers that are NaN, infinite or beyond "
                "32 bits; leave it out, or fill them"
            )
        lengths.append(torch.linalg.vector_norm(numbers, dim=1))
        apart = part.double() - center
        total += apart.sum(0)
        squares += apart.square().sum(0)
    mean = total / len(values)
    variance = (squares / len(values) - mean.square()).clamp(min=0)
    return Content(torch.cat(lengths), mean + center, variance, digest.digest())

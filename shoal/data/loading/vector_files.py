"""Files of vectors: ids and a vector for each, in four formats.

    NAME.npy             [n, width]; NAME.txt beside it has the ids, one in a line
    NAME.npz             arrays `ids` [n] and `vectors` [n, width]
    NAME.safetensors     a tensor `vectors` [n, width]; ids as of .npy
    NAME.parquet, .arrow a column of lists of numbers, and the column of the ids

Arrays of .npy and .safetensors are mapped: they stay on disk until they are read, and all processes
of a host share what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from shoal.data import arrow_counts, parquet_counts
from shoal.data.bounded_files import check_expansion
from shoal.data.ids import word_of
from shoal.data.sources.columnar import read_by_polars
from shoal.files.durable import open_regular

if TYPE_CHECKING:
    import polars as pl

MOST_ID_BYTES = 1 << 32  # of a file of ids
ARROW = (".arrow", ".feather", ".ipc")


@dataclass(frozen=True, eq=False)
class VectorFile:
    """Vectors [n, width] as they are stored, and the id of each [n]."""

    path: Path
    ids: list[str]
    values: Tensor

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.values.shape[1]


def read_vector_file(
    path: str | Path, id_column: str, ids: str | None = None, column: str | None = None
) -> VectorFile:
    """Read vectors and their ids; what cannot be vectors is refused.

    ids: the file of ids (.npy, .safetensors), None: beside it; column: of vectors (Parquet, Arrow);
    id_column: there the column of the ids.
    """
    place = Path(path)
    ending = place.suffix.lower()
    is_table = ending == ".parquet" or ending in ARROW
    readers = {".npy": _npy, ".safetensors": _safetensors}
    if ending not in readers and ending != ".npz" and not is_table:
        raise ValueError(
            f"{path}: vectors are in .npy, .npz, .safetensors, .parquet or .arrow files; write one"
        )
    if not place.is_file():
        raise ValueError(f"there is no file {path} of vectors")
    if column is not None and not is_table:
        raise ValueError(f"{path} has no columns; leave out the column {column!r}")
    if ids is not None and ending not in readers:
        raise ValueError(f"{path} has the ids of its vectors itself; leave out {ids}")
    if is_table:
        words, values = _table(place, id_column, column)
    elif ending == ".npz":
        words, values = _npz(place)
    else:
        values = readers[ending](place)
        words = _id_lines(place, ids)
    return _checked(VectorFile(place, words, values))


def _checked(file: VectorFile) -> VectorFile:
    """The file, if it has a vector for each id and each id once."""
    path, values, words = file.path, file.values, file.ids
    if values.dim() != 2 or not values.numel():
        raise ValueError(f"{path}: vectors are [n, width], and these are {list(values.shape)}")
    if values.is_complex() or values.is_quantized:
        raise ValueError(f"{path}: vectors are of real numbers, and these are {values.dtype}")
    if len(words) != len(values):
        raise ValueError(f"{path} has {len(values)} vectors, and there are {len(words)} ids")
    if len(set(words)) < len(words):
        seen: set[str] = set()
        twice = next(word for word in words if word in seen or seen.add(word))  # type: ignore[func-returns-value]
        raise ValueError(f"{path} has the id {twice[:80]!r} more than once; leave one vector of it")
    return file


# ---- formats ------------------------------------------------------------------------------------


def _npy(path: Path) -> Tensor:
    try:
        with open_regular(path) as opened:
            np.lib.format.read_magic(opened)  # an archive of arrays (.npz) has another
        array = np.load(path, mmap_mode="c", allow_pickle=False)  # c: as torch wants it, writable
    except Exception as error:  # numpy raises many kinds, down to those of a tokenizer
        raise ValueError(f"{path} cannot be read as .npy: {str(error)[:200]}") from error
    return _as_tensor(path, array)


def _npz(path: Path) -> tuple[list[str], Tensor]:
    try:
        with ZipFile(path) as archive:
            content = sum(one.file_size for one in archive.infolist())
        check_expansion(path, path.stat().st_size, content, "its arrays")
        with np.load(path, allow_pickle=False) as arrays:
            names = set(arrays.files)
            ids, vectors = (arrays[name] if name in names else None for name in ("ids", "vectors"))
    except Exception as error:  # of the archive and of numpy
        raise ValueError(f"{path} cannot be read as .npz: {str(error)[:200]}") from error
    if ids is None or vectors is None or ids.ndim != 1 or ids.dtype.kind not in "iufUS":
        raise ValueError(
            f"{path} must have an array 'vectors' [n, width] and an array 'ids' [n] of texts or "
            f"numbers; it has {', '.join(sorted(names))[:80] or 'none'}"
        )
    if ids.dtype.kind == "S":
        words = [bytes(one).decode(errors="replace") for one in ids]
    else:
        words = list(map(word_of, ids.tolist()))
    return words, _as_tensor(path, vectors)


def _safetensors(path: Path) -> Tensor:
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            return file.get_tensor("vectors" if "vectors" in names or not names else names[0])
    except Exception as error:  # of its own kind, and of the file
        raise ValueError(f"{path} cannot be read as .safetensors: {str(error)[:200]}") from error


def _table(path: Path, id_column: str, column: str | None) -> tuple[list[str], Tensor]:
    """Ids and vectors of two columns; a row with an empty cell has no vector."""
    import polars as pl

    if column is None:
        raise ValueError(f"{path} has columns: name the one of the vectors (column)")
    frame = _frame(path, id_column, column)
    kind = frame.schema[column]
    if isinstance(kind, pl.Array):
        frame = frame.with_columns(pl.col(column).arr.to_list())
        kind = frame.schema[column]
    if not isinstance(kind, pl.List) or not isinstance(kind.inner, pl.DataType):
        raise ValueError(f"{path}: column {column!r} is {kind}, not lists of numbers")
    if not kind.inner.is_numeric() or kind.inner.is_decimal():
        raise ValueError(f"{path}: column {column!r} has lists of {kind.inner}, not of numbers")
    frame = frame.drop_nulls()
    words = list(map(word_of, frame[id_column].to_list()))
    lengths = frame[column].list.len().to_numpy()
    if len(frame) and (lengths != lengths[0]).any():
        odd = int((lengths != lengths[0]).argmax())
        raise ValueError(
            f"{path}: the vector of {words[odd][:80]!r} has {lengths[odd]} numbers and that of "
            f"{words[0][:80]!r} has {lengths[0]}; all must have as many"
        )
    flat = frame[column].explode()
    if flat.null_count():
        raise ValueError(f"{path}: column {column!r} has vectors with empty numbers; fill them")
    return words, _as_tensor(path, flat.to_numpy().reshape(len(frame), -1).copy())


def _frame(path: Path, id_column: str, column: str) -> pl.DataFrame:
    import polars as pl

    columns = [id_column, column]
    read: Callable[[], pl.DataFrame]
    if path.suffix.lower() == ".parquet":
        name = "Parquet"
        parquet_counts.check_counts(path)
        schema = read_by_polars(path, name, lambda: pl.read_parquet_schema(path))
        read = pl.scan_parquet(path, hive_partitioning=False).select(columns).collect
    else:
        name = "Arrow"
        arrow_counts.check_content(path)

        def whole() -> pl.DataFrame:
            data = path.read_bytes()
            return pl.read_ipc(data) if data.startswith(b"ARROW1") else pl.read_ipc_stream(data)

        frame = read_by_polars(path, name, whole)
        schema, read = dict(frame.schema), lambda: frame.select(columns)
    for wanted in columns:
        if wanted not in schema:
            raise ValueError(f"{path} has no column {wanted!r}; it has {', '.join(schema)[:200]}")
    if name == "Parquet":
        parquet_counts.check_content(path, columns)
    return read_by_polars(path, name, read)


def _as_tensor(path: Path, array: np.ndarray) -> Tensor:
    """The array as a tensor over the same memory."""
    numbers = array.dtype.kind in "fib" or array.dtype == np.uint8
    if not numbers or not array.dtype.isnative or array.dtype.itemsize > 8:
        raise ValueError(
            f"{path}: vectors are numbers such as float16, float32 or uint8, not {array.dtype}"
        )
    return torch.from_numpy(array)


def _id_lines(path: Path, ids: str | None) -> list[str]:
    """The ids of a file of lines."""
    place = path.with_suffix(".txt") if ids is None else Path(ids)
    try:
        with open_regular(place) as file:
            text = file.read(MOST_ID_BYTES).decode()
    except FileNotFoundError as error:
        raise ValueError(
            f"{path} needs a file of ids, one in a line, in the order of its vectors; there is no "
            f"{place}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{place} cannot be read as lines of ids: {error}") from error
    lines: Sequence[str] = text.splitlines()
    return [line.strip() for line in lines]

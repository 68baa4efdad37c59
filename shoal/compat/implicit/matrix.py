"""Matrices of users and items: checked, and trained on: through shoal.fit, or solved directly."""

import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

from shoal.data.bounded_files import EXPANSION, most_bytes
from shoal.runs.fit import Fitted, ItemVectors, fit

NONE = np.finfo(np.float32).min  # the score of a place that no item is left for


def checked(matrix: Any, what: str = "user_items") -> sparse.csr_matrix:
    """A matrix of users and items as csr: entries are above 0 and finite, and none comes twice.

    Entries of one place are added up, those of 0 are left out, as sparse matrices read them.
    """
    if not sparse.issparse(matrix):
        raise ValueError(
            f"{what} is a {type(matrix).__name__}; give a sparse matrix, such as "
            f"scipy.sparse.csr_matrix({what}): users are rows, items are columns"
        )
    found = sparse.csr_matrix(matrix, dtype=np.float32, copy=True)
    found.sum_duplicates()
    found.eliminate_zeros()
    if not np.isfinite(found.data).all():
        raise ValueError(f"{what} has values that are not finite (nan, inf); leave them out")
    if (found.data < 0).any():
        raise ValueError(
            f"{what} has values below 0: Shoal's models read what was taken, not what was "
            "disliked; leave these entries out"
        )
    return found


def rows_for(matrix: Any, count: int, num_items: int, what: str = "user_items") -> Any:
    """A matrix with a row for each of `count` users, and a column for each item."""
    found = checked(matrix, what)
    if found.shape[1] != num_items:
        turned = "; it is transposed: give its .T.tocsr()" if found.shape[0] == num_items else ""
        raise ValueError(
            f"{what} has {found.shape[1]} columns, and the model knows {num_items} items{turned}"
        )
    if found.shape[0] != count:
        raise ValueError(
            f"{what} has {found.shape[0]} rows for {count} users; give one row for each, such as "
            f"{what}[userid]"
        )
    return found


def numbers(given: Any, count: int, what: str) -> np.ndarray:
    """Ids of users or items [n]: whole numbers that the model knows, `count` of them."""
    found = np.atleast_1d(np.asarray(given))
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ValueError(
            f"{what} are {found.dtype} of shape {list(found.shape)}; give whole numbers, the rows "
            "or columns of the matrix"
        )
    outside = found[(found < 0) | (found >= count)]
    if outside.size:
        raise IndexError(f"{what}: {outside[0]} is not in the model, which knows 0 to {count - 1}")
    return found.astype(np.int64)


def refuse(model: str, **given: tuple[Any, Any, str]) -> None:
    """Refuse arguments that are not honoured; by name: what was given, what alone can be, why."""
    for name, (value, only, why) in given.items():
        if value != only:
            raise ValueError(f"{model}({name}={value!r}): {why}; leave it out")


def positive(**given: int) -> None:
    """Refuse what is not a whole number above 0."""
    for name, value in given.items():
        if not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a whole number, 1 or more")


def generator(random_state: Any) -> np.random.Generator:
    """The generator that implicit makes of a seed; None: another one every time."""
    if isinstance(random_state, np.random.RandomState):
        random_state = int(random_state.randint(2**31 - 1))
    return np.random.default_rng(random_state)


def seed_of(random_state: Any) -> int:
    """A seed of Shoal, of what numpy takes for one; None: another one every time."""
    return int(generator(random_state).integers(2**31 - 1))


def refuse_empty(matrix: sparse.csr_matrix) -> None:
    """Refuse a matrix without entries."""
    if not matrix.nnz:
        raise ValueError("the matrix has no entries above 0: there is nothing to learn from")


@contextmanager
def torch_threads(num_threads: int) -> Iterator[None]:
    """Compute with so many threads in a block; 0: as many as torch has."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def trained(
    model: str, matrix: sparse.csr_matrix, random_state: Any, num_threads: int, **config: Any
) -> Iterator[Fitted]:
    """A model trained on all entries of a matrix; its folder lasts as long as the block, unless
    run.output names one.
    """
    refuse_empty(matrix)
    entries = matrix.tocoo()
    frame = {"user": entries.row, "item": entries.col, "value": entries.data}
    keys: dict[str, Any] = {"data.split.ratio": [1, 0, 0], "train.eval_every": 0}
    if num_threads:
        keys["run.threads"] = num_threads
    with tempfile.TemporaryDirectory() as folder:
        keys |= {"run.seed": seed_of(random_state), "run.output": str(Path(folder, "run"))}
        keys |= config
        yield fit(model, frame, user="user", item="item", **keys)


def read_arrays(file: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays of numbers of a file (.npz) that `save` of a model wrote; nothing is unpickled.

    Whoever wrote it: its arrays are at most so many times as large as the file.
    """
    if isinstance(file, str | Path) and Path(file).suffix != ".npz":
        file = f"{file}.npz"  # as numpy names it when it writes
    try:
        with zipfile.ZipFile(file) as archive:
            assert archive.fp is not None
            most = most_bytes(archive.fp.seek(0, 2))
            content = sum(member.file_size for member in archive.infolist())
            if content > most:
                raise ValueError(
                    f"its arrays have {content:,} bytes; at most {most:,} are read, {EXPANSION} "
                    "times the file or 64 MiB"
                )
            return {name: _read_array(archive, f"{name}.npy") for name in names}
    except OSError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds, down to those of a tokenizer
        raise ValueError(f"{file} is no file that `save` of such a model wrote: {error}") from error


def _read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(name) as member:
        try:
            array = np.lib.format.read_array(member, allow_pickle=False)
        except MemoryError as error:  # its head states more numbers than any machine can hold
            raise ValueError(f"{name}: {error}") from None
    if array.dtype.kind not in "iufb" or (array.dtype.kind == "f" and not np.isfinite(array).all()):
        raise ValueError(f"{name} holds something else than finite numbers")
    return array


def by_number(vectors: ItemVectors, count: int) -> np.ndarray:
    """Vectors in the order of the matrix: [count, dim], 0 of who has no entry."""
    found = np.zeros((count, vectors.vectors.shape[1]), np.float32)
    found[vectors.ids] = vectors.vectors
    return found


def shown(items: np.ndarray, scores: np.ndarray, topk: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists [b, topk] in implicit's types; where no item is left -1 and the lowest score."""
    missing = topk - items.shape[1]
    if missing > 0:
        items = np.pad(items, ((0, 0), (0, missing)))
        scores = np.pad(scores, ((0, 0), (0, missing)), constant_values=-np.inf)
    none = np.isneginf(scores)
    return np.where(none, -1, items).astype(np.int32), np.where(none, NONE, scores)


def first(found: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Of one user: the list without places that no item is left for."""
    items, scores = found[0][0], found[1][0]
    return items[items >= 0], scores[items >= 0]

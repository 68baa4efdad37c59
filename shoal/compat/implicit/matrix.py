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


def as_csr(matrix: Any, what: str, hint: str = "") -> sparse.csr_matrix:
    """A copy of a sparse matrix as csr, float32: finite entries, of one place added up, none of 0.

    what: how errors name the matrix; hint: the end of the error for what is no sparse matrix.
    """
    if not sparse.issparse(matrix):
        raise ValueError(
            f"{what} is a {type(matrix).__name__}; give a sparse matrix, such as "
            f"scipy.sparse.csr_matrix({what}){hint}"
        )
    check_sparse(matrix, what)
    csr = sparse.csr_matrix(matrix, dtype=np.float32, copy=True)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    if not np.isfinite(csr.data).all():
        raise ValueError(f"{what} has values that are not finite (nan, inf); leave them out")
    return csr


def check_sparse(matrix: Any, what: str) -> None:
    """Refuse a sparse matrix with places outside of it, or with numbers that are not real.

    scipy's native code reads and writes by these places without a look: one that is changed or
    damaged ends the interpreter.
    """
    if matrix.dtype.kind not in "biuf":
        raise ValueError(f"{what} holds {matrix.dtype}; give real numbers")
    try:
        if matrix.format in ("csr", "csc", "bsr"):
            matrix.check_format(full_check=True)
        elif matrix.format == "coo":  # its maker compares them with the shape
            type(matrix)((matrix.data, matrix.coords), shape=matrix.shape)
    except ValueError as error:
        raise ValueError(f"{what} is damaged: {error}; build it anew") from None


def checked(matrix: Any, what: str = "user_items") -> sparse.csr_matrix:
    """A matrix of users and items as csr: entries are above 0 and finite, and none comes twice.

    Entries of one place are added up, those of 0 are left out, as sparse matrices read them.
    """
    csr = as_csr(matrix, what, ": users are rows, items are columns")
    if (csr.data < 0).any():
        raise ValueError(
            f"{what} has values below 0: Shoal's models read what was taken, not what was "
            "disliked; leave these entries out"
        )
    return csr


def rows_for(matrix: Any, count: int, num_items: int, what: str = "user_items") -> Any:
    """A matrix with a row for each of `count` users, and a column for each item."""
    rows = checked(matrix, what)
    if rows.shape[1] != num_items:
        turned = "; it is transposed: give its .T.tocsr()" if rows.shape[0] == num_items else ""
        raise ValueError(
            f"{what} has {rows.shape[1]} columns, and the model knows {num_items} items{turned}"
        )
    if rows.shape[0] != count:
        raise ValueError(
            f"{what} has {rows.shape[0]} rows for {count} users; give one row for each, such as "
            f"{what}[userid]"
        )
    return rows


def numbers(ids: Any, count: int, what: str) -> np.ndarray:
    """Ids of users or items [n]: whole numbers that the model knows, `count` of them."""
    array = np.atleast_1d(np.asarray(ids))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"{what} are {array.dtype} of shape {list(array.shape)}; give whole numbers, the rows "
            "or columns of the matrix"
        )
    outside = array[(array < 0) | (array >= count)]
    if outside.size:
        raise IndexError(f"{what}: {outside[0]} is not in the model, which knows 0 to {count - 1}")
    return array.astype(np.int64)


def refuse(model: str, **arguments: tuple[Any, Any, str]) -> None:
    """Refuse arguments that are not honoured; by name: what was given, what alone can be, why."""
    for name, (value, only, why) in arguments.items():
        if value != only:
            raise ValueError(f"{model}({name}={value!r}): {why}; leave it out")


def positive(**arguments: int) -> None:
    """Refuse what is not a whole number above 0."""
    for name, value in arguments.items():
        if not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a whole number, 1 or more")


def finite(least: float = 0.0, **arguments: Any) -> None:
    """Refuse what is not a finite number, `least` or more."""
    for name, value in arguments.items():
        is_number = isinstance(value, float | int | np.floating | np.integer)
        if not is_number or not least <= value < np.inf:
            raise ValueError(f"{name} is {value!r}; it must be a finite number, {least:g} or more")


def generator(random_state: Any) -> np.random.Generator:
    """The generator that implicit makes of a seed; None: another one every time."""
    if isinstance(random_state, np.random.RandomState):
        random_state = int(random_state.randint(2**31 - 1))
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError):
        raise ValueError(
            f"random_state is {random_state!r}; give a whole number, 0 or more, or a generator of "
            "numpy"
        ) from None


def seed_of(random_state: Any) -> int:
    """A seed of Shoal, of what numpy takes for one; None: another one every time."""
    return int(generator(random_state).integers(2**31 - 1))


def refuse_empty(matrix: sparse.csr_matrix) -> None:
    """Refuse a matrix without entries."""
    if not matrix.nnz:
        raise ValueError("the matrix has no entries above 0: there is nothing to learn from")


def refuse_full_rows(matrix: sparse.csr_matrix, what: str) -> None:
    """Refuse users who took every item: there is no other one to learn against."""
    num_items = len(np.unique(matrix.indices))
    full = np.flatnonzero(np.diff(matrix.indptr) == num_items)
    if len(full):
        raise ValueError(
            f"user {full[0]} of {what} has all {num_items} items that anybody has, so that there "
            "is no other item to learn against; leave out such users, or add items"
        )


@contextmanager
def torch_threads(num_threads: int) -> Iterator[None]:
    """Compute with so many threads in a block; 0: as many as torch has."""
    finite(num_threads=num_threads)
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
    finite(num_threads=num_threads)
    if config.get("train.negatives", True) is not None:
        refuse_full_rows(matrix, "the matrix")
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
    ordered = np.zeros((count, vectors.vectors.shape[1]), np.float32)
    ordered[vectors.ids] = vectors.vectors
    return ordered


def shown(items: np.ndarray, scores: np.ndarray, topk: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists [b, topk] in implicit's types; where no item is left -1 and the lowest score."""
    missing = topk - items.shape[1]
    if missing > 0:
        items = np.pad(items, ((0, 0), (0, missing)))
        scores = np.pad(scores, ((0, 0), (0, missing)), constant_values=-np.inf)
    none = np.isneginf(scores)
    return np.where(none, -1, items).astype(np.int32), np.where(none, NONE, scores)


def check_filters(items: Any, filter_items: Any) -> None:
    """Refuse to show no items, or to show some alone and to leave out others besides."""
    if items is not None and not np.size(items):
        raise ValueError("items is empty; name those to choose from, or leave it out")
    if items is not None and filter_items is not None:
        raise ValueError("give items or filter_items, one of them: the rest is left out either way")


def first(lists: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The list of the only user, without places that no item is left for."""
    items, scores = lists[0][0], lists[1][0]
    return items[items >= 0], scores[items >= 0]

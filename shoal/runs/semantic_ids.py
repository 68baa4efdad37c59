"""Codes for a catalogue: semantic ids of items by their vectors, made once and then appended to."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.config.schema import Config
from shoal.data.dataset import Dataset, Ragged
from shoal.data.features import Feature
from shoal.data.fingerprint import VERSION_LETTERS
from shoal.data.ids import Ids
from shoal.data.item_codes import (
    ItemCodes,
    Making,
    appended,
    distinguished,
    neighbours_kept,
    quality,
    read_codes,
    write_codes,
)
from shoal.data.loading.vector_files import VectorFile, read_vector_file
from shoal.models.nn.codebooks import Codebooks, Method, learn_codebooks
from shoal.models.nn.semantic_ids import item_vectors
from shoal.runs.build import describe_items

log = logging.getLogger("shoal")
WIDTH = 64  # of vectors that are made of interactions or of several features
VECTORS, MODEL = "vectors", "model"  # what codes are made of, besides interactions and features
UNKNOWN_OF_NEW = ("interactions", "features")  # a new item has no vector of these


def make_codes(
    items: Ids,
    vectors: Tensor,
    to: str | Path,
    levels: int = 3,
    size: int = 256,
    steps: int = 300,
    method: Method = "rqvae",
    seed: int = 42,
    of: str = VECTORS,
) -> dict[str, Any]:
    """Write codes of items by their vectors [num_items, width]; what can be said of them.

    The last code distinguishes items that share the others; `quality` is about the others.
    """
    if not len(vectors[1:]):
        raise ValueError("there are no items to make codes of")
    rows = _numbers(vectors[1:])
    torch.manual_seed(seed)
    codebooks, codes = learn_codebooks(rows, levels, size, steps, method)
    kept = codebooks.kept(rows, codes)
    whole = distinguished(codes)
    values = max(size, int(whole.max()) + 1)  # that a code may have, the last one too
    words = map(str, items.words[1:])
    item_codes = ItemCodes(
        dict(zip(words, whole.tolist())), Making(method, of, values, kept, codebooks.tensors)
    )
    write_codes(to, item_codes)
    neighbours = neighbours_kept(codebooks.scaled(rows), codes).tolist()
    version = item_codes.version()
    return {
        **quality(codes),
        "size": size,
        "kept": kept,
        "neighbours": neighbours,
        "version": version,
    }


def append_codes(
    file: str | Path,
    vectors: str | Path,
    to: str | Path,
    id_column: str,
    ids: str | None = None,
    column: str | None = None,
) -> dict[str, Any]:
    """Write the codes of a file, and behind them those of items that it lacks, by its codebooks.

    vectors, ids, column: a file of vectors as data.item_vectors reads it. Figures of all items, and
    of those before.
    """
    before = read_codes(file)
    codebooks, making = _codebooks_of(file, before)
    new, num_known = _new_items(read_vector_file(vectors, id_column, ids, column), before, file)
    if new.width != codebooks.width:
        raise ValueError(
            f"{new.path} has vectors of {new.width} numbers, and the codes of {file} were made of "
            f"{codebooks.width}; give vectors of the same encoder"
        )
    rows = _numbers(new.values)
    codes = codebooks.codes(rows)
    choices = _choices(codebooks, rows, codes, before, making.size)
    after = ItemCodes(appended(before.codes, new.ids, choices, making.size), making)
    write_codes(to, after)
    taken = torch.tensor([after.codes[item][:-1] for item in new.ids])
    return {
        **_quality(after),
        "before": _quality(before),
        "added": len(new.ids),
        "known": num_known,
        "kept": codebooks.kept(rows, taken),
        "kept_before": making.kept,
    }


def _quality(item_codes: ItemCodes) -> dict[str, Any]:
    """Figures of made codes without their last one, and the version."""
    codes = torch.tensor(list(item_codes.codes.values()))[:, :-1]
    return {**quality(codes), "version": item_codes.version()}


def _codebooks_of(file: str | Path, item_codes: ItemCodes) -> tuple[Codebooks, Making]:
    """The codebooks of a file of codes, where new items can have vectors for them."""
    making = item_codes.making
    if making is None:
        raise ValueError(
            f"{file} was written by hand or by an older version: it has no codebooks, so nothing "
            "says which codes a new item has; write them, or make codes with `shoal codes make`"
        )
    if making.of in UNKNOWN_OF_NEW:
        raise ValueError(
            f"the codes of {file} were made of {making.of}, of which a new item has no vector; "
            "make codes of vectors: shoal codes make VECTORS.npy --to FILE.json"
        )
    try:
        codebooks = Codebooks.of(making.tensors)
    except ValueError as error:
        raise ValueError(f"{file}: {error}; make codes with `shoal codes make`") from error
    levels, width = len(codebooks.books), len(next(iter(item_codes.codes.values())))
    if levels + 1 != width:
        raise ValueError(f"{file} has {levels} codebooks, and its items {width} codes")
    return codebooks, making


def _new_items(vectors: VectorFile, before: ItemCodes, file: str | Path) -> tuple[VectorFile, int]:
    """The vectors of items that have no codes yet, and how many of the file have some."""
    numbers = Ids(["", *before.codes]).find(vectors.ids)
    new = [place for place, number in enumerate(numbers.tolist()) if not number]
    if not new:
        raise ValueError(f"all {len(numbers)} items of {vectors.path} have codes in {file} already")
    part = VectorFile(vectors.path, [vectors.ids[k] for k in new], vectors.values[new])
    return part, len(numbers) - len(new)


def _choices(
    codebooks: Codebooks, rows: Tensor, codes: Tensor, before: ItemCodes, size: int
) -> Iterator[Tensor]:
    """Yield the codes of each item; also the next best, where the last ones might be taken."""
    groups: dict[tuple[int, ...], int] = {}
    for *first, _ in before.codes.values():
        groups[tuple(first)] = groups.get(tuple(first), 0) + 1
    for row, own in zip(rows.split(1), codes):
        place = tuple(own.tolist())
        groups[place] = groups.get(place, 0) + 1
        if groups[place] <= size:
            yield own.unsqueeze(0)
            continue
        book = codebooks.books[-1]
        rest = codebooks.rests(row, own[:-1].unsqueeze(0))
        order = (book - rest).square().sum(1).argsort(stable=True)
        yield torch.cat([own[:-1].expand(len(order), -1), order.unsqueeze(1)], 1)


def _numbers(vectors: Tensor) -> Tensor:
    """Vectors as 32 bits; refuses those that are no numbers."""
    rows = vectors.float()
    odd = int((~rows.isfinite().all(1)).sum())
    if odd:
        raise ValueError(
            f"{odd} of {len(rows)} items have a vector with values that are no numbers (NaN or "
            "infinite); codes need finite ones"
        )
    return rows


def vectors_of_file(
    file: str | Path, id_column: str, ids: str | None = None, column: str | None = None
) -> tuple[Ids, Tensor]:
    """The items of a file of vectors, and their vectors, behind that of the padding."""
    read = read_vector_file(file, id_column, ids, column)
    padding = torch.zeros(1, read.width)
    return Ids(["[PAD]", *read.ids]), torch.cat([padding, read.values.float()])


def vectors_of_data(config: Config, source: str) -> tuple[Ids, Tensor, str]:
    """Items of a config's data, their vectors, and what these are (`Making.of`).

    source: what vectors are made of: interactions, features, or the name of a feature.
    """
    dataset, facts = describe_items(config, source != "interactions")
    of = source if source in UNKNOWN_OF_NEW else "features"
    for feature in facts.of_side("item"):
        if feature.name == source and feature.width > 1:
            items = Ids(dataset.vocab[dataset.item_field])
            return items, _column_of_vectors(dataset, feature), VECTORS
        if feature.name == source and feature.width == 1:
            log.warning(
                "%s is read as %s, not as vectors: items with equal values are alike; if it holds "
                "N numbers, set --data.features='{%s: {kind: numbers, length: N, side: item}}'",
                source,
                feature.kind,
                source,
            )
    torch.manual_seed(config.run.seed)
    items = Ids(dataset.vocab[dataset.item_field])
    return items, item_vectors(facts, source, WIDTH), of


def _column_of_vectors(dataset: Dataset, feature: Feature) -> Tensor:
    """The vectors of a column as it has them, zeros for items without: [num_items, width]."""
    column = dataset.items[feature.column]
    assert isinstance(column, Ragged)
    lengths = np.diff(column.offsets)
    vectors = torch.zeros(len(lengths), feature.width)
    whole = torch.from_numpy(lengths == feature.width)
    values = np.asarray(column.values)[np.repeat(whole.numpy(), lengths)]
    vectors[whole] = torch.from_numpy(values.astype(np.float32)).view(-1, feature.width)
    return vectors


def short(version: str) -> str:
    """A version as people read it."""
    return version[:VERSION_LETTERS]

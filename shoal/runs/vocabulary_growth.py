"""Growth: vocabularies that grow from day to day. Known ids keep their numbers, new ones follow.

A run leaves its vocabularies in its folder (vocabulary.safetensors). A run that goes on from it
numbers its data by them, so that rows, which are keyed by number, stay those of their ids. It also
leaves who took what (taken.safetensors), with what the run before left: new data may hold new
interactions alone, and what somebody took on an earlier day is not recommended again.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save
from torch import Tensor

from shoal.data.dataset import Columns, Dataset, Ragged, Split
from shoal.data.features import Feature
from shoal.data.raw_columns import gather
from shoal.data.sampler import distinct
from shoal.data.vocabulary import pack_words, unpack_words
from shoal.files.durable import open_regular, replace_durably
from shoal.kernels.topk import Pairs

log = logging.getLogger("shoal")
FILE = "vocabulary.safetensors"
TAKEN = "taken.safetensors"
MOST_TAKEN = 1 << 27  # interactions: a file of 1 GiB
ALL: tuple[Split, ...] = ("train", "valid", "test")


def save_vocabularies(folder: Path, dataset: Dataset) -> None:
    """Leave the words of every field in a run's folder."""
    packed = {field: pack_words(words) for field, words in dataset.vocab.items()}
    tensors = {f"{field}/{k}": one for field, parts in packed.items() for k, one in parts.items()}
    replace_durably(folder / FILE, save(tensors))


def save_taken(folder: Path, dataset: Dataset, before: str | None) -> None:
    """Leave in a run's folder who took what: in its data, and in the run before.

    For very large data no file is written; a run that goes on from this one logs that.
    """
    if sum(map(len, dataset.splits.values())) > MOST_TAKEN:
        return
    users = np.concatenate([dataset.user_ids(split) for split in ALL])
    items = np.concatenate([dataset.item_ids(split) for split in ALL])
    if before is not None:
        earlier = read_taken(Path(before), dataset)
        if earlier is None:
            log.warning(
                "%s does not say who took what (it has more than %d interactions, or an older "
                "version made it): what users took there is not left out of recommendations; give "
                "data that holds the earlier rows too",
                before,
                MOST_TAKEN,
            )
        else:
            users = np.concatenate([earlier[0], users]).astype(np.int64)
            keys = distinct(users * dataset.num_items + np.concatenate([earlier[1], items]))
            users, items = keys // dataset.num_items, keys % dataset.num_items
    pairs = {"users": users, "items": items}
    tensors = {name: torch.from_numpy(one.astype(np.int32)) for name, one in pairs.items()}
    replace_durably(folder / TAKEN, save(tensors))


def read_taken(folder: Path, dataset: Dataset) -> Pairs | None:
    """Users [n] and the items [n] that they took up to a run; None: an older version left none."""
    file = folder / TAKEN
    if not file.is_file():
        return None
    tensors = read_tensors(file)
    pairs = []
    for name, count in (("users", dataset.num_users), ("items", dataset.num_items)):
        ids = tensors.get(name, torch.empty(0, 0)).numpy()
        fits = ids.ndim == 1 and ids.dtype == np.int32
        if not fits or (len(ids) and not 0 <= ids.min() <= ids.max() < count):
            raise ValueError(f"{file} is damaged: {name}; train that run once more")
        pairs.append(ids)
    if len(pairs[0]) != len(pairs[1]):
        raise ValueError(f"{file} is damaged: users without items; train that run once more")
    return pairs[0], pairs[1]


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file in a run's folder."""
    try:
        with open_regular(file, links=False) as stored:
            return parse_tensors(stored.read())
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot read {file}: {error}") from error


def read_vocabularies(file: Path) -> dict[str, list[str]]:
    """Field -> words, by number."""
    tensors = read_tensors(file)
    vocabularies = {}
    for field in sorted({name.rpartition("/")[0] for name in tensors}):
        try:
            parts = {key: tensors[f"{field}/{key}"] for key in ("bytes", "offsets")}
            vocabularies[field] = unpack_words(parts).tolist()
        except (LookupError, ValueError) as error:
            raise ValueError(f"{file} is damaged: the words of {field!r}") from error
    return vocabularies


def grow(dataset: Dataset, earlier_words: dict[str, list[str]]) -> Dataset:
    """A copy of the data whose known words keep their numbers; new words come after them."""
    vocab, number_of = {}, {}
    for field, words in dataset.vocab.items():
        index = {word: k for k, word in enumerate(earlier_words.get(field, words.tolist()))}
        numbers = [index.setdefault(word, len(index)) for word in words.tolist()]
        number_of[field] = np.array(numbers, dtype=np.int64)
        vocab[field] = np.empty(len(index), dtype=object)
        vocab[field][:] = list(index)

    def renumbered(columns: Columns) -> Columns:
        result = dict(columns)
        for name in result.keys() & number_of.keys():
            column, numbers = result[name], number_of[name]
            if isinstance(column, Ragged):
                result[name] = Ragged(numbers[column.values], column.offsets)
            else:
                result[name] = numbers[column]
        return result

    def reordered(columns: Columns, field: str) -> Columns:
        """Row i belongs to id i; ids that this data does not have get empty rows."""
        result, numbers = renumbered(columns), number_of[field]
        source = np.zeros(len(vocab[field]), np.int64)  # row 0 is empty
        source[numbers] = np.arange(len(numbers))
        for name, column in result.items():
            if isinstance(column, Ragged):
                values, offsets = gather(column.values, column.offsets, source, 0)
                assert offsets is not None
                result[name] = Ragged(values, offsets)
            else:
                result[name] = column[source]
        return result

    return replace(
        dataset,
        inter=renumbered(dataset.inter),
        users=reordered(dataset.users, dataset.user_field),
        items=reordered(dataset.items, dataset.item_field),
        extra={suffix: renumbered(columns) for suffix, columns in dataset.extra.items()},
        vocab=vocab,
        kept={},  # as a prepared folder numbers them
    )


def refuse_new_words(
    model: str, dataset: Dataset, features: tuple[Feature, ...], earlier_words: dict[str, list[str]]
) -> None:
    """Refuse data of a model with features that is not of the same users, items and words."""
    sides = {dataset.user_field: dataset.users, dataset.item_field: dataset.items}
    read = {one.column for one in features if one.is_sparse and one.vocabulary == "exact"}
    for field in [*sides, *sorted(read & dataset.vocab.keys() - sides.keys())]:
        before, now = set(earlier_words.get(field, ())), set(dataset.vocab[field].tolist())
        absent = before - now if sides.get(field) else set()  # their features are not known
        for words, state in ((now - before, "new"), (absent, "missing from the new data")):
            if words:
                raise ValueError(
                    f"{model} reads features, so it continues only with the users, items and words "
                    f"that it knows: {len(words)} of {field} are {state}, such as {min(words)!r}; "
                    "train it anew on all data, without --from"
                )

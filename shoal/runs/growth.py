"""Growth: vocabularies that grow from day to day. Known ids keep their numbers, new ones follow.

A run leaves its vocabularies in its folder (vocabulary.safetensors). A run that goes on from it
numbers its data by them, so that rows, which are keyed by number, stay those of their ids.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save
from torch import Tensor

from shoal.data.dataset import Columns, Dataset, Ragged
from shoal.data.ids import pack_words, unpack_words
from shoal.world.durable import open_regular, replace_durably

FILE = "vocabulary.safetensors"


def save_vocabularies(folder: Path, dataset: Dataset) -> None:
    """Leave the words of every field in a run's folder."""
    packed = {field: pack_words(words) for field, words in dataset.vocab.items()}
    tensors = {f"{field}/{k}": one for field, parts in packed.items() for k, one in parts.items()}
    replace_durably(folder / FILE, save(tensors))


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
    found = {}
    for field in sorted({name.rpartition("/")[0] for name in tensors}):
        try:
            parts = {key: tensors[f"{field}/{key}"] for key in ("bytes", "offsets")}
            found[field] = unpack_words(parts).tolist()
        except (LookupError, ValueError) as error:
            raise ValueError(f"{file} is damaged: the words of {field!r}") from error
    return found


def grow(dataset: Dataset, known: dict[str, list[str]]) -> Dataset:
    """The same data with known words under their numbers and new ones after them."""
    vocab, number_of = {}, {}
    for field, words in dataset.vocab.items():
        index = {word: k for k, word in enumerate(known.get(field, words.tolist()))}
        numbers = [index.setdefault(word, len(index)) for word in words.tolist()]
        number_of[field] = np.array(numbers, dtype=np.int64)
        vocab[field] = np.empty(len(index), dtype=object)
        vocab[field][:] = list(index)

    def renumbered(columns: Columns) -> Columns:
        made = dict(columns)
        for name in made.keys() & number_of.keys():
            one, numbers = made[name], number_of[name]
            if isinstance(one, Ragged):
                made[name] = Ragged(numbers[one.values], one.offsets)
            else:
                made[name] = numbers[one]
        return made

    return replace(
        dataset,
        inter=renumbered(dataset.inter),
        users={},  # models that read features do not grow (build.py)
        items={},
        extra={suffix: renumbered(columns) for suffix, columns in dataset.extra.items()},
        vocab=vocab,
    )

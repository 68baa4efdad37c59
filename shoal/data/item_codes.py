"""Item codes: the semantic ids of items in a file of JSON, easy to write by hand.

{"item-1": [5, 1, 0],
 "item-2": [5, 7, 0]}

Every item has as many codes, whole numbers from 0. Items that have all codes in common get a last
one, which counts them. `shoal codes make` also keeps what made them, so that later items get codes
by the same codebooks (`shoal codes append`), behind those that are there:

{"version": "9f2c...", "made": {"method": "kmeans", ..., "codebooks": {...}},
 "codes": {"item-1": [5, 1, 0],
 "item-2": [5, 7, 0]}}
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.data.fingerprint import VERSION_LETTERS
from shoal.data.ids import Ids
from shoal.files.durable import replace_durably

log = logging.getLogger("shoal")
MOST_CODES, LARGEST = 64, 1 << 16  # of an item; codes are below


@dataclass(frozen=True, eq=False)
class Making:
    """What made the codes of a file.

    of      what their vectors were: vectors (a file), model, interactions, features, or a column
    size    values that a code has; those of items to come are below, too
    kept    the share of the vectors' variance that the codes keep
    tensors of the codebooks, float32
    """

    method: str
    of: str
    size: int
    kept: float
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ItemCodes:
    """The codes of items in the order of their file, and what made them (None: not known)."""

    codes: dict[str, list[int]]
    making: Making | None = None

    def version(self, count: int | None = None) -> str:
        """The hash of the codebooks and the codes of the first items; by default of all.

        Later items stand behind, so codes with other versions agree where this one does.
        """
        digest = hashlib.sha256()
        if self.making is not None:
            digest.update(f"{self.making.method} {self.making.of} {self.making.size}\n".encode())
            for name, tensor in sorted(self.making.tensors.items()):
                digest.update(f"{name} {list(tensor.shape)}\n".encode() + _bytes(tensor))
        for item, codes in islice(self.codes.items(), count):
            digest.update(f"{json.dumps(item)}: {codes}\n".encode())
        return digest.hexdigest()

    @property
    def size(self) -> int | None:
        """How many values a code has; None: as many as the data's items use."""
        return None if self.making is None else self.making.size


def read_codes(path: str | Path) -> ItemCodes:
    """The codes of a file; what cannot be codes is refused."""
    place = Path(path)
    if not place.is_file():
        raise ValueError(f"there is no file {path} of codes; `shoal codes make` writes one")
    try:
        pairs = json.loads(place.read_bytes(), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        text = str(error)[:200]
        raise ValueError(f'{path} is no JSON such as {{"item": [5, 1, 0]}}: {text}') from error
    if not isinstance(pairs, _Pairs) or not pairs:
        raise ValueError(f'{path} holds no items; it must be like {{"item": [5, 1, 0]}}')
    whole = dict(pairs)
    if not isinstance(whole.get("codes"), _Pairs):
        return ItemCodes(_codes(path, pairs))
    making = _made(path, whole)
    item_codes = ItemCodes(_codes(path, whole["codes"]), making)
    largest = max(max(codes) for codes in item_codes.codes.values())
    if largest >= making.size:
        raise ValueError(f"{path}: codes are below {making.size} (size), and one is {largest}")
    version = item_codes.version()
    if version != whole.get("version"):
        raise ValueError(
            f"{path}: its codes were changed after they were made: its version is "
            f"{str(whole.get('version'))[:VERSION_LETTERS]}, and its content is "
            f"{version[:VERSION_LETTERS]}; "
            'make them anew, or leave only what stands in "codes", as codes that are written by '
            "hand"
        )
    return item_codes


def _codes(path: str | Path, pairs: _Pairs) -> dict[str, list[int]]:
    """Item -> its codes."""
    if not pairs:
        raise ValueError(f'{path} holds no items; it must be like {{"item": [5, 1, 0]}}')
    codes = dict(pairs)
    if len(codes) < len(pairs):
        item, times = Counter(item for item, _ in pairs).most_common(1)[0]
        raise ValueError(f"{path} has item {item[:80]!r} {times} times; leave one of them")
    first, first_codes = pairs[0]
    length = _count(path, first, first_codes)
    for item, item_codes in pairs:
        if _count(path, item, item_codes) != length:
            raise ValueError(
                f"{path}: item {item[:80]!r} has {len(item_codes)} codes and {first[:80]!r} has "
                f"{length}; "
                "all items must have as many"
            )
    return codes


def _made(path: str | Path, whole: Mapping[str, Any]) -> Making:
    """What made the codes of a file, as it says."""
    try:
        entry = dict(whole["made"])
        tensors = {name: _tensor(dict(one)) for name, one in entry["codebooks"]}
        method, of, size, kept = (entry[name] for name in ("method", "of", "size", "kept"))
        if type(size) is not int or not 1 <= size <= LARGEST:
            raise ValueError(f"size {str(size)[:80]}")
        return Making(str(method), str(of), size, float(kept), tensors)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{path}: what it says of how its codes were made cannot be read ({str(error)[:80]}); "
            "make them anew with `shoal codes make`"
        ) from error


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().astype("<f4").tobytes()


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    """A tensor as a file holds it: its shape, and its numbers as base64 of 32 bits each."""
    data = base64.b64decode(entry["float32"], validate=True)
    shape = entry["shape"]
    if any(type(one) is not int or one < 0 for one in shape):
        raise ValueError(f"a shape {str(shape)[:80]}")
    values = np.frombuffer(data, "<f4").astype(np.float32).reshape([int(one) for one in shape])
    return torch.from_numpy(values)


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON as it is written: a key may come twice."""


def _count(path: str | Path, item: str, codes: Any) -> int:
    """How many codes an item has, if they are codes."""
    plain = isinstance(codes, list) and not isinstance(codes, _Pairs)
    if not plain or not 1 <= len(codes) <= MOST_CODES:
        raise ValueError(
            f"{path}: item {item[:80]!r} has {str(codes)[:80]}; codes are a list such as [5, 1, 0] "
            f"of at most {MOST_CODES}"
        )
    for code in codes:
        if type(code) is not int or not 0 <= code < LARGEST:
            raise ValueError(
                f"{path}: item {item[:80]!r} has the code {str(code)[:80]}; codes are whole "
                f"numbers from 0 to {LARGEST - 1}"
            )
    return len(codes)


def write_codes(path: str | Path, item_codes: ItemCodes) -> None:
    """Write codes, a line for each item; by hand or with what made them."""
    lines = (f"{json.dumps(item)}: {codes}" for item, codes in item_codes.codes.items())
    text = "{" + ",\n ".join(lines) + "}"
    making = item_codes.making
    if making is not None:
        codebooks = {
            name: {
                "shape": list(tensor.shape),
                "float32": base64.b64encode(_bytes(tensor)).decode(),
            }
            for name, tensor in making.tensors.items()
        }
        entry = {"method": making.method, "of": making.of, "size": making.size, "kept": making.kept}
        entry_text = json.dumps({**entry, "codebooks": codebooks})
        text = f'{{"version": "{item_codes.version()}",\n "made": {entry_text},\n "codes": {text}}}'
    replace_durably(Path(path), (text + "\n").encode())


def fitted(path: str | Path, codes_by_item: Mapping[str, list[int]], items: Ids) -> Tensor:
    """Codes of a data set's items [num_items, levels], of item 0 zeros: different ones.

    An item without codes is refused; codes of other items are not used.
    """
    item_codes = [codes_by_item.get(str(word)) for word in items.words[1:]]
    missing = [str(items.words[k + 1]) for k, entry in enumerate(item_codes) if entry is None]
    if missing:
        names = ", ".join(repr(entry[:40]) for entry in missing[:3])
        ellipsis = ", ..." if len(missing) > 3 else ""
        raise ValueError(
            f"{path} has no codes for {len(missing)} of {len(item_codes)} items of the data: "
            f"{names}{ellipsis}; add them, or make codes of all items: `shoal codes make` with the "
            "same model and data"
        )
    if len(codes_by_item) > len(item_codes):
        log.info(
            "%s: %d items are not in the data, not used", path, len(codes_by_item) - len(item_codes)
        )
    codes = torch.tensor([entry for entry in item_codes if entry is not None], dtype=torch.int64)
    shared = len(codes) - int((shared_groups(codes)[1] == 1).sum())
    if shared:
        log.warning(
            "%s: %d of %d items have the codes of another one; a last code distinguishes them",
            path,
            shared,
            len(codes),
        )
        codes = distinguished(codes)
    return torch.nn.functional.pad(codes, (0, 0, 1, 0))


def shared_groups(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Group the items with equal codes [n, levels]: each one's group [n], and its size [n]."""
    _, group, counts = torch.unique(codes, dim=0, return_inverse=True, return_counts=True)
    return group, counts[group]


def distinguished(codes: Tensor) -> Tensor:
    """Codes with a last one, which counts those that have all others in common: [n, levels + 1].

    >>> distinguished(torch.tensor([[5, 1], [5, 1], [6, 1]])).tolist()
    [[5, 1, 0], [5, 1, 1], [6, 1, 0]]
    """
    group, _ = shared_groups(codes)
    order, counts = group.argsort(stable=True), torch.bincount(group)
    last = torch.empty_like(group)
    last[order] = torch.arange(len(group)) - (counts.cumsum(0) - counts)[group[order]]
    return torch.cat([codes, last.unsqueeze(1)], 1)


def quality(codes: Tensor) -> dict[str, Any]:
    """Figures of codes [n, levels]: who shares them, and how many of each are used, how evenly."""
    _, counts = shared_groups(codes)
    used = []
    for level in codes.T:
        shares = torch.bincount(level).double() / len(level)
        shares = shares[shares > 0]
        # effective: as many codes, used equally often, would say as much
        effective = float((-(shares * shares.log()).sum()).exp())
        used.append({"used": len(shares), "effective": round(effective, 1)})
    return {
        "items": len(codes),
        "unique": float((counts == 1).double().mean()),
        "shared": int((counts > 1).sum()),
        "largest_group": int(counts.max()),
        "levels": used,
    }


def neighbours_kept(vectors: Tensor, codes: Tensor, sample: int = 1000, count: int = 10) -> Tensor:
    """How many of the nearest items of an item share its first codes, by how many codes: [levels].

    vectors [n, width], codes [n, levels]. Asked of a sample of the items, spread over all; their
    nearest are searched among all.
    """
    queries = torch.linspace(0, len(codes) - 1, min(sample, len(codes))).long().unique()
    count = min(count, len(codes) - 1)
    if count < 1:
        return torch.ones(codes.shape[1])
    lengths, alike = vectors.square().sum(1), []
    for part in queries.split(100):
        distance = lengths - 2.0 * vectors[part] @ vectors.T
        distance[torch.arange(len(part)), part] = torch.inf
        near = distance.topk(count, largest=False).indices
        alike.append((codes[near] == codes[part].unsqueeze(1)).cumprod(2).flatten(0, 1))
    return torch.cat(alike).float().mean(0)


def appended(
    codes: Mapping[str, list[int]], ids: Iterable[str], choices: Iterable[Tensor], size: int
) -> dict[str, list[int]]:
    """Codes of new items behind those that are there, of which none changes.

    choices: of each new item, its codes without the last [k, levels], the best first. An item takes
    the first of them behind which a last code below `size` is free.

    >>> new = appended({"a": [5, 1, 0]}, ["b"], [torch.tensor([[5, 1]])], size=256)
    >>> new
    {'a': [5, 1, 0], 'b': [5, 1, 1]}
    """
    extended, free = dict(codes), dict[tuple[int, ...], int]()
    for *first, last in codes.values():
        place = tuple(first)
        free[place] = max(free.get(place, 0), last + 1)
    for item, choice in zip(ids, choices):
        places = [tuple(one) for one in choice.tolist() if free.get(tuple(one), 0) < size]
        if not places:
            raise ValueError(
                f"all {size} last codes of items that are as {item[:80]!r} is are taken; make the "
                "codes anew, with more --levels or a larger --size"
            )
        place = places[0]
        free[place] = free.get(place, 0) + 1
        extended[item] = [*place, free[place] - 1]
    return extended

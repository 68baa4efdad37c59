"""Item codes: the semantic ids of items in a file of JSON, easy to write by hand.

{"item-1": [5, 1, 0],
 "item-2": [5, 7, 0]}

Every item has as many codes, whole numbers from 0. Items that have all codes in common get a last
one, which counts them.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.data.ids import Ids
from shoal.files.durable import replace_durably

log = logging.getLogger("shoal")
MOST_CODES, LARGEST = 64, 1 << 16  # of an item; codes are below
ItemCodes = dict[str, list[int]]


def read_codes(path: str | Path) -> ItemCodes:
    """Item -> its codes, of a file; what cannot be codes is refused."""
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


def write_codes(path: str | Path, items: Iterable[Any], codes: Tensor) -> None:
    """Write codes [n, levels] of items, a line each."""
    lines = (
        f"{json.dumps(str(item))}: {item_codes}" for item, item_codes in zip(items, codes.tolist())
    )
    replace_durably(Path(path), ("{" + ",\n ".join(lines) + "}\n").encode())


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
    """Figures of codes [n, levels]: who shares them, and how many of each are used."""
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

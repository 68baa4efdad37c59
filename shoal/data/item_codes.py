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
from shoal.world.durable import replace_durably

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
    first, length = pairs[0][0], _count(path, *pairs[0])
    for item, own in pairs:
        if _count(path, item, own) != length:
            raise ValueError(
                f"{path}: item {item[:80]!r} has {len(own)} codes and {first[:80]!r} has {length}; "
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
    for one in codes:
        if type(one) is not int or not 0 <= one < LARGEST:
            raise ValueError(
                f"{path}: item {item[:80]!r} has the code {str(one)[:80]}; codes are whole numbers "
                f"from 0 to {LARGEST - 1}"
            )
    return len(codes)


def write_codes(path: str | Path, items: Iterable[Any], codes: Tensor) -> None:
    """Write codes [n, levels] of items, a line each."""
    lines = (f"{json.dumps(str(one))}: {own}" for one, own in zip(items, codes.tolist()))
    replace_durably(Path(path), ("{" + ",\n ".join(lines) + "}\n").encode())


def fitted(path: str | Path, given: Mapping[str, list[int]], items: Ids) -> Tensor:
    """Codes of a data set's items [num_items, levels], of item 0 zeros: different ones.

    An item without codes is refused; codes of other items are not used.
    """
    own = [given.get(str(word)) for word in items.words[1:]]
    missing = [str(items.words[k + 1]) for k, one in enumerate(own) if one is None]
    if missing:
        names = ", ".join(repr(one[:40]) for one in missing[:3])
        more = ", ..." if len(missing) > 3 else ""
        raise ValueError(
            f"{path} has no codes for {len(missing)} of {len(own)} items of the data: "
            f"{names}{more}; add them, or make codes of all items: `shoal codes make` with the "
            "same model and data"
        )
    if len(given) > len(own):
        log.info("%s: %d items are not in the data, not used", path, len(given) - len(own))
    codes = torch.tensor([one for one in own if one is not None], dtype=torch.int64)
    shared = len(codes) - int((same(codes)[1] == 1).sum())
    if shared:
        log.warning(
            "%s: %d of %d items have the codes of another one; a last code distinguishes them",
            *(path, shared, len(codes)),
        )
        codes = distinguished(codes)
    return torch.nn.functional.pad(codes, (0, 0, 1, 0))


def same(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Of codes [n, levels]: the number of the group that shares them [n], and its size [n]."""
    _, group, counts = torch.unique(codes, dim=0, return_inverse=True, return_counts=True)
    return group, counts[group]


def distinguished(codes: Tensor) -> Tensor:
    """Codes with a last one, which counts those that have all others in common: [n, levels + 1].

    >>> distinguished(torch.tensor([[5, 1], [5, 1], [6, 1]])).tolist()
    [[5, 1, 0], [5, 1, 1], [6, 1, 0]]
    """
    group, _ = same(codes)
    order, counts = group.argsort(stable=True), torch.bincount(group)
    last = torch.empty_like(group)
    last[order] = torch.arange(len(group)) - (counts.cumsum(0) - counts)[group[order]]
    return torch.cat([codes, last.unsqueeze(1)], 1)


def quality(codes: Tensor) -> dict[str, Any]:
    """What can be said of codes [n, levels]: who shares them, and how many of each are used."""
    _, counts = same(codes)
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

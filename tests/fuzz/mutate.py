"""Mutations: flip, cut, splice, repeat, numbers at edges; values of JSON documents."""

import copy
import json
import random
import struct
from typing import Any

EDGES = (0, 1, -1, 2, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**53)
EDGES += (2**62, 2**63 - 1, -(2**63), -(2**31))
TEXTS = (b"1e39", b"nan", b"inf", b"-0", b"1e-400", b"9" * 25, b"0x", b"\x00", b"\xff", b"\r\n")
TEXTS += (b"\t", b",", b":", b"::", b"[PAD]", b'"', b"&a [*a]", b"{", b"[", b"- ", b"!!python/x")
LONGEST = 1 << 20  # bytes of an input


def mutate(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """The input with one to six changes."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(CHANGES)(rng, made, others)
    return bytes(made[:LONGEST])


def _place(rng: random.Random, made: bytearray) -> int:
    return rng.randrange(len(made) + 1)


def _flip(rng: random.Random, made: bytearray, others: list[bytes]) -> None:
    for _ in range(rng.choice((1, 1, 4, 16)) if made else 0):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)


def _cut(rng: random.Random, made: bytearray, others: list[bytes]) -> None:
    first = _place(rng, made)
    last = len(made) if rng.random() < 0.3 else first + rng.choice((1, 4, 8, 40))
    del made[first:last]


def _splice(rng: random.Random, made: bytearray, others: list[bytes]) -> None:
    other = rng.choice(others)
    first = rng.randrange(len(other) + 1)
    piece = other[first : first + rng.choice((1, 8, 40, 400))]
    place = _place(rng, made)
    made[place : place + rng.choice((0, len(piece)))] = piece


def _repeat(rng: random.Random, made: bytearray, others: list[bytes]) -> None:
    first = _place(rng, made)
    piece = made[first : first + rng.choice((1, 3, 10, 100))]
    made[first:first] = bytes(piece) * rng.choice((2, 10, 1000))


def _edge(rng: random.Random, made: bytearray, others: list[bytes]) -> None:
    place, edge = _place(rng, made), rng.choice(EDGES)
    size = rng.choice((1, 2, 4, 8))
    made[place : place + size] = struct.pack("<Q", edge & (2**64 - 1))[:size]


def _text(rng: random.Random, made: bytearray, others: list[bytes]) -> None:
    place = _place(rng, made)
    text = rng.choice((*TEXTS, str(rng.choice(EDGES)).encode()))
    made[place : place + rng.choice((0, 1, len(text)))] = text


CHANGES = (_flip, _flip, _cut, _splice, _repeat, _edge, _text, _text)


# ---- documents ----------------------------------------------------------------------------------

ODD: tuple[Any, ...] = (
    None,
    True,
    [],
    {},
    "",
    "x",
    "../x",
    "\ud800",
    1.5,
    -1.5,
    1e308,
    float("nan"),
)
ODD += (float("inf"), [[]], {"a": 1}, "<f4", "<i8", "|u1", "O", "item", "int8", *EDGES)


def mutate_json(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """A document some values of which are others; at times other bytes."""
    if rng.random() < 0.2:
        return mutate(rng, data, others)
    document = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(document))
        holder, key = rng.choice(places)
        change = rng.random()
        if change < 0.15:
            del holder[key]
            if not document:
                break
        elif change < 0.5:
            another, other = rng.choice(places)
            holder[key] = json.loads(json.dumps(another[other]))
        else:
            holder[key] = copy.deepcopy(rng.choice(ODD))  # or it might come to hold itself
    return json.dumps(document).encode()[:LONGEST]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(holder, key) of every value in a document."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = []
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], dict | list):
            found += _places(value[key])
    return found

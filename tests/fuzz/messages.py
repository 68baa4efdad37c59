"""Fuzzer: messages to a parameter server, made of sound ones."""

import json
import random
import struct
import zlib

from shoal.ps.wire import (
    BFLOAT16,
    COMPRESSED,
    VERSION,
    WITH_DENSE,
    Kind,
    MessageHeader,
    numbers_frame,
)

HEADER = struct.Struct("<4sHHIIQqQ")  # magic, version, kind, worker, flags, sequence, step, session
ORDERS = {Kind.SET_DENSE, Kind.SAVE, Kind.LOAD, Kind.BYE}  # what a worker may rightly ask
NUMBERS = (0, 1, 2, 3, 7, 255, 1 << 16, 1 << 31, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)


def pack_parts(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


class Fuzzer:
    """Makes messages none of which a server may act upon."""

    def __init__(self, seed: int, sessions: list[int], hello: bytes, folder: str):
        self.random = random.Random(seed)
        self.sessions = sessions
        self.steps = {3}  # what workers are at
        self.open = False  # whether anybody may join, and order
        self.strange = False  # whether its sessions are nobody's, unless one of them joins
        text = json.dumps({"name": folder, "delta": False}).encode()
        load = json.dumps({"name": folder, "files": {"rows-user-0": {}}, "steps": {}}).encode()
        ids, rows = pack_parts(1, 2, 3), struct.pack("<12f", *range(12))
        half = b"\x80\x3f" * 12
        step = numbers_frame(0.1, 1.0, 3.0)
        dense = struct.pack("<15f", *range(15))
        small = zlib.compress
        self.valid: list[tuple[Kind, int, list[bytes]]] = [
            (Kind.HELLO, 0, [hello]),
            (Kind.PULL, 0, [pack_parts(1, 0, 3) + ids]),
            (Kind.PULL, 0, [pack_parts(2, 1, 2, 0, 1) + ids]),
            (Kind.PULL, WITH_DENSE | BFLOAT16, [pack_parts(2, 1, 2, 0, 1) + ids]),
            (Kind.PULL, COMPRESSED, [pack_parts(1, 1, 3) + small(ids)]),
            (Kind.PUSH, 0, [step, pack_parts(0, 3), ids, rows, b""]),
            (Kind.PUSH, WITH_DENSE, [step, pack_parts(0, 3), ids, rows, dense]),
            (Kind.PUSH, BFLOAT16, [step, pack_parts(0, 3), ids, half, b""]),
            (Kind.PUSH, 0, [step, pack_parts(0, 3), ids, rows, b"", pack_parts(0, 5, 6, 1, 5)]),
            (Kind.PUSH, COMPRESSED, [step, pack_parts(0, 3), small(ids), small(rows), b""]),
            (Kind.DENSE, 0, []),
            (Kind.SET_DENSE, 0, [dense, b""]),
            (Kind.STATE, 0, []),
            (Kind.SAVE, 0, [text]),
            (Kind.SAVED, 0, []),
            (Kind.LOAD, 0, [load]),
            (Kind.STATS, 0, []),
            (Kind.PING, 0, []),
            (Kind.BYE, 0, []),
            (Kind.LEASE, 0, [b"{}"]),
            (Kind.LEASE, 0, [json.dumps({"lease": 1, "done": 2, "loss": 0.5}).encode()]),
            (Kind.TURN, 0, [json.dumps({"number": 1, "last": 9, "notes": {}}).encode()]),
        ]

    def message(self) -> list[bytes]:
        pick = self.random.random()
        if pick < 0.1:
            return self.noise()
        if pick < 0.15:
            return self.hopeless_order()
        frames = self.valid_message()
        if pick < 0.25:
            return self.harmless(frames)  # replays, other workers, other sessions
        for _ in range(self.random.choice((1, 1, 1, 2, 5))):
            self.random.choice(self.mutations)(self, frames)
        return self.harmless(frames)

    def noise(self) -> list[bytes]:
        count = self.random.choice((1, 1, 2, 3, 6, 9, 40))
        frames = [self.bytes(self.random.choice((0, 1, 8, 39, 40, 41, 300))) for _ in range(count)]
        if self.random.random() < 0.5:
            frames[0] = self.header(self.random.choice(list(Kind)), 0)
        return self.harmless(frames)

    def hopeless_order(self) -> list[bytes]:
        """What would change much, from a worker that is known, and wrong."""
        kind = self.random.choice((Kind.SET_DENSE, Kind.SAVE, Kind.LOAD))
        junk = self.random.choice((b"", b"{}", b"[]", b'{"name": 5}', b'{"name": "/no/w"}'))
        frames = [self.bytes(self.random.choice((0, 4, 56, 64))), self.bytes(9)]
        if kind != Kind.SET_DENSE:
            frames = [junk] * self.random.choice((1, 1, 1, 0, 2))
        worker = self.random.randrange(2)
        return [MessageHeader(kind, worker, 0, 5, 0, self.sessions[worker]).pack(), *frames]

    def header(self, kind: Kind, flags: int) -> bytes:
        worker = self.random.choice((0, 0, 1, 1, 2, 1 << 31))
        session = self.random.choice((*self.sessions, 0, self.random.getrandbits(64)))
        step = self.random.choice((-1, 0, 1, 2, 3, 4, 5, 900, 1 << 40, -(1 << 63)))
        return HEADER.pack(
            b"SHOL", VERSION, kind, worker, flags, self.random.getrandbits(20), step, session
        )

    def valid_message(self) -> list[bytes]:
        kind, flags, frames = self.random.choice(self.valid)
        if kind == Kind.PULL:  # all in one frame
            return [self.header(kind, flags) + frames[0]]
        return [self.header(kind, flags), *frames]

    def bytes(self, size: int) -> bytes:
        return self.random.randbytes(size)

    def harmless(self, frames: list[bytes]) -> list[bytes]:
        """The one thing that a fuzzer must not send: what a known worker may rightly ask."""
        if not frames or len(frames[0]) < HEADER.size:
            return frames
        values = list(HEADER.unpack_from(frames[0]))
        known = values[7] in self.sessions
        if values[2] in ORDERS and (known or self.open):
            values[7] = self.random.getrandbits(64)
        elif values[2] == Kind.PUSH and self.open and (self.strange or not known):
            values[7] = self.random.getrandbits(64)  # who said hello in this session has joined
        elif values[2] == Kind.PUSH and known and values[6] in self.steps:
            values[6] += self.random.choice((-3, 2, 3))
        return [HEADER.pack(*values) + frames[0][HEADER.size :], *frames[1:]]

    # ---- mutations: of a list of frames, in place ------------------------------------------------

    def flip_bits(self, frames: list[bytes]) -> None:
        place = self.random.randrange(len(frames))
        data = bytearray(frames[place])
        for _ in range(self.random.choice((1, 1, 2, 8)) if data else 0):
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        frames[place] = bytes(data)

    def cut(self, frames: list[bytes]) -> None:
        place = self.random.randrange(len(frames))
        frames[place] = frames[place][: self.random.randrange(len(frames[place]) + 1)]

    def extend(self, frames: list[bytes]) -> None:
        place = self.random.randrange(len(frames))
        frames[place] += self.bytes(self.random.choice((1, 4, 8, 12, 100)))

    def swap(self, frames: list[bytes]) -> None:
        one, two = (self.random.randrange(len(frames)) for _ in range(2))
        frames[one], frames[two] = frames[two], frames[one]

    def drop_or_repeat(self, frames: list[bytes]) -> None:
        place = self.random.randrange(len(frames))
        if self.random.random() < 0.5 and len(frames) > 1:
            del frames[place]
        else:
            frames.insert(place, frames[place])

    def lie_about_counts(self, frames: list[bytes]) -> None:
        count = self.random.choice((-1, 0, 1 << 20, 1 << 27, 1 << 28, 1 << 29, 1 << 62))
        if len(frames) > 2:
            frames[2] = pack_parts(self.random.choice((0, 1, 2, -1)), count)
        elif len(frames[0]) > HEADER.size + 24:  # a pull: the number of parts, or one of them
            place = HEADER.size + self.random.choice((0, 8, 16))
            head = frames[0]
            frames[0] = head[:place] + pack_parts(count) + head[place + 8 :]

    def lie_in_header(self, frames: list[bytes]) -> None:
        if len(frames[0]) >= HEADER.size:
            values = list(HEADER.unpack_from(frames[0]))
            place = self.random.randrange(1, 8)
            bits = (0, 16, 16, 32, 32, 64, 63, 64)[place]
            values[place] = self.random.choice(NUMBERS) & ((1 << bits) - 1)
            frames[0] = HEADER.pack(*values) + frames[0][HEADER.size :]

    def bomb(self, frames: list[bytes]) -> None:
        if len(frames[0]) < HEADER.size:
            return
        values = list(HEADER.unpack_from(frames[0]))
        values[4] |= COMPRESSED
        if len(frames) > 3:
            frames[0], frames[3] = HEADER.pack(*values), BOMB
        elif len(frames[0]) > HEADER.size + 24:
            frames[0] = HEADER.pack(*values) + frames[0][HEADER.size : HEADER.size + 24] + BOMB

    mutations = (
        flip_bits,
        flip_bits,
        cut,
        extend,
        swap,
        drop_or_repeat,
        lie_about_counts,
        lie_in_header,
        bomb,
    )


BOMB = zlib.compress(bytes(1 << 20), 9)

"""100,000 hostile messages to a real server: it answers on, and not a bit of it has changed."""

from __future__ import annotations

import json
import os
import random
import struct
import zlib
from pathlib import Path

import pytest
import torch
from ps_cluster import Bare, get_dense, joined, make_spec, pull, push, rows_in, save, server_process

from shoal.ps.shared import OFFER
from shoal.ps.wire import (
    BFLOAT16,
    COMPRESSED,
    SHARED,
    VERSION,
    WITH_DENSE,
    Header,
    Kind,
    numbers_frame,
)

MESSAGES, BURST = 100_000, 500
STEPS = 3  # pushes of each worker before the fuzzing
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
        self.steps = {STEPS}  # what workers are at
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
            (Kind.PULL, SHARED, [pack_parts(1, 0, 3) + ids]),
            (Kind.PULL, SHARED | COMPRESSED, [pack_parts(1, 1, 3) + small(ids)]),
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
            (Kind.SHARE, 0, [OFFER.pack(os.getpid(), 0, bytes(16))]),
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
        return [Header(kind, worker, 0, 5, 0, self.sessions[worker]).pack(), *frames]

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
            values[6] += self.random.choice((-STEPS, 2, 3))
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


@pytest.mark.slow
def test_a_server_withstands_100000_messages(tmp_path: Path) -> None:
    spec = make_spec("adagrad", workers=2)
    generator = torch.Generator().manual_seed(1)
    ids = [1, 2, 3, 500]
    with (
        server_process(tmp_path, timeout=60.0, folder=str(tmp_path)) as (process, address),
        joined([address], spec, timeout=60.0) as one,
        joined([address], spec, 1, timeout=60.0) as two,
    ):
        for _ in range(STEPS):
            under_way = []
            for client in (one, two):
                dense = [torch.randn(shape, generator=generator) for shape in spec.dense]
                rows = {
                    t: (ids, torch.randn(4, d, generator=generator)) for t, d in ((0, 4), (1, 3))
                }
                under_way.append(push(client, rows, dense=dense))
            for pushing in under_way:
                pushing.wait()
        save(one, tmp_path / "before")
        dense, state, held = get_dense(one), one.dense_state(), pull(one, 0, ids)
        hello = json.dumps({**spec.model_dump(mode="json"), "host": "x", "server": 0}).encode()
        fuzzer = Fuzzer(20, [one.session, two.session], hello, "nowhere")
        lines = [Bare(address) for _ in range(4)]
        stumbled, answers = [], 0
        for begun in range(0, MESSAGES, BURST):
            line = lines[begun // BURST % len(lines)]
            for _ in range(BURST):
                line.socket.send_multipart(fuzzer.message())
            # Everything before it was read when this is answered.
            sequence = (1 << 50) + begun
            line.send(Header(Kind.PING, 0, 0, sequence, -1, one.session))
            while (answer := line.receive()) is not None:
                answers += 1
                header, frames = answer
                if header.sequence == sequence:
                    break
                if header.kind == Kind.ERROR and b"stumbled" in frames[0]:
                    stumbled.append(frames[0])
            assert answer is not None and process.is_alive(), "the server is gone"
        assert stumbled == []
        found = one.stats()[0]
        assert found["messages"] > MESSAGES and found["refused"] > MESSAGES // 2
        assert answers > MESSAGES // 2
        # Every row and its optimizer's state, and the dense parameters: bit for bit.
        assert torch.equal(pull(two, 0, ids), held)
        assert all(torch.equal(a, b) for a, b in zip(get_dense(two), dense, strict=True))
        after = one.dense_state()
        assert after.keys() == state.keys() and all(torch.equal(after[k], state[k]) for k in state)
        save(one, tmp_path / "after")
        before = rows_in(tmp_path / "before")
        assert rows_in(tmp_path / "after") == before
        assert sorted(before["user"]) == sorted(before["word"]) == ids
        # And it learns on.
        under_way = [push(client, {0: (ids, torch.ones(4, 4))}) for client in (one, two)]
        assert [pushing.wait()[1] for pushing in under_way] == [2.0, 2.0]
        assert not torch.equal(pull(two, 0, ids), held)
        for line in lines:
            line.close()
        one.bye()
        two.bye()
        process.join(30)
        assert process.exitcode == 0

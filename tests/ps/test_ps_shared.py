"""Rows through memory that a server and a worker of one host share, and attacks on it."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from other_user import as_nobody, needs_root
from ps_cluster import SECONDS, Bare, grads, joined, make_spec, pull, push, server_process, serving

import shoal.ps.server.answers
import shoal.ps.server.steps
import shoal.ps.shared
from shoal.ps.keys import make_keys, read_keys
from shoal.ps.shared import CAPACITY, HEAD, MARK_AT, NAME, OFFER, Offered, can_share, open_offered
from shoal.ps.wire import SHARED, Header, Kind, WireError
from shoal.ps.worker.arriving import ArrivingRows
from shoal.ps.worker.client import Client, Share

# Native code alone reads and writes there; without it all rows come by the socket.
pytestmark = pytest.mark.skipif(
    not can_share(), reason="no native core, or a system without memory files"
)
IDS = list(range(1, 9001))  # of table 1, which grows: 108,000 bytes of rows
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def passed(client: Client) -> list[int]:
    """Bytes of rows that came through memory, of each server."""
    rings = [link.offering.ring for link in client.links]
    return [0 if ring is None else ring.passed for ring in rings]


def descriptors() -> set[str]:
    """What this process has open, by name."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{one.name} {os.readlink(one)}")
        except OSError:  # the folder itself, which is closed by now
            continue
    return found


def mapped() -> int:
    """Rings that are mapped here."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count(f"memfd:{NAME}")


# ---- rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("core", ["all", "no sockets"])
@pytest.mark.parametrize("capacity", [CAPACITY, 1 << 17, 1 << 16])
def test_rows_come_through_memory(
    capacity: int, core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large parts, as far as there is room; small ones, and all others, by the socket."""
    monkeypatch.setattr(shoal.ps.shared, "CAPACITY", capacity)
    monkeypatch.setattr(shoal.ps.server.answers, "ANSWER_VALUES", 20_000)  # 80,000 bytes
    spec = make_spec("sgd", servers=2, workers=2, mode="async")
    ids, few = list(range(1, 30_001)), list(range(5))
    with (
        serving(2) as running,
        joined(running.addresses, spec) as one,
        joined(running.addresses, spec, 1, shared_memory=False) as two,
    ):
        if core == "no sockets":  # the worker takes messages in Python, and copies in the core
            for link in one.links:
                link.inlet = None
        push(one, {1: (ids, grads(3, len(ids), 3))}).wait()
        assert torch.equal(pull(one, 1, few), pull(two, 1, few))
        assert passed(one) == [0, 0]
        expected = pull(two, 1, ids)
        for _ in range(4):
            assert torch.equal(pull(one, 1, ids), expected)
        assert passed(two) == [0, 0]
        assert all(passed(one)) == (capacity >= 80_000)
        # Many at once, which have no room together, and are waited for in any order.
        shares = [Share(1, torch.arange(k, k + 8000) * 2, [8000, 0]) for k in range(1, 9)]
        shares += [Share(1, torch.arange(k, k + 8000) * 2 + 1, [0, 8000]) for k in range(1, 9)]
        known = [two.start_pull([share]).wait()[0] for share in shares]
        under_way = [one.start_pull([share]) for share in shares]
        for k in (3, 0, 15, 1, 2, 14, *range(4, 14)):
            assert torch.equal(under_way[k].wait()[0], known[k])
        assert not any(link.due or link.rows or link.came for link in one.links)


def test_a_server_process_and_keys(tmp_path: Path) -> None:
    """With keys too, rows that stay on the host are not encrypted for the way."""
    make_keys(tmp_path / "keys")
    keys = read_keys(tmp_path / "keys", "server")
    with server_process(tmp_path, keys=keys) as (process, address):
        with joined([address], make_spec(), keys=read_keys(tmp_path / "keys", "worker")) as client:
            first = pull(client, 1, IDS)
            assert passed(client)[0] >= first.nbytes
            client.flags = 1  # packed rows come as ever
            assert torch.equal(pull(client, 1, IDS), first.bfloat16().float())
            client.bye()
        process.join(30)
        assert process.exitcode == 0


def test_nothing_stays_behind() -> None:
    before, rings = descriptors(), mapped()
    with serving() as running, joined(running.addresses, make_spec()) as client:
        pull(client, 1, IDS)
        assert mapped() == rings + 2  # the worker's and the server's, and no descriptor of either
        assert not [name for name in descriptors() - before if NAME in name]
        for _ in range(5):
            client.links[0].offer_memory()
        pull(client, 1, IDS)
        assert mapped() == rings + 2
        client.bye()
    del client, running
    assert descriptors() == before and mapped() == rings


def test_a_worker_that_went_silent_has_no_memory() -> None:
    spec = make_spec("sgd", workers=10, mode="async", elastic=True)
    with serving() as running, joined(running.addresses, spec, (1 << 32) - 1) as client:
        pull(client, 1, IDS)
        roster = running.servers[0].members
        assert roster[0].ring is not None
        client._heartbeat.stop()  # type: ignore[union-attr]
        roster[0].heard -= 1000.0
        deadline = time.monotonic() + SECONDS
        while not roster[0].lost and time.monotonic() < deadline:
            time.sleep(0.05)
        assert roster[0].lost and roster[0].ring is None


# ---- what is lost on the way --------------------------------------------------------------------


def test_a_server_that_forgot_is_offered_new_memory() -> None:
    """As one that was started again: rows come by the socket, and then through memory again."""
    with serving() as running, joined(running.addresses, make_spec()) as client:
        expected, link = pull(client, 1, IDS), client.links[0]
        old = link.offering.ring
        running.servers[0].members[0].ring = None
        before = old.passed
        assert torch.equal(pull(client, 1, IDS), expected) and old.passed == before
        pulling = client.start_pull([Share(1, torch.tensor(IDS), [len(IDS)])])
        link._ask_again()  # of both answers only one is taken, whichever way they come
        assert torch.equal(pulling.wait()[0], expected)
        for _ in range(3):
            assert torch.equal(pull(client, 1, IDS), expected)
        assert link.offering.ring is not old and old.passed == before
        assert link.offering.ring.passed > before + (1 << 39)
        assert not link.due and not link.rows and not link.came


def test_answers_that_come_twice_leave_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody waits for is passed by: else the ring would be full for ever."""
    monkeypatch.setattr(shoal.ps.shared, "CAPACITY", 1 << 17)
    with serving() as running, joined(running.addresses, make_spec()) as client:
        expected, link = pull(client, 1, IDS), client.links[0]
        for _ in range(4):
            pulling = client.start_pull([Share(1, torch.tensor(IDS), [len(IDS)])])
            (send,) = link.due.values()
            send()
            assert torch.equal(pulling.wait()[0], expected)
            client.stats()  # its answer comes after the second one
        before = passed(client)[0]
        assert torch.equal(pull(client, 1, IDS), expected) and passed(client)[0] > before


def placed(first: int, place: int, count: int, kind: int = Kind.PLACED) -> memoryview:
    header = Header(Kind(kind), 3, SHARED, 77, -1, 12345).pack()
    return memoryview(header + struct.pack("<3Q", first, place, count))


def test_parts_in_memory() -> None:
    """Each is taken once, and only from where this ring has bytes that were not passed."""
    memory = Offered(1)
    start = 1 << 40
    os.pwrite(memory.file, struct.pack("<6f", *range(6)), HEAD)
    to = torch.zeros(6)
    rows = ArrivingRows(Header(Kind.OK, 3, SHARED, 77, -1, 12345), to, [(0, 6)])
    rows.take(placed(0, start, 2), None)  # before the memory is known: it is asked for again
    rows.take(placed(0, 0, 2), memory.ring)  # of the memory before this one
    rows.take(placed(0, 2 * start, 2), memory.ring)
    rows.take(placed(0, start + CAPACITY - 4, 2), memory.ring)  # beyond its end
    assert to.tolist() == [0] * 6 and memory.ring.passed == start and not rows.whole
    rows.take(placed(0, start, 2), memory.ring)
    assert to.tolist() == [0, 1, 0, 0, 0, 0] and memory.ring.passed == start + 64
    os.pwrite(memory.file, struct.pack("<6f", *range(6)), HEAD + 64)
    rows.take(placed(2, start, 4), memory.ring)  # passed
    assert to.tolist() == [0, 1, 0, 0, 0, 0]
    for wrong in (
        placed(2, start + 64, 5),
        placed(2, start + 64, 0),
        placed(2, start + 64, 1 << 62),
        placed(7, start + 64, 4),
        placed(2, start + 64, 4)[:-1],
        placed(2, start + 64, 4, Kind.ERROR),
    ):
        with pytest.raises(WireError):
            rows.take(wrong, memory.ring)
    assert to.tolist() == [0, 1, 0, 0, 0, 0] and not rows.whole
    os.pwrite(memory.file, struct.pack("<4f", 2, 3, 4, 5), HEAD + 128)
    rows.take(placed(2, start + 128, 4), memory.ring)
    assert to.tolist() == list(range(6)) and rows.whole
    memory.close()


def test_without_memory_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def elsewhere(frame: object) -> None:
        raise WireError("/proc/7/fd/7 cannot be opened")

    monkeypatch.setattr(shoal.ps.server.steps, "open_offered", elsewhere)
    before = descriptors()
    with (
        caplog.at_level(logging.INFO, "shoal"),
        serving() as running,
        joined(running.addresses, make_spec()) as client,
    ):
        first = pull(client, 1, IDS)
        client.links[0]._ask_again()
        assert torch.equal(pull(client, 1, IDS), first) and passed(client) == [0]
    told = [one.message for one in caplog.records if "memory" in one.message]
    assert told == [
        f"rows of server 0 at {running.addresses[0]} come through its socket, not through memory: "
        "/proc/7/fd/7 cannot be opened"
    ]
    assert not [one for one in descriptors() - before if NAME in one]


def test_no_memory_beyond_this_host() -> None:
    client = Client(["10.255.255.1:6180"], plain=True)
    client.links[0].offer_memory()
    assert client.links[0].offering.made == 0
    client.close()


# ---- attacks ------------------------------------------------------------------------------------


def memory_file(
    size: int = HEAD + CAPACITY, seals: int = SEALS, name: str = NAME, mark: bytes = bytes(16)
) -> int:
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    os.pwrite(file, mark, MARK_AT)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def pipe_of(folder: Path) -> int:
    os.mkfifo(folder / "pipe")
    return os.open(folder / "pipe", os.O_RDWR)


def large_pages(folder: Path) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | os.MFD_HUGETLB
    try:
        file = os.memfd_create(NAME, flags)
    except OSError as error:
        # What is refused cannot be made here, so nobody can offer it either.
        pytest.skip(f"this system has no large pages: {error}")
    os.ftruncate(file, 1 << 25)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
    return file


def plain_file(folder: Path) -> int:
    path = folder / f"memfd:{NAME}"
    path.write_bytes(bytes(HEAD + CAPACITY))
    return os.open(path, os.O_RDWR)


ATTACKS: dict[str, Callable[[Path], int]] = {
    "a plain file": plain_file,
    "a pipe": pipe_of,
    "a folder": lambda folder: os.open(folder, os.O_RDONLY),
    "a device": lambda folder: os.open("/dev/zero", os.O_RDWR),
    "memory of another kind": lambda folder: memory_file(name="lanes"),
    "memory that can shrink": lambda folder: memory_file(seals=fcntl.F_SEAL_GROW),
    "memory that is too short": lambda folder: memory_file(HEAD + CAPACITY - 1),
    "memory that is too long": lambda folder: memory_file(HEAD + CAPACITY + 1),
    "memory that is empty": lambda folder: memory_file(0, fcntl.F_SEAL_SHRINK),
    "memory that cannot be written": lambda folder: memory_file(seals=SEALS | fcntl.F_SEAL_WRITE),
    "memory of another worker": lambda folder: memory_file(mark=b"x" * 16),
    "large pages": large_pages,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_no_memory_of_a_worker_is_refused(tmp_path: Path, attack: str) -> None:
    file = ATTACKS[attack](tmp_path)
    before = descriptors()
    with pytest.raises(WireError):
        open_offered(OFFER.pack(os.getpid(), file, bytes(16)))
    assert descriptors() == before
    os.close(file)


def test_offers_that_are_refused() -> None:
    """By a server that goes on, and whose rows then come by the socket."""
    with serving() as running, joined(running.addresses, make_spec()) as client:
        expected = pull(client, 1, IDS)
        bare = Bare(running.addresses[0])
        sound = memory_file()
        offers: list[bytes] = [
            b"",
            bytes(31),
            bytes(33),
            *(
                OFFER.pack(pid, number, bytes(16))
                for pid in (os.getpid(), 0, -1, 1, 1 << 40, -(1 << 63))
                for number in (-1, 9999, 1 << 62, 0)
            ),
            OFFER.pack(os.getpid(), sound, b"y" * 16),
        ]
        for number, offer in enumerate(offers):
            kind, frames = bare.ask(Header(Kind.SHARE, 0, 0, number, -1, client.session), offer)
            assert kind == Kind.ERROR and b"stumbled" not in frames[0], offer
        kind, frames = bare.ask(Header(Kind.SHARE, 0, 0, 7, -1, 5), OFFER.pack(1, 1, bytes(16)))
        assert kind == Kind.ERROR and b"must say hello first" in frames[0]
        kind, _ = bare.ask(Header(Kind.PLACED, 0, 0, 7, -1, client.session))
        assert kind == Kind.ERROR
        assert running.servers[0].members[0].ring is None
        assert torch.equal(pull(client, 1, IDS), expected)
        bare.close()
        os.close(sound)


def test_a_worker_that_lies_in_its_memory() -> None:
    """It gets its rows, or spoils its own; the server and other workers notice nothing."""
    spec = make_spec("sgd", workers=2, mode="async")
    with (
        serving() as running,
        joined(running.addresses, spec) as one,
        joined(running.addresses, spec, 1) as two,
    ):
        expected, bare = pull(two, 1, IDS), Bare(running.addresses[0])
        file = memory_file()
        with pytest.raises(PermissionError):
            os.ftruncate(file, 0)
        header = Header(Kind.SHARE, 0, 0, 1, -1, one.session)
        assert bare.ask(header, OFFER.pack(os.getpid(), file, bytes(16)))[0] == Kind.OK
        body = struct.pack(f"<3q{len(IDS)}q", 1, 1, len(IDS), *IDS)
        lies = (0, 1, 63, 64, CAPACITY, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - CAPACITY)
        kinds = set()
        for number in range(400):
            os.pwrite(file, struct.pack("<Q", lies[number % len(lies)]), 0)
            if number % 50 == 0:  # its pages are gone, and come back when they are touched
                punch(file, HEAD, CAPACITY)
            asked = Header(Kind.PULL, 0, SHARED, 100 + number, -1, one.session)
            bare.socket.send(asked.pack() + body)
            (message,) = bare.socket.recv_multipart()
            kinds.add(struct.unpack_from("<H", message, 6)[0])
        assert kinds == {Kind.OK, Kind.PLACED}
        assert torch.equal(pull(two, 1, IDS), expected)
        assert passed(two)[0] >= expected.nbytes
        bare.close()
        os.close(file)


def punch(file: int, first: int, size: int) -> None:
    """Let a file's memory go, while its size stays."""
    import ctypes

    keep_size, punch_hole = 1, 2
    libc: Any = ctypes.CDLL(None, use_errno=True)
    done = libc.fallocate(file, keep_size | punch_hole, ctypes.c_long(first), ctypes.c_long(size))
    assert done == 0, os.strerror(ctypes.get_errno())


def refusal(frame: bytes) -> str:
    try:
        open_offered(frame)
    except WireError as error:
        return str(error)
    return "opened"


@needs_root
def test_another_user_opens_nothing() -> None:
    """Neither the memory of this one, nor with a root's server memory of its own."""
    memory = Offered(0)
    assert "cannot be opened" in as_nobody(refusal, memory.frame)
    assert refusal(memory.frame) == "opened"
    os.fchown(memory.file, 65534, 65534)
    assert "is of another user" in refusal(memory.frame)
    memory.close()

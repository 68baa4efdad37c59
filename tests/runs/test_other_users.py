"""Another user of the same host joins nothing, orders nothing and reads nothing of a run.

Those of whole commands are in tests/cluster/test_joining.py, of servers in test_ps_attacks.py.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from pathlib import Path

import torch
from other_user import as_nobody, needs_root, reached

from shoal.distributed.curve import derive_keys
from shoal.distributed.hosts import private_folder
from shoal.distributed.liveness import Beat, stack_of
from shoal.distributed.meeting import MeetingPlace
from shoal.distributed.rendezvous import Rendezvous, RunStore
from shoal.distributed.streams import Streams
from shoal.distributed.tunnel import _is_own_user
from shoal.embedding.engines.row_records import RowRecords
from shoal.launch.hosts import scratch_folder

pytestmark = needs_root


def test_the_place_where_ranks_of_a_host_meet() -> None:
    place = MeetingPlace(path=str(private_folder() / f"test-{os.getpid()}"))
    meeting = Rendezvous(place)
    try:
        assert as_nobody(reached, [Path(place.path), private_folder()]) == []
        RunStore(place, b"", 5.0).set("a", b"b")  # its own user is let in
    finally:
        meeting.close()


def test_what_processes_leave_for_the_hang_watch() -> None:
    """Their beats and stacks: whoever could write there could have a rank ended."""
    with scratch_folder() as scratch:
        beats = Path(scratch) / "beats"
        beats.mkdir()
        Beat().open(beats / "rank-0")
        paths = [Path(scratch), beats, beats / "rank-0", stack_of(beats / "rank-0")]
        assert all(path.exists() for path in paths)
        assert as_nobody(reached, paths) == []


def connect(place: str, port: int) -> bytes:
    with socket.create_connection((place, port), timeout=10) as line:
        line.sendall(b"x")
        return line.recv(1)


def test_tunnel_forwards_only_connections_of_its_own_user() -> None:
    """The loopback address of a rank on another host is open to all users of this host."""
    target, accepted = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def accept() -> None:
        line, _ = target.accept()
        accepted.set()
        line.close()

    threading.Thread(target=accept, daemon=True).start()
    keys = derive_keys(b"the secret of this run")
    remote, local = Streams(), Streams()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    try:
        remote_port = remote.listen("127.0.0.1", 0, keys, target.getsockname())
        address = ("127.0.0.1", remote_port)
        local.forward(("127.0.0.1", port), address, keys, _is_own_user)
        assert as_nobody(connect, "127.0.0.1", port) == b"" and not accepted.is_set()
        assert connect("127.0.0.1", port) == b"" and accepted.wait(10)
    finally:
        local.close()
        remote.close()
        target.close()


def rows_of_nobody(folder: Path) -> list[int]:
    log = RowRecords(folder, "t", 3, 16)
    try:
        return log.read(log.put(torch.arange(6).view(2, 3)))[:, 0].tolist()
    finally:
        log.close()


def test_rows_on_a_disk_that_users_share() -> None:
    """Nobody reads another's, and nobody is kept from working by another's folder."""
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder)
        shared.chmod(0o1777)
        log = RowRecords(shared, "t", 3, 16)
        log.put(torch.ones(2, 3, dtype=torch.int64))
        (shared / "shoal-rows-nonsense").write_text("no folder at all")
        assert log.folder is not None
        assert as_nobody(reached, [log.folder, *log.folder.iterdir()]) == []
        assert as_nobody(rows_of_nobody, shared) == [0, 3]
        log.close()

"""`shoal serve --processes`: one address, one sum of figures, one copy in memory; ends of any."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="shoal serve needs the extra `serve`")
pytest.importorskip("httptools", reason="shoal serve needs the extra `serve`")

from served import Served
from test_serve_process import version

from shoal.files.durable import count
from shoal.serving.processes import copies
from shoal.serving.processes.copies import CopyStore, SharedCopies
from shoal.serving.processes.sums import figure, lasting, summed

QUESTION = {"user": "5"}


def children(served: Served) -> list[int]:
    """The processes that answer."""
    pid = served.process.pid
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def are_ready(served: Served, artifact: str) -> bool:
    ready = served.call("/ready")[1]
    all_ready = ready.get("processes") == {"ready": 2, "of": 2, "alike": True}
    return all_ready and ready["artifact"] == artifact


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("days")
    version(folder / "day-0")
    return folder


@pytest.fixture(scope="module")
def served(days: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    words = ("--processes=2", "--seconds=240", "--drain=3")
    with Served(days, tmp_path_factory.mktemp("serve"), *words) as found:
        yield found


def test_all_are_ready_when_the_address_is_written(served: Served) -> None:
    assert len(children(served)) == 2 and are_ready(served, "day-0")
    assert served.figure("processes") == 2 and served.figure("process_restarts_total") == 0


def test_figures_are_those_of_all_processes(served: Served) -> None:
    before = served.figure("batched_requests_total")
    threads = [
        threading.Thread(target=lambda: [served.call("/v1/recommend", QUESTION) for _ in range(10)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(6):  # whichever is asked
        assert served.figure("batched_requests_total") == before + 40
    assert 'shoal_artifact_info{artifact="day-0",model="SASRec"' in served.call("/metrics")[1]


def test_files_are_in_memory_once(served: Served) -> None:
    def mapped(pid: int) -> set[str]:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return {line.split()[4] for line in lines if "memfd:shoal-artifact" in line}

    first, second = (mapped(pid) for pid in children(served))
    assert first and first == second  # the same inodes
    assert not mapped(served.process.pid)


def test_a_newer_one_is_taken_by_every_process(days: Path, served: Served) -> None:
    version(days / ".new", "a second day").rename(days / "day-1")
    served.until(lambda: are_ready(served, "day-1"))
    assert served.figure("reloads_total") == 2
    bad = version(days / ".bad", "a third day")
    (bad / "dense.safetensors").write_bytes(b"other")
    bad.rename(days / "day-2")
    served.until(lambda: served.figure("reload_failures_total") >= 2)
    assert are_ready(served, "day-1")


def test_one_that_is_killed_is_replaced(served: Served) -> None:
    before = served.figure("batched_requests_total")
    victim = children(served)[1]
    os.kill(victim, signal.SIGKILL)
    served.until(lambda: victim not in children(served))
    for _ in range(5):  # the other one answers
        assert served.call("/v1/recommend", QUESTION)[0] == 200
    served.until(lambda: served.figure("processes") == 2)
    assert served.figure("process_restarts_total") == 1
    assert served.figure("batched_requests_total") == before + 5
    assert re.search(rf"\(pid {victim}\) ended by SIGKILL; another", served.log.read_text())


def test_a_stop_loses_no_request(days: Path, served: Served) -> None:
    """The signal comes to all of them, as service managers and terminals send it."""
    statuses: list[int] = []

    def ask() -> None:  # as a balancer does: until it is not ready
        while served.call("/ready")[0] == 200:
            statuses.append(served.call("/v1/recommend", QUESTION)[0])

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    served.until(lambda: len(statuses) > 20)
    for pid in (*children(served), served.process.pid):
        os.kill(pid, signal.SIGTERM)
    for client in clients:
        client.join()
    assert set(statuses) == {200} and served.process.wait(60) == 0
    assert served.log.read_text().endswith("stopped\n")


@pytest.mark.slow
def test_processes_end_with_their_parent(days: Path, tmp_path: Path) -> None:
    with Served(days, tmp_path, "--processes=2") as served:
        pids = children(served)
        served.process.kill()
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            time.sleep(0.02)


def test_what_is_wrong_is_reported_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shoal", "serve", "--processes=2", "--port=0"]
    done = subprocess.run([*command, str(tmp_path / "no")], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("error:") == 1
    assert "no is no artifact; `shoal export RUN" in done.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = f"--port={taken.getsockname()[1]}"
        done = subprocess.run([*command, port, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 2 and "cannot listen at 127.0.0.1" in done.stderr


# A service whose second process ends whenever it was started; no model is needed for it.
FAILING = """
import os, sys, time
from shoal.serving.http.listening import ServiceReach
from shoal.serving.processes import child, parent

child.LONGEST_PAUSE = 0.0
process = parent.begin_processes(2, ServiceReach(port=0, announce=sys.argv[1]))
process._send({"ready": True})
while not process._read(wait=True): pass
process._send({"listening": True})
if process.number:
    os._exit(3)
while not any("stop" in message for message in process._read(wait=True)): pass
"""


def test_one_that_always_ends_ends_the_service(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FAILING, str(tmp_path / "url")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert "process 1 of the service ended 10 times, each within 60 s" in done.stderr
    assert done.stdout.count("with status 3; another one is started") == 9


# ---- copies ------------------------------------------------------------------------------------


@pytest.fixture
def store() -> Iterator[tuple[CopyStore, SharedCopies]]:
    """A parent's store, which answers in a thread, and the side of a process."""
    store = CopyStore()
    end, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def answer() -> None:
        with suppress(OSError, ValueError):
            while True:
                store.answer(end)

    thread = threading.Thread(target=answer)
    thread.start()
    yield store, SharedCopies(link)
    end.shutdown(socket.SHUT_RDWR)
    thread.join()
    end.close()
    link.close()
    store.close()


def test_a_copy_is_filled_once_and_cannot_be_changed(
    store: tuple[CopyStore, SharedCopies], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, process = store
    file = tmp_path / "rows"
    file.write_bytes(b"rows" * 5000)
    facts = count(file)
    copy = process.open(file, facts)
    file.write_bytes(b"another")
    again = process.open(file, facts)  # not read a second time
    assert os.path.sameopenfile(copy, again) and os.pread(again, 8, 0) == b"rowsrows"
    with pytest.raises(PermissionError):
        os.pwrite(copy, b"x", 0)
    monkeypatch.setattr(copies, "UNUSED_SECONDS", -1.0)
    with open(f"/proc/self/fd/{copy}", "rb"):
        parent.sweep()
        assert facts["sha256"] in parent.copies
    parent.sweep()
    assert facts["sha256"] not in parent.copies
    os.close(copy)
    os.close(again)


def test_a_part_and_another_file_are_no_copy(
    store: tuple[CopyStore, SharedCopies], tmp_path: Path
) -> None:
    _, process = store
    file = tmp_path / "rows"
    file.write_bytes(b"rows" * 5000)
    facts = count(file)
    os.truncate(file, 8)
    with pytest.raises(ValueError, match="rows fails its checksum"):
        process.open(file, facts)
    with pytest.raises(FileNotFoundError):
        process.open(tmp_path / "gone", facts)
    part = process._ask_for(facts["sha256"])
    os.pwrite(part, b"who wrote this was killed", 0)
    file.write_bytes(b"rows" * 5000)
    copy = process.open(file, facts)
    assert os.fstat(copy).st_size == 20_000 and os.pread(copy, 4, 0) == b"rows"
    os.close(part)
    os.close(copy)


def test_trials_are_shared(store: tuple[CopyStore, SharedCopies]) -> None:
    _, process = store
    assert not process.was_tried("a")
    process.add_tried("a")
    assert process.was_tried("a") and not process.was_tried("b")


def test_sums_are_those_of_each_kind() -> None:
    def document(requests: int, uptime: int, states: int) -> dict:
        return {
            **figure("shoal_requests", "counter", "", requests),
            **figure("shoal_uptime_seconds", "gauge", "", uptime),
            **figure("shoal_states", "gauge", "", states),
        }

    def values(total: dict) -> list[float]:
        return [facts["samples"][0][2] for facts in total.values()]

    both = [document(2, 10, 4), document(3, 20, 5)]
    assert values(summed(both)) == [5, 20, 9]
    assert values(summed([lasting(both[0]), both[1]])) == [5, 20, 5]

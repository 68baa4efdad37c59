"""One child: input after input. Input k of a target is a function of (seed, target, k) alone.

Its progress is in a small file that the parent reads: how many inputs are done, which one runs now,
and the process that serves (for frames).
"""

import logging
import mmap
import random
import struct
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATUS = struct.Struct("<qq40s")  # inputs done, process that serves, input


class Status:
    """Progress of a child, in memory that parent and child share."""

    def __init__(self, path: Path):
        if not path.exists():
            path.write_bytes(bytes(STATUS.size))
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), STATUS.size)

    def write(self, done: int, what: str, server: int = 0) -> None:
        self.memory[:] = STATUS.pack(done, server, what.encode()[:40])

    def read(self) -> tuple[int, int, str]:
        done, server, what = STATUS.unpack(self.memory[:])
        return done, server, what.rstrip(b"\0").decode()


def rng_of(seed: int, target: str, number: int) -> random.Random:
    return random.Random(f"{seed}:{target}:{number}")


def note(findings: Path, seed: int, what: str, data: bytes, error: BaseException) -> None:
    """A finding: a line with the seed, and the input in a file."""
    path = findings / f"{what.replace(' ', '-')}-{seed}"
    path.write_bytes(data)
    path.with_suffix(".txt").write_text("".join(traceback.format_exception(error)))
    where = traceback.extract_tb(error.__traceback__)[-1]
    print(
        f"FINDING seed={seed} input={what!r}: {type(error).__name__}: {str(error)[:200]} "
        f"({Path(where.filename).name}:{where.lineno}) -> {path}",
        flush=True,
    )


def files(seed: int, status: Status, findings: Path, most: int) -> None:
    from fuzz import files as room

    logging.getLogger("shoal").setLevel(logging.CRITICAL)  # refusals, of which there are many
    failed: list[Any] = []  # errors of threads
    threading.excepthook = lambda given: failed.append(given.exc_value)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        targets = room.make(folder)
        _try_corpus(targets, folder, findings, seed)
        number = turn = 0
        while number < most or not most:
            due = {name: one for name, one in targets.items() if turn % one.every == 0}
            turn += 1
            for name, target in due.items():
                status.write(number, f"{name} {number}")
                try:
                    room.once(name, target, folder, rng_of(seed, name, number))
                except Exception as error:
                    failed.append(error)
                while failed:
                    data = (folder / target.name).read_bytes()
                    note(findings, seed, f"{name} {number}", data, failed.pop())
                number += 1
        status.write(number, "")


def _try_corpus(targets: dict[str, Any], folder: Path, findings: Path, seed: int) -> None:
    """Inputs that once found something: TARGET-anything."""
    for path in sorted((Path(__file__).parent / "corpus").glob("*")):
        target = targets[path.name.split("-")[0]]
        (folder / target.name).write_bytes(path.read_bytes())
        try:
            target.read(folder / target.name)
        except ValueError:
            pass
        except Exception as error:
            note(findings, seed, f"corpus {path.name}", path.read_bytes(), error)


def core(seed: int, status: Status, findings: Path, most: int, library: str | None) -> None:
    from fuzz import core as room

    found = room.load(library)
    _calls("core", lambda rng: room.once(found, rng), seed, status, findings, most)


def operators(seed: int, status: Status, findings: Path, most: int) -> None:
    from fuzz import operators as room

    _calls("operators", room.make(), seed, status, findings, most)


def _calls(
    name: str,
    call: Callable[[random.Random], Any],
    seed: int,
    status: Status,
    findings: Path,
    most: int,
) -> None:
    number = 0
    while number < most or not most:
        status.write(number, f"{name} {number}")
        try:
            call(rng_of(seed, name, number))
        except Exception as error:
            note(findings, seed, f"{name} {number}", b"", error)
        number += 1
    status.write(number, "")


def frames(seed: int, status: Status, findings: Path, most: int) -> None:
    from fuzz import frames as room

    done = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            for sent, server in room.bursts(seed, Path(folder)):
                done += sent
                status.write(done, f"frames {done}" if server else "start", server)
                if most and done >= most:
                    break
        except Exception as error:
            note(findings, seed, f"frames {done}", b"", error)
            raise SystemExit(3) from error


def main() -> None:
    """child.py TARGET SEED STATUS FINDINGS MOST [LIBRARY]"""
    target, seed, status, findings, most, *more = sys.argv[1:]
    given = (int(seed), Status(Path(status)), Path(findings), int(most))
    if target == "core":
        core(*given, more[0] if more else None)
    else:
        {"files": files, "frames": frames, "operators": operators}[target](*given)


if __name__ == "__main__":
    main()

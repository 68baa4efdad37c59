"""One child: input after input. Input k of a target is a function of (seed, target, k) alone.

What it is at stands in a small file that the parent reads: how many inputs are done, since when the
present one runs, which it is, and the process that serves (for frames).
"""

from __future__ import annotations

import mmap
import random
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

STATUS = struct.Struct("<qdq40s")  # done, begun, process that serves, input


class Status:
    """What a child is at, in memory that parent and child share."""

    def __init__(self, path: Path):
        if not path.exists():
            path.write_bytes(bytes(STATUS.size))
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), STATUS.size)

    def tell(self, done: int, what: str, server: int = 0) -> None:
        self.memory[:] = STATUS.pack(done, time.monotonic(), server, what.encode()[:40])

    def read(self) -> tuple[int, float, int, str]:
        done, begun, server, what = STATUS.unpack(self.memory[:])
        return done, begun, server, what.rstrip(b"\0").decode()


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

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        targets = room.make(folder)
        _try_corpus(targets, folder, findings, seed)
        number = turn = 0
        while number < most or not most:
            due = {name: one for name, one in targets.items() if turn % one.every == 0}
            turn += 1
            for name, target in due.items():
                status.tell(number, f"{name} {number}")
                data = b""
                try:
                    data = room.once(name, target, folder, rng_of(seed, name, number))
                except Exception as error:
                    data = (folder / target.name).read_bytes()
                    note(findings, seed, f"{name} {number}", data, error)
                number += 1
        status.tell(number, "")


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
    number = 0
    while number < most or not most:
        status.tell(number, f"core {number}")
        try:
            room.once(found, rng_of(seed, "core", number))
        except Exception as error:
            note(findings, seed, f"core {number}", b"", error)
        number += 1
    status.tell(number, "")


def operators(seed: int, status: Status, findings: Path, most: int) -> None:
    from fuzz import operators as room

    call, number = room.make(), 0
    while number < most or not most:
        status.tell(number, f"operators {number}")
        try:
            call(rng_of(seed, "operators", number))
        except Exception as error:
            note(findings, seed, f"operators {number}", b"", error)
        number += 1
    status.tell(number, "")


def frames(seed: int, status: Status, findings: Path, most: int) -> None:
    from fuzz import frames as room

    done = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            for sent, server in room.bursts(seed, Path(folder)):
                done += sent
                status.tell(done, f"frames {done}" if server else "start", server)
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

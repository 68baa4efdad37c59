"""python -m fuzz --minutes 30 --seed N: children that run inputs; time and memory are watched.

Time is CPU time, so that a loaded machine raises no alarm: an input is a finding when its processes
compute for longer than --seconds, or when they were found asleep for six times as long.
Exit status 0: nothing was found. A finding is a line with its seed, and a file with its input.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from fuzz.child import Status

MIB = 1 << 20
MEMORY = {"files": 1536 * MIB, "frames": 1024 * MIB, "core": 2048 * MIB}  # a child may have
MEMORY["operators"] = 4096 * MIB  # what a graph may hold, twice
COPIES = {"files": 2, "frames": 1, "core": 1, "operators": 1}  # files take longest
FAR = 1000  # between the seeds of copies, as each takes the next one when it starts again
SERVER_MEMORY = 768 * MIB  # the server that frames are sent to
ROOT = Path(__file__).parents[2]


class Child:
    """A child, started again with another seed whenever it ends."""

    def __init__(self, target: str, seed: int, options: argparse.Namespace):
        self.target, self.seed, self.options = target, seed, options
        self.done, self.crashes, self.peak = 0, 0, 0
        self.start()

    def start(self) -> None:
        self.path = self.options.findings / f".status-{self.target}-{self.seed}"
        self.path.unlink(missing_ok=True)
        self.status = Status(self.path)
        self.status.write(0, "start")
        self.watch = Watch("start")
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, self._paths())))
        arguments = [sys.executable, "-m", "fuzz.child", self.target, str(self.seed)]
        arguments += [str(self.path), str(self.options.findings), str(self.options.inputs)]
        if self.target == "core" and self.options.core:
            arguments.append(str(self.options.core))
            environment |= sanitized()
        self.process = subprocess.Popen(
            arguments, env=environment, stderr=self._errors(), process_group=0
        )

    def _paths(self) -> list[Path]:
        return [ROOT, ROOT / "tests", ROOT / "tests" / "helpers"]

    def _errors(self) -> int:
        path = self.options.findings / f"{self.target}-{self.seed}.stderr"
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def look(self) -> bool:
        """Check on it; returns whether it continues."""
        done, server, what = self.status.read()
        ended = self.process.poll()
        if ended is not None:
            self.done += done
            if ended == 0:
                return False
            self.found(f"ended with status {ended}", what)
            return self.again()
        seconds = self.options.seconds * (6 if what == "start" else 1)
        for pid, most in ((self.process.pid, MEMORY[self.target]), (server, SERVER_MEMORY)):
            held = resident(pid) if pid else 0
            self.peak = max(self.peak, held)
            if held > most:
                self.found(f"process {pid} holds {held // MIB} MiB of {most // MIB}", what)
                return self.again()
        if what != self.watch.what:
            self.watch = Watch(what)
        wrong = self.watch.look([pid for pid in (self.process.pid, server) if pid], seconds)
        if wrong:
            self.found(wrong, what)
            return self.again()
        return True

    def found(self, what: str, where: str) -> None:
        self.crashes += 1
        print(f"FINDING seed={self.seed} input={where!r}: {self.target} {what}", flush=True)

    def again(self) -> bool:
        self.stop()
        if self.crashes > 20:
            return False
        self.seed += 1
        self.start()
        return True

    def stop(self) -> None:
        self.done += self.status.read()[0]
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # and the servers that it started
        self.process.wait()

    def count(self) -> int:
        return self.done + self.status.read()[0]


class Watch:
    """One input: the CPU time of its processes since it began, and how long they only slept."""

    def __init__(self, what: str):
        self.what, self.asleep, self.looked = what, 0.0, time.monotonic()
        self.before: dict[int, float] = {}

    def look(self, pids: list[int], seconds: float) -> str:
        """Why this input is a finding; empty: it is not."""
        now, computed, awake = time.monotonic(), 0.0, False
        for pid in pids:
            cpu, runnable = usage(pid)
            computed += cpu - self.before.setdefault(pid, cpu)
            awake = awake or runnable
        # Between two looks it may have been computing: at most a second of them counts.
        self.asleep += 0.0 if awake else min(1.0, now - self.looked)
        self.looked = now
        if computed > seconds:
            return f"took more than {seconds:.0f} s of CPU time"
        return f"slept for {self.asleep:.0f} s" if self.asleep > 6 * seconds else ""


def usage(pid: int) -> tuple[float, bool]:
    """CPU seconds of a process so far, and whether a thread of it runs or waits for its turn."""
    total, runnable = 0.0, False
    try:
        whole = _stat(Path(f"/proc/{pid}/stat"))
        total = (int(whole[11]) + int(whole[12])) / os.sysconf("SC_CLK_TCK")
        for task in Path(f"/proc/{pid}/task").iterdir():
            runnable = runnable or _stat(task / "stat")[0] in "RD"
    except (OSError, IndexError):  # it, or a thread of it, has just ended
        runnable = True
    return total, runnable


def _stat(path: Path) -> list[str]:
    """The fields from the state on; a name before them may hold anything."""
    return path.read_text().rpartition(")")[2].split()


def sanitized() -> dict[str, str]:
    """What a program needs into which a sanitized library is loaded."""
    found = [
        subprocess.run(["c++", f"-print-file-name={name}"], capture_output=True, text=True)
        for name in ("libasan.so", "libubsan.so")
    ]
    return {
        "LD_PRELOAD": " ".join(one.stdout.strip() for one in found),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=0",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "OMP_NUM_THREADS": "1",
    }


def resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGESIZE")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--inputs", type=int, default=0, help="inputs of a child; 0: no end")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="CPU time of one input or burst of frames"
    )
    parser.add_argument("--only", nargs="+", choices=list(MEMORY), default=list(MEMORY))
    parser.add_argument("--core", type=Path, help="a core built with sanitizers")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    return parser.parse_args()


def main() -> int:
    """Run the children until the time is over, or their inputs are."""
    options = parse()
    options.findings.mkdir(parents=True, exist_ok=True)
    print(f"fuzz: seed {options.seed}, {options.minutes:g} minutes", flush=True)
    before = set(options.findings.glob("*.txt"))
    begun = time.monotonic()
    children = [
        Child(target, options.seed + FAR * copy, options)
        for target in options.only
        for copy in range(COPIES[target] if not options.inputs else 1)
    ]
    alive = list(children)
    try:
        while alive and time.monotonic() - begun < 60 * options.minutes:
            time.sleep(1.0 if not options.inputs else 0.1)
            alive = [child for child in alive if child.look()]
            counts = {target: 0 for target in options.only}
            for child in children:
                counts[child.target] += child.count()
            line = ", ".join(f"{target} {count}" for target, count in counts.items())
            print(f"{time.monotonic() - begun:5.0f} s  {line}", flush=True)
    finally:
        for child in alive:
            child.stop()
    crashes = sum(child.crashes for child in children)
    written = set(options.findings.glob("*.txt")) - before
    for child in children:
        print(f"{child.target}: {child.done} inputs, at most {child.peak // MIB} MiB", flush=True)
    print(f"{crashes} crashes or hangs, {len(written)} other findings", flush=True)
    return 1 if crashes or written else 0


if __name__ == "__main__":
    sys.exit(main())

"""Chaos: runs that are hit at random, go on in another shape, and must end as if never hit.

make chaos MINUTES=60 SEED=7          one line a trial; the status is 1 if one failed
make chaos SEED=7 TRIAL=12            those of run 12 again
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from net_hosts import Impossible

from chaos.hitting import Problems, Reference
from chaos.losing import carry_out
from chaos.trials import OTHERS, Trial, draw

OUTCOMES = ("ok", "FAILED", "too late", "impossible")
AT_A_TIME = 2  # while one waits for a hang to be noticed, or starts, the other trains


class Runs:
    """Runs of one seed, and what came of their trials."""

    def __init__(self, seed: int, place: Path, deadline: float):
        self.seed, self.place, self.deadline = seed, place, deadline
        self.reference = Reference(place)
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.numbers = itertools.count()
        self._lock = threading.Lock()

    def go_on(self) -> None:
        """One after the other until the time is over."""
        while time.monotonic() < self.deadline:
            with self._lock:
                number = next(self.numbers)
            self.carry_out(number)

    def carry_out(self, number: int) -> None:
        """One of them."""
        folder, trials = self.place / f"run-{number}", draw(self.seed, number)
        found, failed, begun = carry_out(trials, folder, self.reference), False, time.monotonic()
        for k, trial in enumerate(trials):
            problems: Problems
            try:
                problems = next(found)
                outcome = "too late" if problems is None else "FAILED" if problems else "ok"
            except StopIteration:  # it was over, or one before failed
                break
            except Impossible as error:
                problems, outcome = [str(error)], "impossible"
            except Exception:  # any: a trial that breaks off is one that failed; others go on
                problems, outcome = [traceback.format_exc()], "FAILED"
            failed |= outcome == "FAILED"
            told = f"{trial.shape}, {trial.blow}, resumed {trial.after}: {outcome}"
            with self._lock:
                self.outcomes[row_of(trial), outcome] += 1
                print(f"{number:4d}.{k}  {told} ({time.monotonic() - begun:.0f} s)", flush=True)
                for problem in problems or []:
                    print(f"        {problem}", flush=True)
            begun = time.monotonic()
        if not failed:
            shutil.rmtree(folder, ignore_errors=True)

    def count(self, *outcomes: str) -> int:
        """Trials with one of these outcomes."""
        return sum(self.outcomes[key] for key in self.outcomes if key[1] in outcomes)

    def table(self) -> Iterator[str]:
        """Lines for benchmarks/RESULTS.md."""
        yield f"| hit | {' | '.join(OUTCOMES)} |"
        yield "| --- |" + " --- |" * len(OUTCOMES)
        for row in sorted({row for row, _ in self.outcomes}):
            yield f"| {row} | {' | '.join(str(self.outcomes[row, one]) for one in OUTCOMES)} |"
        yield f"| all | {' | '.join(str(self.count(one)) for one in OUTCOMES)} |"


def row_of(trial: Trial) -> str:
    """The line of the table that a trial counts in."""
    return trial.victim if trial.victim in OTHERS else trial.shape.kind


def main() -> int:
    """Trials until the time is over; whether one failed."""
    given = argparse.ArgumentParser(prog="chaos")
    given.add_argument("--minutes", type=float, default=60.0)
    given.add_argument("--seed", type=int, default=random.randrange(10**6))
    given.add_argument("--trial", type=int, help="only those of this run")
    words = given.parse_args()
    place = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {words.seed}, in {place}", flush=True)
    begun = time.monotonic()
    runs = Runs(words.seed, place, begun + 60 * words.minutes)
    if words.trial is not None:
        runs.carry_out(words.trial)
    else:
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            for one in [pool.submit(runs.go_on) for _ in range(AT_A_TIME)]:
                one.result()
    print("", *runs.table(), "", sep="\n")
    failed, minutes = runs.count("FAILED"), (time.monotonic() - begun) / 60
    if not failed:
        shutil.rmtree(place, ignore_errors=True)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"seed {words.seed}: {runs.count('ok', 'FAILED')} trials in {minutes:.0f} minutes on "
        f"{os.cpu_count()} cores ({spent.ru_utime + spent.ru_stime:.0f} s of processor time), "
        f"{failed} failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Chaos: runs that are hit at random, go on in another shape, and must end as if never hit.

make chaos MINUTES=60 SEED=7          one line a trial; the status is 1 if one failed
make chaos SEED=7 TRIAL=12            one of them again
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from chaos.ground import Impossible
from chaos.hitting import Reference
from chaos.losing import carry_out
from chaos.trials import OTHERS, Trial, draw

OUTCOMES = ("ok", "FAILED", "too late", "impossible")
AT_A_TIME = 2  # while one waits for a hang to be noticed, or starts, the other trains


class Trials:
    """Trials of one seed, and what came of them."""

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
        begun, trial = time.monotonic(), draw(self.seed, number)
        folder = self.place / f"trial-{number}"
        problems: list[str] | None
        try:
            problems = carry_out(trial, folder, self.reference)
            outcome = "too late" if problems is None else "FAILED" if problems else "ok"
        except Impossible as error:
            problems, outcome = [str(error)], "impossible"
        except Exception:  # any: a trial that breaks off is one that failed, and the others go on
            problems, outcome = [traceback.format_exc()], "FAILED"
        seconds = time.monotonic() - begun
        told = f"{trial.shape}, {trial.blow}, resumed {trial.after}: {outcome} ({seconds:.0f} s)"
        with self._lock:
            self.outcomes[row_of(trial), outcome] += 1
            print(f"{number:4d}  {told}", flush=True)
            for problem in problems or []:
                print(f"      {problem}", flush=True)
        if outcome != "FAILED":
            shutil.rmtree(folder, ignore_errors=True)


def row_of(trial: Trial) -> str:
    """The line of the table that a trial counts in."""
    return trial.victim if trial.victim in OTHERS else trial.shape.kind


def main() -> int:
    """Trials until the time is over; whether one failed."""
    given = argparse.ArgumentParser(prog="chaos")
    given.add_argument("--minutes", type=float, default=60.0)
    given.add_argument("--seed", type=int, default=random.randrange(10**6))
    given.add_argument("--trial", type=int, help="only this one")
    words = given.parse_args()
    place = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {words.seed}, in {place}", flush=True)
    begun = time.monotonic()
    trials = Trials(words.seed, place, begun + 60 * words.minutes)
    if words.trial is not None:
        trials.carry_out(words.trial)
    else:
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            for one in [pool.submit(trials.go_on) for _ in range(AT_A_TIME)]:
                one.result()
    outcomes = trials.outcomes
    print(f"\n{'hit':14}" + "".join(f"{name:>12}" for name in OUTCOMES))
    for row in sorted({row for row, _ in outcomes}):
        print(f"{row:14}" + "".join(f"{outcomes[row, name]:12}" for name in OUTCOMES))
    failed = sum(count for (_, outcome), count in outcomes.items() if outcome == "FAILED")
    if not failed:
        shutil.rmtree(place, ignore_errors=True)
    minutes = (time.monotonic() - begun) / 60
    total = sum(outcomes.values())
    print(f"seed {words.seed}: {total} trials in {minutes:.0f} minutes, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

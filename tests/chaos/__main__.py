"""Chaos: runs that are killed at random, resumed in another shape, and must end as if never hit.

make chaos MINUTES=60 SEED=7          one line a trial; the status is 1 if one failed
make chaos SEED=7 TRIAL=12            one of them again
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from chaos.hitting import Reference, carry_out
from chaos.trials import draw


def main() -> int:
    """Trials until the time is over; how many failed."""
    given = argparse.ArgumentParser(prog="chaos")
    given.add_argument("--minutes", type=float, default=60.0)
    given.add_argument("--seed", type=int, default=random.randrange(10**6))
    given.add_argument("--trial", type=int, help="only this one")
    words = given.parse_args()
    place = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {words.seed}, in {place}", flush=True)
    deadline = time.monotonic() + 60 * words.minutes
    reference = Reference(place)
    outcomes: Counter[tuple[str, str]] = Counter()
    number = words.trial or 0
    while time.monotonic() < deadline:
        begun, trial = time.monotonic(), draw(words.seed, number)
        folder = place / f"trial-{number}"
        problems = carry_out(trial, folder, reference)
        seconds = time.monotonic() - begun
        outcome = "too late" if problems is None else "FAILED" if problems else "ok"
        outcomes[trial.shape.kind, outcome] += 1
        told = f"{trial.shape}, {trial.blow}, resumed {trial.after}: {outcome} ({seconds:.0f} s)"
        print(f"{number:4d}  {told}", flush=True)
        for problem in problems or []:
            print(f"      {problem}", flush=True)
        if not problems:
            shutil.rmtree(folder, ignore_errors=True)
        if words.trial is not None:
            break
        number += 1
    failed = sum(count for (_, outcome), count in outcomes.items() if outcome == "FAILED")
    print(f"\n{'strategy':10} {'trials':>7} {'failed':>7} {'hit too late':>13}")
    for kind in dict.fromkeys(kind for kind, _ in outcomes):
        bad = outcomes[kind, "FAILED"]
        print(f"{kind:10} {outcomes[kind, 'ok'] + bad:7} {bad:7} {outcomes[kind, 'too late']:13}")
    if not failed:
        shutil.rmtree(place, ignore_errors=True)
    print(f"seed {words.seed}: {sum(outcomes.values())} trials, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

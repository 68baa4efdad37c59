"""Start-up: from the command to the first step of `make train`'s recipe, beside `import torch`.

    python benchmarks/startup.py [--times 9]

Both are started anew, one after the other, and timed from the moment the process is asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Compiled files are kept, as they are by default; those of torch came with its installation.
ENVIRONMENT = {key: v for key, v in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
TORCH = "import torch, time; print(time.perf_counter())"
# The command itself; afterwards its own clock, which result.json counts from.
TRAIN = """
import sys
from shoal.__main__ import main
sys.argv = ["shoal", "train", *sys.argv[1:]]
try:
    main()
finally:
    import shoal
    print(shoal.STARTED)
"""


def bare() -> float:
    """Seconds until torch is imported."""
    begun = time.perf_counter()  # of the whole system: the child's is the same clock
    return float(_run([sys.executable, "-c", TORCH])) - begun


def first_step(recipe: Path) -> float:
    """Seconds until the first step of a recipe begins."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "run"
        words = [str(recipe), "--train.epochs=1", f"--run.output={output}"]
        begun = time.perf_counter()
        told = _run([sys.executable, "-c", TRAIN, *words])
        startup = json.loads((output / "result.json").read_text())["seconds"]["startup"]
    return float(told.splitlines()[-1]) + startup - begun


def _run(words: list[str]) -> str:
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=9)
    parser.add_argument(
        "--recipe", type=Path, default=ROOT / "recipes" / "synthetic-bpr-single.yaml"
    )
    options = parser.parse_args()
    bare(), first_step(options.recipe)  # files into the cache
    torch, shoal = [], []
    for _ in range(options.times):
        torch.append(bare())
        shoal.append(first_step(options.recipe))
    ratios = [ours / theirs for ours, theirs in zip(shoal, torch)]
    print(f"{platform.machine()}, Python {platform.python_version()}, {options.times} times each")
    for name, found in (("import torch, s", torch), ("first step, s", shoal), ("ratio", ratios)):
        print(f"{name:16} median {statistics.median(found):.3f}  best {min(found):.3f}")


if __name__ == "__main__":
    main()

"""Install the wheels of dist/ into empty environments and use them there: `make matrix`.

Each Python that is found with each torch, one environment at a time (build/matrix, which keeps the
table). A Python may be a command, such as one of another processor or another Debian; it must see
build/matrix under the same path:

    python .ci/matrix.py [--pythons 3.13 "chroot ROOT python3"] [--torch 2.11 2.13]
"""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

from pythons import find_python

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "matrix"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TORCHES = ("2.11", "2.12", "2.13")
NAME = "import sys, platform; print(*sys.version_info[:2], platform.machine())"
# Packages, their MB, the seconds of the second `import shoal` (the first compiles), what to type.
LOOK = """
import json, subprocess, sys, sysconfig, time
from importlib.metadata import distributions
from pathlib import Path
site = Path(sysconfig.get_path("purelib"))
size = sum(file.stat().st_size for file in site.rglob("*") if file.is_file())
subprocess.run([sys.executable, "-c", "import shoal"], check=True)
begun = time.perf_counter()
import shoal
took = round(time.perf_counter() - begun, 3)
found = {"packages": len(list(distributions())), "MB": round(size / 1e6), "import shoal": took}
print(json.dumps([found, shoal.how_to_install("serve")]))
"""


class Failed(Exception):
    """A step of one environment."""


def call(*words: str | Path) -> str:
    """What a command prints; it runs outside the clone, whose own shoal/ Python would import."""
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=WORK, capture_output=True, text=True)
    if done.returncode:
        raise Failed(done.stdout + done.stderr)
    return done.stdout


def wheel_for(major: str, minor: str, machine: str) -> Path:
    """A copy of the one that fits, in build/matrix."""
    tag = "cp311-cp311" if (major, minor) == ("3", "11") else "cp312-abi3"
    (found,) = (ROOT / "dist").glob(f"*-{tag}-*_{machine}.whl")
    return Path(shutil.copy(found, WORK))


def try_one(before: list[str], python: str, torch: str) -> dict[str, object]:
    """The figures of one environment. before: words before a Python, such as `chroot ROOT`."""
    wheel = wheel_for(*call(*before, python, "-c", NAME).split())
    venv, folder = WORK / "venv", WORK / "smoke"
    for old in (venv, folder):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir()
    begun = time.monotonic()
    call(*before, python, "-m", "venv", venv)
    own = [*before, venv / "bin" / "python"]
    pip = [*own, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    call(*pip, wheel, f"torch=={torch}.*")
    took = time.monotonic() - begun
    looked, advice = json.loads(call(*own, "-c", LOOK).splitlines()[-1])
    call(*own, "-m", *shlex.split(advice))
    smoke = call(*own, shutil.copy(ROOT / ".ci" / "smoke.py", WORK), folder)
    return {"install": round(took), **looked, **json.loads(smoke.splitlines()[-1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pythons", nargs="+", default=PYTHONS)
    parser.add_argument("--torch", nargs="+", default=TORCHES)
    asked = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    lines, failed = [], 0
    for name in asked.pythons:
        is_version = re.fullmatch(r"3\.\d+", name)
        command = find_python(name) if is_version else name
        if command is None:
            lines.append(f"| {name} | | not on this machine |")
            print(lines[-1], flush=True)
            continue
        *before, python = shlex.split(command)
        for torch in asked.torch:
            try:
                found = try_one(before, python, torch)
                told = ", ".join(f"{key} {value}" for key, value in found.items())
            except Failed as error:
                failed, told = failed + 1, f"FAILED: {str(error).strip().splitlines()[-1]}"
                (WORK / "failed.log").write_text(str(error))
            lines.append(f"| {name} | {torch} | {told} |")
            print(lines[-1], flush=True)
            shutil.rmtree(WORK / "venv", ignore_errors=True)
    (WORK / "table.md").write_text("\n".join(lines) + "\n")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()

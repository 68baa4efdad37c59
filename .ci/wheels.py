"""Build into dist/ what a release has: `make wheels`.

cp311 and cp312-abi3 (Python 3.12 and later) for x86_64 and aarch64 Linux with glibc 2.28 or later,
and the source, which every other machine builds: without its core where there is no C++ compiler.
Both Pythons must be there, with their headers. Zig compiles, also for the other processor.

    python .ci/wheels.py [--pythons 3.11 ...] [--targets x86_64 ...] [--to FOLDER]
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from pythons import find_python

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "wheels"
PYTHONS = ("3.11", "3.12")
TARGETS = ("x86_64", "aarch64")
HOOK = "import sys; from scikit_build_core import build; getattr(build, sys.argv[1])"
BUILD = f"{HOOK}(sys.argv[2], dict(word.split('=') for word in sys.argv[3:]))"


def call(*words: str | Path, **env: str) -> None:
    subprocess.run(words, cwd=ROOT, env=os.environ | env, check=True)


def prepare(version: str) -> Path:
    """The folder of programs of a virtual environment for this Python, with the locked tools."""
    python = find_python(version)
    if python is None:
        sys.exit(f"python{version} is not there, on the PATH or of pyenv: install it, with headers")
    folder = WORK / f"python{version}"
    if not (folder / ".ready").exists():
        call(python, "-m", "venv", folder)
        words = ("-q", "--disable-pip-version-check", "--require-hashes", "--no-deps")
        call(folder / "bin" / "pip", "install", *words, "-r", ROOT / ".ci" / "wheels.txt")
        (folder / ".ready").touch()
    return folder / "bin"


def build_wheel(programs: Path, version: str, target: str, zig: Path, to: Path) -> None:
    """One wheel; auditwheel checks it and names the oldest C library that it works with."""
    raw = WORK / f"{version}-{target}"
    raw.mkdir(parents=True, exist_ok=True)
    for old in raw.glob("*.whl"):
        old.unlink()
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    call(
        *(programs / "python", "-c", BUILD, "build_wheel", raw, f"build-dir={raw}/build"),
        PATH=path,
        CMAKE_TOOLCHAIN_FILE=str(ROOT / ".ci" / "manylinux.cmake"),
        SHOAL_TARGET=target,
        SHOAL_ZIG=str(zig),
        # What CPython would be called there.
        _PYTHON_HOST_PLATFORM=f"linux-{target}",
        SETUPTOOLS_EXT_SUFFIX=f".cpython-{version.replace('.', '')}-{target}-linux-gnu.so",
    )
    (made,) = raw.glob("*.whl")
    call(programs / "auditwheel", "repair", "-w", to, made, PATH=path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pythons", nargs="+", default=PYTHONS)
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--to", type=Path, default=ROOT / "dist")
    asked = parser.parse_args()
    prepared = {version: prepare(version) for version in asked.pythons}
    programs = next(iter(prepared.values()))
    # One Zig for all: each compiles its C++ library once, and keeps it.
    (zig,) = programs.parent.glob("lib/python*/site-packages/ziglang/zig")
    for version, programs in prepared.items():
        for target in asked.targets:
            build_wheel(programs, version, target, zig, asked.to)
    call(programs / "python", "-c", BUILD, "build_sdist", asked.to)
    for file in sorted(asked.to.iterdir()):
        print(f"{file.stat().st_size / 1e6:6.1f} MB  {file.name}")


if __name__ == "__main__":
    main()

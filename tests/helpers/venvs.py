"""Virtual environments that have what a package requires, and nothing else.

Packages are not installed again: theirs are links to those of the Python that runs the tests.
"""

import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def required_by(requirements: list[str]) -> set[str]:
    """The names of all packages that these need, directly or not, and that are installed here."""
    found: set[str] = set()
    todo = [Requirement(text) for text in requirements]
    while todo:
        need = todo.pop()
        name = canonicalize_name(need.name)
        if name in found or not (need.marker is None or need.marker.evaluate({"extra": ""})):
            continue
        try:
            todo += [Requirement(text) for text in distribution(name).requires or []]
        except PackageNotFoundError:  # such as the Triton of a torch for GPUs
            continue
        found.add(name)
    return found


def make_venv(folder: Path, requirements: list[str]) -> Path:
    """Its `python`."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in required_by(requirements):
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            there = Path(str(distribution(name).locate_file(top)))
            if there.exists() and not (site / top).exists():
                (site / top).symlink_to(there)
    return folder / "bin" / "python"


def install(python: Path, wheel: Path) -> None:
    """A wheel, without what it requires."""
    words = ("--no-index", "--no-deps", "--no-compile", "-q", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "--python", python, "install", *words, wheel]
    subprocess.run(command, check=True)

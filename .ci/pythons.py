"""Pythons of this machine, by their version."""

import shutil
import subprocess
from pathlib import Path


def find_python(version: str) -> str | None:
    """The program of a version such as 3.12: on the PATH, or of pyenv; None where there is none."""
    named = shutil.which(f"python{version}")
    own = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for program in (*([named] if named else []), *map(str, own)):
        # pyenv puts programs on the PATH that refuse to run.
        if subprocess.run([program, "-c", ""], capture_output=True).returncode == 0:
            return program
    return None

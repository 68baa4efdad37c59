"""The wheel in an empty environment, away from the clone, with nothing but what it requires."""

import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from venvs import install, make_venv

import shoal

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SERVE = PROJECT["optional-dependencies"]["serve"]
BUILD = """
import sys
from scikit_build_core.build import build_wheel
build_wheel(sys.argv[1], {"build-dir": sys.argv[2]})
"""


def run(python: Path, folder: Path, *words: str) -> str:
    """What a command prints, in a folder, with no way to the clone."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def smoke(python: Path, folder: Path) -> None:
    """Train, recommend, export, serve; then quickstart, and what it says, to a list over HTTP."""
    (folder / "smoke").mkdir()
    run(python, folder, str(ROOT / ".ci" / "smoke.py"), str(folder / "smoke"))


@pytest.mark.slow
def test_a_wheel_without_a_compiler_works_alone(tmp_path: Path) -> None:
    """As does one of a machine for which there is no wheel with a core."""
    (tmp_path / "programs").mkdir()
    files = distribution("ninja").files or []
    ninja = next(file.locate() for file in files if file.name == "ninja")
    (tmp_path / "programs" / "ninja").symlink_to(Path(str(ninja)).resolve())
    env = os.environ | {"PATH": str(tmp_path / "programs")}
    env.pop("CXX", None)
    words = ["-c", BUILD, str(tmp_path), str(tmp_path / "build")]
    built = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True)
    assert built.returncode == 0, built.stderr.decode()
    assert "No C++ compiler" in built.stderr.decode()
    (wheel,) = tmp_path.glob("*.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    python = make_venv(tmp_path / "venv", [*PROJECT["dependencies"], *SERVE])
    install(python, wheel)
    version = run(python, tmp_path, "-m", "shoal", "--version")
    assert version.startswith(f"shoal {shoal.__version__}\ncore not built: torch and numpy")
    smoke(python, tmp_path)
    log = (tmp_path / "smoke" / "run" / "train.log").read_text()
    assert log.count('no curves: tensorboard is not installed: pip install "shoal-rec[') == 1
    command = [python, "-m", "shoal", "keys", "make", "keys"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2 and 'pip install "shoal-rec[servers]"' in refused.stderr


def test_the_package_is_imported_without_torch(tmp_path: Path) -> None:
    code = "import sys, shoal; print([m for m in sys.modules if m in ('torch', 'numpy', 'polars')])"
    assert run(Path(sys.executable), ROOT, "-c", code) == "[]\n"


@pytest.mark.slow
def test_the_wheel_of_this_machine_works_alone(tmp_path: Path) -> None:
    """As `make wheels` builds it: for an old C library, with its core."""
    machine = os.uname().machine
    version = ".".join(map(str, sys.version_info[:2]))
    words = ["--pythons", version, "--targets", machine, "--to", str(tmp_path)]
    subprocess.run([sys.executable, ROOT / ".ci" / "wheels.py", *words], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert "manylinux_2_2" in wheel.name and wheel.name.endswith(f"_{machine}.whl")
    python = make_venv(tmp_path / "venv", [*PROJECT["dependencies"], *SERVE])
    install(python, wheel)
    assert "by Clang" in run(python, tmp_path, "-m", "shoal", "--version")
    smoke(python, tmp_path)

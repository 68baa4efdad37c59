"""The native core under the compiler's sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = [shutil.which("cmake"), shutil.which("c++") or shutil.which("g++")]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(TOOLS), reason="needs cmake and a C++ compiler"),
]


def build(folder: Path, *options: str) -> None:
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), *options]
    for command in (configure, ["cmake", "--build", str(folder)]):
        subprocess.run(command, check=True, capture_output=True, timeout=900)


def test_threads_do_not_race(tmp_path: Path) -> None:
    build(tmp_path, "-DSHOAL_SANITIZE=thread")
    ran = subprocess.run([tmp_path / "shoal_check"], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "all checks passed" in ran.stdout


def test_no_function_reads_or_writes_outside_its_arrays(tmp_path: Path) -> None:
    build(
        tmp_path,
        "-DSHOAL_SANITIZE=address,undefined",
        "-DSHOAL_SANITIZE_CORE=ON",
        f"-DPython_EXECUTABLE={sys.executable}",
    )
    (core,) = tmp_path.glob("_core*.so")
    command = [sys.executable, "-m", "fuzz", "--only", "core", "--inputs", "3000", "--minutes", "5"]
    command += ["--core", str(core), "--findings", str(tmp_path / "found"), "--seed", "5"]
    paths = os.pathsep.join(str(ROOT / name) for name in ("tests", "tests/helpers"))
    environment = {**os.environ, "PYTHONPATH": paths}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]

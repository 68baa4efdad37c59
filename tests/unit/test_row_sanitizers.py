"""The native core under the compiler's sanitizers: built and run without Python."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = [shutil.which("cmake"), shutil.which("c++") or shutil.which("g++")]


@pytest.mark.slow
@pytest.mark.skipif(not all(TOOLS), reason="needs cmake and a C++ compiler")
@pytest.mark.parametrize("sanitizer", ["address", "undefined", "thread"])
def test_the_core_is_clean(sanitizer, tmp_path):
    configure = ["cmake", "-S", ROOT, "-B", tmp_path, f"-DSHOAL_SANITIZE={sanitizer}"]
    for command in (configure, ["cmake", "--build", tmp_path]):
        subprocess.run(command, check=True, capture_output=True, timeout=600)
    ran = subprocess.run([tmp_path / "shoal_check"], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "all checks passed" in ran.stdout

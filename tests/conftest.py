"""For all tests: one thread each, so that a busy machine slows them down and no more.

Real data (ml-100k, ml-1m, samples in criteo/, slots/ and goodreads/) is taken from the folder that
SHOAL_TEST_DATA names, or made once by the data script of a checkout that has one beside it.
Without either, tests that need it skip.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
import typer.testing
from captured_warnings import forget_log

ROOT = Path(__file__).resolve().parents[1]
GET = ROOT.parent / "shared" / "data" / "get"

torch.set_num_threads(1)
# A CliRunner builds all commands of `shoal` at every call, which takes longer than most of them.
typer.testing._get_command = cache(typer.testing._get_command)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A run within a test may ask for more; sums of the next test would be made in other parts."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def log_of_a_fresh_process() -> None:
    """An earlier test may have had a run, which set up logging for itself."""
    forget_log()


def pytest_configure() -> None:
    """Name the folder that processes share, and that of real data, before others are started."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ["SHOAL_TEST_SHARED"] = tempfile.mkdtemp(prefix="shoal-tests-")
    if "SHOAL_TEST_DATA" in os.environ or "PYTEST_XDIST_WORKER" in os.environ or not GET.is_file():
        return
    folder = ROOT / ".testdata"
    found = folder / "ml-1m.zip"
    if not found.is_file():
        with contextlib.suppress(subprocess.TimeoutExpired):  # then those tests skip
            subprocess.run(["bash", str(GET), str(folder)], capture_output=True, timeout=120)
    if found.is_file() and (folder / "ml-100k" / "ml-100k.inter").is_file():
        os.environ["SHOAL_TEST_DATA"] = str(folder)
        for name in ("criteo", "slots", "goodreads"):
            if (GET.parent / name).is_dir() and not (folder / name).exists():
                shutil.copytree(GET.parent / name, folder / name, copy_function=shutil.copyfile)


def pytest_unconfigure() -> None:
    """Remove the folder that processes shared, in the process that started them."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["SHOAL_TEST_SHARED"], ignore_errors=True)

"""Fixtures of the tests with real processes: configs, shared runs, and a check of what is left."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_configs import LONG, MODELS, SHORT, write_config
from commands import processes, run_here
from net_hosts import Hosts, Impossible, joined_hosts


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="session")
def short(place: Path) -> Path:
    """A config of a short BPR run."""
    return write_config(place / "short.yaml", MODELS["BPR"], SHORT)


@pytest.fixture(scope="session")
def endless(place: Path) -> Path:
    """A config of a run that only a failure ends."""
    return write_config(place / "endless.yaml", MODELS["BPR"], LONG, {"train.epochs": 100000})


@pytest.fixture(scope="session")
def alone(place: Path, short: Path) -> Path:
    """The folder of that run on one process: what all others must equal."""
    run_here("train", short, "--output", place / "alone", cwd=place)
    return place / "alone"


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Hosts with a line between them: two, or as many as HOSTS of the file says."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command `ip`")
    try:
        with joined_hosts(getattr(request.module, "HOSTS", 2)) as found:
            yield found
    except Impossible as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every process that a test started is gone when it ends."""
    yield
    deadline = time.monotonic() + 60
    while (left := processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid, _, _ in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left behind: {left}"

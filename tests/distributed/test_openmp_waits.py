"""Threads that wait beside a busy core: they sleep, and do not use it up by spinning."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shoal.distributed.openmp_waits import CHOICES, VARIABLES

# The same work by one thread and by two, of which one shares its core with another process.
MEASURE = """
import json, os, sys, time
os.sched_setaffinity(0, json.loads(sys.argv[1]))
import torch
from {module} import {name} as prepare

{work}

def cpu_seconds(threads):
    torch.set_num_threads(threads)
    work()
    seconds = []
    for _ in range(3):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return min(seconds)  # what else the machine does can only add

torch.set_num_threads(2)
{begin}
print(json.dumps([cpu_seconds(1), cpu_seconds(2)]))
"""
OPERATIONS = """
values = torch.randn(300_000)
out = torch.empty_like(values)

def work():
    for _ in range(1000):
        torch.mul(values, 1.0001, out=out)
"""
FACE = """
import numpy as np
from scipy import sparse

random = np.random.default_rng(1)
pairs = random.integers(0, 1800, 20_000), (3800 * random.random(20_000) ** 2).astype(int)
matrix = sparse.csr_matrix((np.ones(20_000), pairs), (1800, 3800))

def work():
    threads = torch.get_num_threads()
    model = prepare(factors=64, iterations=15, random_state=1, num_threads=threads)
    model.fit(matrix, show_progress=False)
"""


@pytest.fixture
def cores() -> Iterator[list[int]]:
    """Two cores, of which the second is busy with another process."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(allowed) < 2:
        pytest.skip("needs two cores that processes can be bound to")
    bind = f"import os; os.sched_setaffinity(0, [{allowed[1]}])\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", bind])
    try:
        yield allowed[:2]
    finally:
        busy.kill()
        busy.wait()


def measure(cores: list[int], **parts: str) -> tuple[float, float]:
    environment = {name: value for name, value in os.environ.items() if name not in CHOICES}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.pop(name, None)
    command = [sys.executable, "-c", MEASURE.format(**parts), json.dumps(cores)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout)
    return one, two


def test_operations_of_a_run_do_not_spin_beside_a_busy_core(cores: list[int]) -> None:
    parts = {"module": "shoal.distributed.world", "name": "connect", "begin": "prepare()"}
    one, two = measure(cores, work=OPERATIONS, **parts)
    assert two < 3 * one, f"{two:.2f} CPU seconds with two threads, {one:.2f} with one"


@pytest.mark.slow
def test_als_of_implicit_does_not_spin_beside_a_busy_core(cores: list[int]) -> None:
    pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    parts = {"module": "shoal.compat.implicit.als", "name": "AlternatingLeastSquares", "begin": ""}
    one, two = measure(cores, work=FACE, **parts)
    assert two < 3 * one, f"{two:.2f} CPU seconds with two threads, {one:.2f} with one"


def test_the_command_and_launched_processes_have_short_waits() -> None:
    code = "import shoal.__main__, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    for chosen, expected in ((None, VARIABLES["GOMP_SPINCOUNT"]), ("77", "77")):
        environment = {name: value for name, value in os.environ.items() if name not in CHOICES}
        if chosen is not None:
            environment["GOMP_SPINCOUNT"] = chosen
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [expected]

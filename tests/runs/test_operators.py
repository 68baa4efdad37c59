"""The operators that a graph may call: each is answered or refused, whatever its arguments are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz import operators
from fuzz.child import Status

from shoal.runs.artifact.operators.table import OPERATORS, operator

TESTS = Path(__file__).parents[1]
EACH = 30  # hostile calls of an operator


@pytest.mark.parametrize("name", OPERATORS)
def test_examples_are_allowed(name: str) -> None:
    """So what is hostile is close to what is right."""
    for example in operators.examples(name):
        arguments = operators.named(operator(name), example)
        found = {key: operators.plain(one) for key, one in arguments.items()}
        assert operator(name).cost(found).numbers > 0
        operator(name)(found, "cpu")


def test_hostile_arguments_end_no_process(tmp_path: Path) -> None:
    """`make fuzz` runs more of them."""
    paths = os.pathsep.join(map(str, (TESTS.parent, TESTS)))
    seed, status = 11, tmp_path / "status"
    command = [sys.executable, "-m", "fuzz.child", "operators", str(seed), str(status)]
    done = subprocess.run(
        [*command, str(tmp_path), str(EACH * len(OPERATORS))],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (seed, Status(status).read()[2], done.stderr[-2000:])
    assert not done.stdout  # a finding would be a line
    assert Status(status).read()[0] == EACH * len(OPERATORS)

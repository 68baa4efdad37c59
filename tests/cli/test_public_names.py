"""The Python face: what help(shoal) tells, and the examples of the names in it."""

from __future__ import annotations

import doctest
import subprocess
import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest

import shoal

# Names that train, in the order in which their examples build upon each other.
RUNS = (
    "run",
    "evaluate",
    "recommend",
    "report",
    "export",
    "load",
    "Pipeline",
    "fit",
    "tune",
    "run_rank",
)
OTHERS = tuple(sorted({*shoal.__all__} - {*RUNS, "__version__", "ray"}))
# Bases and protocols of what users write; the first two train.
BASES = (
    "shoal.models.base:Model",
    "shoal.training.metrics.base:Metric",
    "shoal.training.trackers.tracker:Tracker",
)


def check(name: str) -> None:
    """Run the example of a name's docstring, which is written for people without a rank."""
    module, _, last = name.rpartition(":")
    owner = import_module(module) if module else shoal
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    found = [test for test in finder.find(getattr(owner, last), name) if test.examples]
    assert found, f"{name} has no example"
    for test in found:
        test.globs = {"shoal": shoal}
        assert runner.run(test).failed == 0, name


def test_help_tells_the_names_that_a_user_needs() -> None:
    assert shoal.__doc__ is not None
    for name in {*shoal.__all__} - {"Interrupted", "__version__"}:
        assert name in shoal.__doc__ and getattr(shoal, name).__doc__, name
    lines = [line for line in shoal.__doc__.splitlines()[2:] if line[:1].isalpha()]
    told = lines[: lines.index(next(line for line in lines if line.startswith("A model")))]
    assert len(told) <= 12  # few enough to be read


def test_completion_offers_the_public_names_alone() -> None:
    """In a fresh process: what a notebook sees before anything was used, without torch."""
    program = (
        "import rlcompleter, shoal, sys\n"
        "assert 'torch' not in sys.modules\n"
        "print(dir(shoal) == sorted(shoal.__all__), 'os' in dir(shoal))\n"
        "print(rlcompleter.Completer({'shoal': shoal}).attr_matches('shoal.ru'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "True False\n['shoal.run(', 'shoal.run_rank(']\n", done.stderr


def test_types_are_told() -> None:
    assert files("shoal").joinpath("py.typed").is_file()


@pytest.mark.parametrize("name", [*OTHERS, BASES[2]])
def test_examples(name: str) -> None:
    check(name)


@pytest.mark.slow
def test_examples_that_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [*RUNS, *BASES[:2]]:
        check(name)

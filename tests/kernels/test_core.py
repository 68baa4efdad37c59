"""A native core that was built from other sources is refused by name, where it is needed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import shoal
from shoal.kernels import core

ROOT = Path(__file__).resolve().parents[2]
# A core beside the code, older or newer than it, in a process that has not seen another.
FAKE = """
import sys, types
fake = types.ModuleType("shoal._core")
fake.__file__ = "shoal/_core.so"
fake.INTERFACE = 999
sys.modules["shoal._core"] = fake
"""


def fake_core(monkeypatch: pytest.MonkeyPatch, interface: int | None) -> ModuleType:
    fake = ModuleType("shoal._core")
    fake.__file__ = "shoal/_core.so"
    if interface is not None:
        fake.INTERFACE = interface  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shoal._core", fake)
    monkeypatch.setattr(shoal, "_core", fake, raising=False)
    return fake


@pytest.mark.parametrize(
    "interface, said",
    [
        (None, "is older than the Python code .*its interface is without a number"),
        (core.INTERFACE - 1, "is older than the Python code"),
        (core.INTERFACE + 1, "is newer than the Python code"),
    ],
)
def test_another_interface_is_refused(
    monkeypatch: pytest.MonkeyPatch, interface: int | None, said: str
) -> None:
    fake_core(monkeypatch, interface)
    with pytest.raises(core.CoreError, match=f"shoal/_core.so {said}.*`make setup`"):
        core.load_core()


def test_the_right_interface_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_core(monkeypatch, core.INTERFACE)
    assert core.load_core() is fake


def test_a_missing_core_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(shoal, "_core", raising=False)
    monkeypatch.setitem(sys.modules, "shoal._core", None)  # as if there were no such file
    assert core.load_core() is None


def test_both_sides_state_the_same_number() -> None:
    source = (ROOT / "csrc" / "module.cpp").read_text()
    found = re.search(r"constexpr int kInterface = (\d+);", source)
    assert found is not None and int(found[1]) == core.INTERFACE


def test_only_load_core_imports_the_core() -> None:
    for path in (ROOT / "shoal").rglob("*.py"):
        if path.name != "core.py":
            assert not re.search(r"from shoal import .*_core|import shoal._core", path.read_text())


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", FAKE + code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


USERS = [
    "embedding.engines.native",
    "kernels.softmax",
    "kernels.pairs",
    "models.nn.dropout",
    "kernels.wire",
    "data.sampler",
    "clicks.slots",
]
IMPORT = """
import importlib
for name in {names}:
    try:
        importlib.import_module("shoal." + name)
    except ValueError as error:
        print(name, type(error).__name__)
"""


@pytest.mark.slow
def test_a_missing_core_is_an_error_where_it_is_required() -> None:
    ran = run(IMPORT.format(names=USERS))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [f"{name} CoreError" for name in USERS]


def test_importing_shoal_needs_no_core() -> None:
    ran = run(
        "import shoal, shoal.cli.main, shoal.config, shoal.data.sources.fetch\n"
        "print(shoal.__version__)"
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, shoal.__version__), ran.stderr


def test_a_command_reports_an_unfit_core_in_one_line() -> None:
    """No traceback: nothing is wrong with the program."""
    code = "from shoal.cli.main import main; main()"
    code = f"sys.argv = ['shoal', 'train', 'recipes/synthetic-bpr-single.yaml']; {code}"
    ran = run(code)
    assert ran.returncode != 0 and "Traceback" not in ran.stderr
    assert "is newer than the Python code" in ran.stderr and "`make setup`" in ran.stderr

"""Triton's kernels for tests: on a GPU where there is one, else by Triton's interpreter.

The interpreter must be asked for before a module of kernels is imported, so tests import these by
`import_kernels`; where Triton is absent, or its interpreter does not work, they are skipped.
"""

from importlib import import_module
from types import ModuleType

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def import_kernels(name: str) -> ModuleType:
    """A module of kernels, by its full name; skips the test module where they cannot run."""
    with pytest.MonkeyPatch.context() as patch:
        ask_for_interpreter(patch)
        triton = pytest.importorskip("triton", reason="Triton is not installed")
        found = import_module(name)

        @triton.jit
        def probe(numbers):
            for _ in range(0, triton.language.load(numbers)):
                pass

        try:
            probe[(1,)](torch.ones(1, dtype=torch.int32, device=DEVICE))
        except triton.runtime.errors.InterpreterError as error:
            reason = f"this Triton's interpreter fails with this NumPy: {error}"
            # The interpreter lags behind NumPy; a GPU or an older NumPy runs these tests.
            pytest.skip(reason, allow_module_level=True)
    return found


def ask_for_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run by the interpreter where there is no GPU; for a fixture of every test."""
    if DEVICE.type == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")

"""Core: the native core (csrc/), where it was built, and whether it fits this Python code."""

from __future__ import annotations

from typing import Any

# kInterface in csrc/module.cpp: raise both whenever what Python calls there changes.
INTERFACE = 18


class CoreError(ValueError):
    """The native core was built from other sources than this Python code expects."""


def load_core() -> Any:
    """The native core; None where it was not built, and torch or numpy do its work.

    One that does not fit is an error and no reason to do without: that would only be slow.
    """
    try:
        from shoal import _core
    except ImportError:  # built without a compiler
        return None
    core_interface = getattr(_core, "INTERFACE", 0)
    if core_interface == INTERFACE:
        return _core
    age = "older" if core_interface < INTERFACE else "newer"
    raise CoreError(
        f"the native core {_core.__file__} is {age} than the Python code that calls it (its "
        f"interface is {core_interface or 'without a number'}, that of the code {INTERFACE}): "
        "build it again with `make setup`, or `cmake -S . -B build && cmake --build build` where "
        "it was built in place; without the sources reinstall shoal"
    )


def has_core() -> bool:
    """Whether the native core was built."""
    return load_core() is not None


def describe_core() -> str:
    """One line about the build: for which Python, by which compiler, with which kernels."""
    core = load_core()
    if core is None:
        return "not built: torch and numpy do its work, slower"
    abi, compiler = core.BUILD
    first, *others = core.instruction_sets()
    also = f" (also {', '.join(others)})" if others else ""
    return f"for {abi}, by {compiler.strip()}, kernels {first}{also}"


def core_vectors() -> str | None:
    """The vectors that the core uses here (neon, avx512, ...); None where it was not built."""
    core = load_core()
    return None if core is None else core.instruction_set()

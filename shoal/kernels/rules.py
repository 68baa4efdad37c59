"""What kernels of rows need to know of an optimizer and of initial values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

# The finaliser of splitmix64 (public domain, Sebastiano Vigna): increment and two multipliers.
INCREMENT = 0x9E3779B97F4A7C15
MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MULTIPLIER_2 = 0x94D049BB133111EB
NORMAL_TERMS = 8  # 16-bit uniforms summed for one normal value: two words of four


@dataclass(frozen=True)
class Recipe:
    """What an engine needs to make a table's initial values: the kind, the key and one factor."""

    kind: str  # uniform, normal or constant
    key: int  # 64 bits, unsigned
    factor: float  # a float32 value: multiplies the integer (constant: is the value)


class RowRule(Protocol):
    """A row optimizer (embedding/optim/rows.py); None: it has no such hyper-parameter, or form."""

    @property
    def name(self) -> str: ...
    @property
    def core_form(self) -> str | None: ...
    @property
    def triton_form(self) -> str | None: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def clip(self) -> float | None: ...
    @property
    def betas(self) -> Any: ...
    @property
    def alpha(self) -> float | None: ...
    @property
    def momentum(self) -> float | None: ...
    @property
    def l1(self) -> float | None: ...
    @property
    def l2(self) -> float | None: ...
    @property
    def beta(self) -> float | None: ...
    @property
    def decoupled(self) -> bool: ...

    def numbers(self, lr: float, step: int) -> Any:
        """Step size, eps, learning rate and what is kept of a value, of one step."""

    def initial_state(self) -> Mapping[str, float]:
        """What each piece of state begins with."""

    def state_names(self) -> Mapping[str, str]:
        """Of each piece of state: "dim", a float for every value, or "row", one for a row."""

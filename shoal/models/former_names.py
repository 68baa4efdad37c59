"""Names that a user's own model may know from the release before: they work in this release.

Whoever calls or defines one gets a warning that says the new name.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any


def former_method(old: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """`method` under its former name `old`, for callers; see `adopt_former_methods` for classes."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        _warn(f"{old} is called {method.__name__} now", stacklevel=3)
        return method(*args, **kwargs)

    call.former_name = old  # type: ignore[attr-defined]
    return call


def adopt_former_methods(cls: type) -> None:
    """Let a method that a class defines under a former name override the one of the new name."""
    for base in cls.__mro__[1:]:
        for name, value in vars(base).items():
            if getattr(value, "former_name", None) == name and name in vars(cls):
                new = value.__name__
                _warn(f"{cls.__name__} defines {name}, which is called {new} now", stacklevel=4)
                if new not in vars(cls):
                    setattr(cls, new, vars(cls)[name])


def former_argument(old: str, new: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function: its argument `new` may be given by the name `old`, too."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if old in kwargs:
                text = f"the argument {old} of {function.__name__} is called {new} now"
                _warn(text, stacklevel=3)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def _warn(text: str, stacklevel: int) -> None:
    warnings.warn(f"{text}; the former name goes with the next release", FutureWarning, stacklevel)

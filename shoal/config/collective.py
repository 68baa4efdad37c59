"""COLLECTIVE_STRATEGY: the variable that chooses what holds the rows of a CollectiveStrategy."""

import logging
import os

from shoal.config.errors import did_you_mean

log = logging.getLogger("shoal")
VARIABLE = "COLLECTIVE_STRATEGY"
BACKENDS = ("native", "torchrec")
OTHERS = {"hb": "HybridBackend", "sok": "SparseOperationKit"}  # values of the variable elsewhere


def choose_backend(name: str | None = None, report: bool = True) -> str:
    """The backend of an argument, else of the variable, else native; tell: log what is mapped."""
    value = os.environ.get(VARIABLE) or "native" if name is None else name
    if value in OTHERS:
        if report:
            log.warning("%s=%s (%s): native takes its part here", VARIABLE, value, OTHERS[value])
        return "native"
    if value not in BACKENDS:
        place = f"the variable {VARIABLE}" if name is None else "backend"
        raise ValueError(
            f"{place} is {value!r}; it is one of {', '.join(BACKENDS)} (hb and sok mean native)"
            f"{did_you_mean(value, [*BACKENDS, *OTHERS])}"
        )
    return value

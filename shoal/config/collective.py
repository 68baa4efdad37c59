"""COLLECTIVE_STRATEGY: the variable that chooses what holds the rows of a CollectiveStrategy."""

import logging
import os

from shoal.config.errors import did_you_mean
from shoal.config.renamed_keys import REMOVED_KEYS

log = logging.getLogger("shoal")
VARIABLE = "COLLECTIVE_STRATEGY"
NATIVE = "native"  # the one there is; loops name it as other tools' loops name theirs
OTHERS = {"hb": "HybridBackend", "sok": "SparseOperationKit"}  # values of the variable elsewhere


def choose_backend(name: str | None = None, report: bool = True) -> str:
    """The backend of an argument, else of the variable, else native; report: log what is mapped."""
    value = os.environ.get(VARIABLE) or NATIVE if name is None else name
    if value in OTHERS:
        if report:
            log.warning("%s=%s (%s): native takes its part here", VARIABLE, value, OTHERS[value])
        return NATIVE
    if value != NATIVE:
        place = f"the variable {VARIABLE}" if name is None else "backend"
        if value == "torchrec":
            raise ValueError(f"{place} is torchrec. {REMOVED_KEYS['strategy.backend'].advice}")
        raise ValueError(
            f"{place} is {value!r}; it is native, the one there is (hb and sok mean native)"
            f"{did_you_mean(value, [NATIVE, *OTHERS])}"
        )
    return value

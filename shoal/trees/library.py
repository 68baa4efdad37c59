"""The packages that train gradient-boosted trees."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import shoal

EXTRA = "trees"  # of Shoal, which has them


def import_library(package: str, model: str) -> Any:
    """The package that trains a model; an error that names the extra where it is missing."""
    try:
        return import_module(package)
    except (ImportError, OSError) as error:  # OSError: a library of the system is missing
        raise ValueError(
            f"{model} needs the package {package}, which cannot be imported ({error}): "
            f"{shoal.how_to_install(EXTRA)}"
        ) from error

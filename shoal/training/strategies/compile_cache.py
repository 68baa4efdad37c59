"""Compiled: where torch.compile keeps what it has made, for the next run."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "TORCHINDUCTOR_CACHE_DIR"


def keep_compiled() -> None:
    """In the user's own cache. Torch's default is below /tmp, by a name that anybody may take."""
    if FOLDER in os.environ:
        return
    cache = Path(os.environ.get("SHOAL_CACHE") or Path.home() / ".cache" / "shoal")
    try:
        (cache / "compiled").mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written to
        return
    os.environ[FOLDER] = str(cache / "compiled")

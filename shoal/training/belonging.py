"""Whether checkpoints belong to a run: its model, its data and how it is trained."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any

from shoal.data.fingerprint import mismatch, without_later
from shoal.training.checkpoint import CheckpointError
from shoal.training.run_folder import RunFolder


def check_fingerprint(
    saved: dict[str, Any], now: dict[str, Any], folder: RunFolder, options: Any
) -> None:
    """A checkpoint goes on only with the model and the data it was made with."""
    known: dict[str, Any] = {one.name: one.default for one in fields(options)}
    for one in fields(options):
        if one.default_factory is not MISSING:
            known[one.name] = one.default_factory()
    now = json.loads(json.dumps(now))  # as it was saved: an option may be a tuple
    defaults = json.loads(json.dumps(known, default=str))
    if (what := mismatch(saved, without_later(saved, now, defaults))) is not None:
        raise CheckpointError(f"the checkpoints in {folder.path} {what}")

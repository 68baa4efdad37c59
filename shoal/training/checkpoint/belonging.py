"""Whether a checkpoint belongs to the run that reads it: by the fingerprints of both."""

from __future__ import annotations

from typing import Any

from shoal.data.fingerprint import as_saved, mismatch
from shoal.training.checkpoint.writing import CheckpointError
from shoal.training.run_folder import RunFolder


def check_fingerprint(
    saved: dict[str, Any], now: dict[str, Any], folder: RunFolder, options: Any
) -> None:
    """A checkpoint goes on only with the model and the data it was made with."""
    if (what := mismatch(saved, as_saved(saved, now, options))) is not None:
        raise CheckpointError(f"the checkpoints in {folder.path} {what}")

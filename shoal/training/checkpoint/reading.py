"""Reading: a checkpoint read back. Nothing of it is believed before it was checked.

Its author may be anybody: a manifest can name only regular files of its own folder, and numbers
that no training leaves behind are refused even where every checksum is right.
"""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shoal.data.fingerprint import as_saved, mismatch
from shoal.files.durable import count, is_plain_name, open_regular
from shoal.training.checkpoint.snapshot import (
    CheckpointError,
    OverflowedCheckpointError,
    Snapshot,
    table_of,
)

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_BYTES = 1 << 26  # of a manifest: a million files, or a large state
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


def read(path: Path, rows: bool = True, alone: bool = False) -> Snapshot:
    """Read one checkpoint and verify every byte of it (rows=False: rows are read elsewhere).

    alone: without what it builds upon, if it is a delta.
    """
    try:
        manifest = read_manifest(path)
        snapshot = Snapshot(manifest["state"])
        row_files: dict[str, Any] = {}
        if "base" in manifest and not alone:
            _read_base(path, manifest["base"], snapshot, rows)
        files = manifest["files"]
        for name in files:
            if not is_plain_name(name):
                raise CheckpointError(f"checkpoint {path} is damaged: {name!r} is no plain name")
        with ThreadPoolExecutor(4) as pool:  # checksums are made without Python's lock
            counts = pool.map(lambda name: count(path / name, files[name]["bytes"]), files)
            for (name, facts), counted_facts in zip(files.items(), counts):
                if counted_facts["bytes"] != facts["bytes"]:
                    raise CheckpointError(f"checkpoint {path} is damaged: {name} was cut")
                if counted_facts != facts:
                    reason = f"{name} fails its checksum"
                    raise CheckpointError(f"checkpoint {path} is damaged: {reason}")
        for name, facts in files.items():
            is_rows = table_of(name) is not None
            if is_rows and not rows:
                row_files[name] = facts
                continue
            _check_tensors(path / name, is_rows)
            snapshot.files[name] = path / name if is_rows else (path / name).read_bytes()
        if not rows:
            snapshot.rows.append((str(path.absolute()), row_files))
    except CheckpointError:
        raise
    except UNREADABLE as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
    return snapshot


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, without its checksum."""
    with open_regular(path / MANIFEST, links=False) as file:
        text = file.read(MANIFEST_BYTES + 1)
    if len(text) > MANIFEST_BYTES:
        raise CheckpointError(f"checkpoint {path} is damaged: its manifest is too long")
    manifest = json.loads(text)
    stated = manifest.pop("sha256")
    if stated != digest(manifest):
        raise CheckpointError(f"checkpoint {path} is damaged: its manifest was changed")
    if manifest["format"] != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {manifest['format']}; this version reads {FORMAT}"
        )
    if not isinstance(manifest["state"], dict):
        raise CheckpointError(f"checkpoint {path} is damaged: its state is no mapping")
    return manifest


def check_fingerprint(saved: dict[str, Any], now: dict[str, Any], run: Path, options: Any) -> None:
    """A run continues only with the model and the data that its checkpoints were made with."""
    if (difference := mismatch(saved, as_saved(saved, now, options))) is not None:
        raise CheckpointError(f"the checkpoints in {run} {difference}")


def _read_base(path: Path, base: str, snapshot: Snapshot, rows: bool) -> None:
    """The rows that a delta builds upon come first, so that its own replace them."""
    if not is_plain_name(base) or not base.startswith("step-") or base >= path.name:
        raise CheckpointError(f"checkpoint {path} is damaged: its base {base!r} cannot be")
    below = read(path.parent / base, rows)
    snapshot.rows += below.rows
    for name, data in below.files.items():
        if table_of(name) is not None:
            snapshot.files[name if "/" in name else f"{base}/{name}"] = data


def digest(manifest: dict[str, Any]) -> str:
    """The checksum of a manifest's content."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def manifest_value(path: Path, key: str) -> Any:
    """An entry of a checkpoint's manifest; None where it is missing or the manifest is damaged."""
    try:
        return read_manifest(path).get(key)
    except UNREADABLE:
        return None


def _check_tensors(path: Path, is_rows: bool) -> None:
    """Refuse a file that is no safetensors file, or whose numbers no training leaves behind.

    Rows must be finite, with as many values and states as ids; dense tensors must not be NaN (a
    mask may be infinite).
    """
    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            if is_rows and not {"ids", "values"} <= set(names):
                raise CheckpointError(f"{path} is damaged: it has no ids or no values")
            sizes = {
                next(iter(file.get_slice(name).get_shape() or [-1]))  # -1: a number is no list
                for name in names
                if is_rows and (name in ("ids", "values") or name.startswith("state."))
            }
            if len(sizes) > 1 or -1 in sizes:
                raise CheckpointError(f"{path} is damaged: it has not as many values as ids")
            for name in names:
                tensor = file.get_tensor(name)
                if _is_wrong(tensor, is_rows):
                    values = "NaN or infinite numbers" if is_rows else "NaN"
                    raise OverflowedCheckpointError(f"{path} is damaged: {name} holds {values}")
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _is_wrong(tensor: Tensor, finite: bool) -> bool:
    if not tensor.is_floating_point():
        return False
    # A sum is quick, and finite only of finite numbers; where it is not, look at each.
    if torch.isfinite(tensor.sum(dtype=torch.float64)):
        return False
    return bool((~torch.isfinite(tensor) if finite else torch.isnan(tensor)).any())

"""What differs between the fingerprint in a checkpoint and that of a run, in the user's words."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any

# A part of a fingerprint -> the key of the config that decides it.
KEYS = {
    "options": "model",
    "optimizer": "train.optimizer.name",
    "row_optimizers": "train.optimizer",
    "batch_size": "train.batch_size",
    "batch_tokens": "train.batch_tokens",
    "seed": "run.seed",
    "shuffle": "train.shuffle",
    "planted": "data.clicks.synthetic",
    "command": "data.clicks.pipe_command",
    "features": "data.features",
}
# Parts that are lists -> the keys that decide their places.
PLACES = {
    "layout": [f"data.clicks.{key}" for key in ("slots", "dense", "label", "rows")],
    "order": ["data.clicks.reader", "train.shuffle"],
}
# Parts that are digests -> what a change of one means, since its bytes say nothing to a reader.
DIGESTS = {
    "interactions": "the interactions are others (users, items or their order in the files)",
    "encoded": "the texts of data.encode or their encoder are others",
    "codes": "items have other codes (data.codes)",
    "splits": "the interactions are split otherwise (data.split, run.seed)",
}
VERSION_LETTERS = 12  # of a version of codes, where people read it


def as_saved(saved: dict[str, Any], now: dict[str, Any], options: Any) -> dict[str, Any]:
    """`now` as a checkpoint with the fingerprint `saved` would hold it; options: the model's."""
    option_defaults: dict[str, Any] = {option.name: option.default for option in fields(options)}
    for option in fields(options):
        if option.default_factory is not MISSING:
            option_defaults[option.name] = option.default_factory()
    now = json.loads(json.dumps(now))  # an option may be a tuple
    defaults, saved_options = (
        json.loads(json.dumps(option_defaults, default=str)),
        saved.get("options", {}),
    )
    # Leave out options that the model did not have yet when `saved` was written, at their defaults.
    compared_options = {
        k: v for k, v in now["options"].items() if k in saved_options or v != defaults.get(k)
    }
    return {**now, "options": compared_options}


def mismatch(saved: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Why checkpoints of `saved` do not fit a run of `now`, and the remedy; None where they do."""
    # Codes decide, not their version: others of the file may have come since.
    changed = [key for key in now if saved.get(key) != now[key] and key != "codes_version"]
    if changed == ["split_over"]:
        return _split(saved.get("split_over"), now["split_over"])
    if not changed:
        return None
    differences = [text for key in changed for text in _part(key, saved.get(key), now[key])]
    if "codes" in changed and saved.get("codes_version") and now.get("codes_version"):
        versions = (saved["codes_version"], now["codes_version"])
        before, present = (str(version)[:VERSION_LETTERS] for version in versions)
        differences.append(f"the codes were version {before}, and are {present}")
    return (
        f"belong to another run: {'; '.join(differences)}. Use the config of that run, or name "
        "another folder with --output"
    )


def _split(before: int | None, now: int | None) -> str:
    """Why checkpoints do not fit where another number of workers reads the files.

    That number decides which samples come together in a batch.
    """
    if before is None or now is None:
        was, is_now = str(before is not None).lower(), str(now is not None).lower()
        return (
            f"were made with data.clicks.split_files {was}, which is now {is_now}; resume with "
            f"--data.clicks.split_files={was}"
        )
    workers = f"{before} worker{'s' if before > 1 else ''}"
    return (
        f"were made with files split over {workers} (data.clicks.split_files), and there "
        f"{'are' if now > 1 else 'is'} {now} now; resume with as many: --worker_num={before}, or "
        f"--nproc={before} without servers"
    )


def _part(key: str, before: Any, now: Any) -> list[str]:
    """What differs in one part of a fingerprint, key by key of the config."""
    if key == "split_over":
        return [f"data.clicks.split_files: over {before or 'no'} workers, now over {now or 'none'}"]
    if key in DIGESTS and before is not None:
        return [DIGESTS[key]]
    if key == "files" and isinstance(before, list):
        return _files(before, now)
    if key in PLACES and isinstance(before, list):
        changes = []
        for name, old_value, new_value in zip(PLACES[key], before, now):
            if old_value != new_value:
                changes += _part(name, old_value, new_value)
        return changes
    name = KEYS.get(key, key)
    if isinstance(before, dict) and isinstance(now, dict):
        changes = []
        for inner in dict.fromkeys((*now, *before)):
            old_value, new_value = before.get(inner), now.get(inner)
            if old_value != new_value:
                changes += _part(f"{name}.{inner}", old_value, new_value)
        return changes
    return [f"{name} was {_short(before)}, is now {_short(now)}"]


def _files(before: list[list[Any]], now: list[list[Any]]) -> list[str]:
    """Files to train on, [name, size, digest] each."""
    old, new = {one[0]: one for one in before}, {one[0]: one for one in now}
    changes = [f"{name} is no longer there" for name in old if name not in new]
    changes += [f"{name} was not there" for name in new if name not in old]
    changes += [f"{name} has changed" for name in new if name in old and new[name] != old[name]]
    if not changes:
        changes = ["the files come in another order"]
    if len(changes) > 3:
        changes = [*changes[:3], f"and {len(changes) - 3} more"]
    return [f"data.clicks.train: {', '.join(changes)}"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"

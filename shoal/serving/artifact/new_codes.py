"""New items of models that write codes: an artifact with items behind its own, by their codes.

Codes of a file are what such a model knows of an item. Its graph reads them, and the tree of all
codes (nn/code_tree.py), as tensors; with new items only these tensors grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from shoal.data.fingerprint import VERSION_LETTERS
from shoal.data.item_codes import LARGEST, ItemCodes, read_codes
from shoal.models.base import Model
from shoal.models.nn.code_tree import CodeTree
from shoal.models.sequential.code_writer import CodeWriter
from shoal.serving.artifact import files
from shoal.serving.artifact.artifact import Artifact
from shoal.serving.artifact.projector import CODES_ENTRY

DENSE = "dense.safetensors"
TREE = "model._tree."  # tensors of a traced graph: the tree's, and the codes by one of two names
CODES = ("model.codes", TREE + "codes")


def codes_entry(model: Model, file: str | None) -> dict[str, Any] | None:
    """What the signature says of a model's codes; None: it has none.

    file: that of data.codes, if they are from one.
    """
    if not isinstance(model, CodeWriter):
        return None
    entry: dict[str, Any] = {"levels": model.levels, "size": model.size, "version": None}
    if file is not None:
        entry["version"] = read_codes(file).version()
    return entry


def is_codes(file: str | Path) -> bool:
    """Whether a file holds codes of items, by its ending."""
    return Path(file).suffix.lower() == ".json"


def new_ids(source: Artifact, file: str | Path) -> tuple[list[str], ItemCodes]:
    """The items that a file of codes has behind those of an artifact; refuses other codes."""
    entry = source.signature.get(CODES_ENTRY)
    if not isinstance(entry, dict):
        raise ValueError(
            f"{source.folder}: {source.model} reads no codes of items; give vectors of the new ones"
        )
    with files.damaged(f"artifact {source.folder}: {CODES_ENTRY}"):
        version, size = entry["version"], int(entry["size"])
        if not 0 < size <= LARGEST:
            raise ValueError(f"{size} values of a code")
    if version is None:
        raise ValueError(
            f"{source.folder}: {source.model} made its codes itself, of its own data, so a new "
            "item can get none; make codes of vectors (shoal codes make) and train it with them "
            "(data.codes)"
        )
    if source.signature["base"] is not None:
        raise ValueError(
            f"{source.folder} is a delta of {source.signature['base']['name']}; export it whole, "
            "and add items to that"
        )
    item_codes = read_codes(file)
    with files.damaged(f"artifact {source.folder}: {DENSE}"):
        old_codes = _codes(_tensors(source)).tolist()
    for item, codes in zip(source.items.words[1:], old_codes[1:]):
        if (now := item_codes.codes.get(str(item))) != codes:
            raise ValueError(
                f"{file} has other codes than those that {source.folder} was trained with "
                f"(version {str(version)[:VERSION_LETTERS]}): item {str(item)[:80]!r} has "
                f"{'none' if now is None else now} there and {codes} here; give a file that was "
                "made of those by `shoal codes append`"
            )
    numbers = source.items.find(item_codes.codes)
    ids = [item for item, number in zip(item_codes.codes, numbers.tolist()) if not number]
    if not ids:
        raise ValueError(f"all {len(numbers)} items of {file} are in {source.folder} already")
    largest = max(max(item_codes.codes[item]) for item in ids)
    if largest >= size:
        raise ValueError(
            f"{file} has the code {largest} for a new item, and {source.model} learned {size} "
            "values of a code; append new items with `shoal codes append`, or train it anew"
        )
    return ids, item_codes


def write_codes_of(source: Artifact, hidden: Path, ids: list[str], item_codes: ItemCodes) -> None:
    """Write an artifact's tensors with the codes of new items behind those of its own."""
    tensors, size = _tensors(source), int(source.signature[CODES_ENTRY]["size"])
    new = torch.tensor([item_codes.codes[item] for item in ids])
    with files.damaged(f"artifact {source.folder}: {DENSE}"):
        codes = torch.cat([_codes(tensors), new])
        tree = CodeTree(codes, size)
        grown = dict.fromkeys(CODES, codes)
        grown |= {TREE + name: one for name, one in tree.named_buffers()}
    kept = {name: grown.get(name, one).contiguous() for name, one in tensors.items()}
    save_file({name: one.clone() for name, one in kept.items()}, hidden / DENSE)


def _codes(tensors: Mapping[str, Tensor]) -> Tensor:
    for name in CODES:
        if name in tensors:
            return tensors[name]
    raise ValueError("it has no codes")


def _tensors(source: Artifact) -> dict[str, Tensor]:
    return files.read_tensors(source.folder, DENSE, source.manifest)

"""The file of a model class for RecBole: read and parsed, never run; which class is meant."""

from __future__ import annotations

import ast
import os
import warnings
from pathlib import Path

from shoal.compat.recbole_import.refusals import REFUSED_BASES, check_trainer, reason_of_file
from shoal.compat.recbole_import.source import BASES, ModelSource
from shoal.compat.recbole_import.syntax import last_name
from shoal.files.durable import open_regular

MOST_BYTES = 1 << 20  # of a file: the parser takes a multiple of it


def read_source(place: str) -> ModelSource:
    """The class of FILE.py or FILE.py:Class; of a file with one model class the name is optional"""
    file, wanted = place, ""
    head, colon, tail = place.rpartition(":")
    if colon and head.endswith(".py"):
        file, wanted = head, tail
    if not file.endswith(".py"):
        raise ValueError(f"{place} is no Python file; give FILE.py or FILE.py:Class")
    text = _read(Path(file))
    tree = _parse(text, file)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    models = {name: chain for name in classes if (chain := _chain(name, classes))}
    leaves = set(models) - {link.name for chain in models.values() for link in chain[1:]}
    if not wanted:
        if len(leaves) > 1:
            listed = ", ".join(name for name in models if name in leaves)
            raise ValueError(f"{file} has several models: {listed}; name one as {file}:Class")
        wanted = next(iter(leaves), "")
    if wanted not in models:
        raise ValueError(reason_of_file(file, wanted, classes, models))
    chain = models[wanted]
    in_use = {link.name for link in chain}
    others = [classes[name] for name in models if name not in in_use]
    check_trainer(wanted, classes)
    base = next(one for one in map(last_name, chain[-1].bases) if one in BASES)
    return ModelSource(Path(file), text, tree, chain, base, others)


def _read(path: Path) -> str:
    with open_regular(path) as opened:
        size = os.fstat(opened.fileno()).st_size
        if size > MOST_BYTES:
            raise ValueError(
                f"{path} has {size} bytes; a file with a model has {MOST_BYTES} at most"
            )
        raw = opened.read(MOST_BYTES + 1)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8 ({error.reason} at byte {error.start})") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _parse(text: str, file: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in texts, which the class has anyway
            return ast.parse(text, file)
    except SyntaxError as error:
        raise ValueError(f"{file}, line {error.lineno}: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"{file}: its expressions are nested too deeply to be read") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _chain(name: str, classes: dict[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """The class and those of the file that it is made of, up to one of BASES; empty: no model."""
    chain: list[ast.ClassDef] = []
    while name in classes and classes[name] not in chain:
        chain.append(classes[name])
        bases = [last_name(base) for base in chain[-1].bases]
        if any(base in REFUSED_BASES for base in bases):
            return []
        if any(base in BASES for base in bases):
            return chain
        name = next((base for base in bases if base in classes), "")
    return []

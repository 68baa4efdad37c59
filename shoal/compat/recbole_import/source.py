"""A Python file with model classes for RecBole: read and parsed, never run."""

from __future__ import annotations

import ast
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from shoal.config.errors import did_you_mean
from shoal.files.durable import open_regular

MOST_BYTES = 1 << 20  # of a file: the parser takes a multiple of it
BASES = ("GeneralRecommender", "SequentialRecommender", "ContextRecommender")
# Bases of RecBole that no class here stands for, and what to do.
REFUSED_BASES = {
    "KnowledgeRecommender": "models of knowledge graphs are made of "
    "shoal.models.knowledge.base; move the class by hand",
    "AutoEncoderMixin": "a model that reads all items of a user has samples = 'users' here "
    "(shoal/models/general/autoencoder.py); move the class by hand",
}


@dataclass
class ModelSource:
    """A model class, with the classes of the same file that it is made of."""

    path: Path
    text: str
    tree: ast.Module
    chain: list[ast.ClassDef]  # the class itself, its base, ..., the one made of RecBole's
    base: str  # of BASES
    others: list[ast.ClassDef]  # other model classes of the file

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.chain[0].name


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
        raise ValueError(_refusal(file, wanted, classes, models))
    chain = models[wanted]
    in_use = {link.name for link in chain}
    others = [classes[name] for name in models if name not in in_use]
    trainers = [name for name in classes if name == f"{wanted}Trainer"]
    if trainers:
        raise ValueError(
            f"{wanted} has its own trainer ({trainers[0]}, line {classes[trainers[0]].lineno}), "
            "which decides how it learns; here a model is its loss alone: move it by hand"
        )
    base = next(one for one in map(_last_name, chain[-1].bases) if one in BASES)
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


def _last_name(node: ast.expr) -> str:
    """a.b.Base -> Base"""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _chain(name: str, classes: dict[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """The class and those of the file that it is made of, up to one of BASES; empty: no model."""
    chain: list[ast.ClassDef] = []
    while name in classes and classes[name] not in chain:
        chain.append(classes[name])
        bases = [_last_name(base) for base in chain[-1].bases]
        if any(base in REFUSED_BASES for base in bases):
            return []
        if any(base in BASES for base in bases):
            return chain
        name = next((base for base in bases if base in classes), "")
    return []


def _refusal(
    file: str,
    wanted: str,
    classes: dict[str, ast.ClassDef],
    models: dict[str, list[ast.ClassDef]],
) -> str:
    """Why a class is no model that can be translated."""
    allowed = f"classes made of {', '.join(BASES)} can be moved"
    if not wanted:
        reasons = [_reason(node) for node in classes.values()]
        given_reasons = [reason for reason in reasons if reason]
        return f"{file} has no model class; {'; '.join(given_reasons) or allowed}"
    if wanted not in classes:
        listed = f"it has {', '.join(models) or 'none'}{did_you_mean(wanted, models)}"
        return f"{file} has no class {wanted!r} at its top level; {listed}"
    return _reason(classes[wanted]) or f"{wanted} is no model of RecBole: {allowed}"


def _reason(node: ast.ClassDef) -> str:
    bases = [base for base in map(_last_name, node.bases) if base]
    for base in bases:
        if base in REFUSED_BASES:
            return f"{node.name} is made of {base}: {REFUSED_BASES[base]}"
    methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    if "calculate_loss" in methods or "full_sort_predict" in methods:
        return (
            f"{node.name} is made of {', '.join(bases) or 'nothing'}, which is neither in the file "
            f"nor one of {', '.join(BASES)}; put the base class into the file, or make it of one "
            "of them"
        )
    return ""

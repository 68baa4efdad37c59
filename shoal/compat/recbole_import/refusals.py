"""What cannot be moved: every reason to refuse a class, and what to do instead."""

from __future__ import annotations

import ast

from shoal.compat.recbole_import.names import dotted
from shoal.compat.recbole_import.source import BASES, ModelSource
from shoal.compat.recbole_import.syntax import Function, last_name
from shoal.config.errors import did_you_mean

# Bases of RecBole that no class here stands for, and what to do.
REFUSED_BASES = {
    "KnowledgeRecommender": "models of knowledge graphs are made of "
    "shoal.models.knowledge.base; move the class by hand",
    "AutoEncoderMixin": "a model that reads all items of a user has samples = 'users' here "
    "(shoal/models/general/autoencoder.py); move the class by hand",
}
# Types of models that RecBole trains in another way than by steps of a loss.
REFUSED_TYPES = ("TRADITIONAL", "DECISIONTREE", "KNOWLEDGE")


def reason_of_file(
    file: str,
    wanted: str,
    classes: dict[str, ast.ClassDef],
    models: dict[str, list[ast.ClassDef]],
) -> str:
    """Why a file has no such model: neither the class `wanted` nor, if it is empty, any other."""
    allowed = f"classes made of {', '.join(BASES)} can be moved"
    if not wanted:
        reasons = [_reason_of_bases(node) for node in classes.values()]
        given_reasons = [reason for reason in reasons if reason]
        return f"{file} has no model class; {'; '.join(given_reasons) or allowed}"
    if wanted not in classes:
        listed = f"it has {', '.join(models) or 'none'}{did_you_mean(wanted, models)}"
        return f"{file} has no class {wanted!r} at its top level; {listed}"
    return _reason_of_bases(classes[wanted]) or f"{wanted} is no model of RecBole: {allowed}"


def _reason_of_bases(node: ast.ClassDef) -> str:
    """Why a class is no model, by what it is made of; empty: it does not look like one."""
    bases = [base for base in map(last_name, node.bases) if base]
    for base in bases:
        if base in REFUSED_BASES:
            return f"{node.name} is made of {base}: {REFUSED_BASES[base]}"
    methods = {one.name for one in node.body if isinstance(one, Function)}
    if "calculate_loss" in methods or "full_sort_predict" in methods:
        return (
            f"{node.name} is made of {', '.join(bases) or 'nothing'}, which is neither in the file "
            f"nor one of {', '.join(BASES)}; put the base class into the file, or make it of one "
            "of them"
        )
    return ""


def check_trainer(name: str, classes: dict[str, ast.ClassDef]) -> None:
    """Refuse a model whose file has a trainer of its name, which RecBole would take."""
    trainer = classes.get(f"{name}Trainer")
    if trainer is not None:
        raise ValueError(
            f"{name} has its own trainer ({trainer.name}, line {trainer.lineno}), "
            "which decides how it learns; here a model is its loss alone: move it by hand"
        )


def check_class(source: ModelSource) -> None:
    """Refuse a class that does not learn and score as a model here does."""
    name = source.name
    if "calculate_loss" not in source.methods:
        raise ValueError(f"{name} has no calculate_loss, so there is nothing to train")
    if not {"predict", "full_sort_predict"} & set(source.methods):
        raise ValueError(f"{name} has neither predict nor full_sort_predict: it scores nothing")
    for definition in source.chain:
        for node in ast.walk(definition):
            full_name = dotted(node, source.names) if isinstance(node, ast.Attribute) else ""
            for refused in REFUSED_TYPES:
                if full_name.endswith(f"ModelType.{refused}"):
                    raise ValueError(
                        f"{name} is of ModelType.{refused} (line {definition.lineno}), which "
                        "RecBole trains in a way of its own; move it by hand"
                    )
    start = source.methods.get("__init__")
    if start is not None and len(start.args.args) != 3:
        raise ValueError(
            f"{name}.__init__ (line {start.lineno}) takes other arguments than (self, config, "
            "dataset); RecBole gives a model these two"
        )

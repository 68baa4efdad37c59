"""The class statement: its bases, the attributes of the class, and what is computed once."""

from __future__ import annotations

import ast

from shoal.compat.recbole_import.draft import Draft, Line
from shoal.compat.recbole_import.edits import first_line
from shoal.compat.recbole_import.methods import translate_method
from shoal.compat.recbole_import.syntax import Function, assignments, last_name


def translate_class(draft: Draft, definition: ast.ClassDef) -> None:
    """A class of the chain: its bases, if they are RecBole's, its attributes and its methods."""
    if definition is draft.source.chain[-1]:
        _bases(draft, definition)
    for node in definition.body:
        if isinstance(node, Function):
            translate_method(draft, node)
        elif isinstance(node, ast.Assign):
            _attribute(draft, node)


def _bases(draft: Draft, definition: ast.ClassDef) -> None:
    """class A(abstract_recommender.GeneralRecommender) -> class A(GeneralRecommender)"""
    for base in definition.bases:
        name = last_name(base)
        if isinstance(base, ast.Attribute) and name == draft.source.base:
            draft.edits.replace(base, name)
        if name == draft.source.base:
            draft.done(definition, f"class {draft.source.name}({name})", f"Shoal's {name}")
        else:
            what = f"class {definition.name}(…, {name})"
            draft.look(definition, what, f"its base {name} must be in this file and run here")


def _attribute(draft: Draft, node: ast.Assign) -> None:
    """input_type = InputType.PAIRWISE, which stays; the table says what a batch has then."""
    text = draft.edits.source(node)
    if "LISTWISE" in text:
        draft.look(node, text, "batches are pairs, or users, items and labels")
    elif "InputType" in text and draft.source.base == "GeneralRecommender":
        fields = "user, item, label" if "POINTWISE" in text else "user, item, negative item"
        draft.done(node, text, f"a batch has {fields}")


def write_computed_once(draft: Draft) -> None:
    """Declare attributes that hold results for requests: they are dropped when rows change."""
    names = sorted(_computed_once(draft))
    if not names:
        return
    root = draft.source.chain[-1]
    draft.lines.append(
        Line(root.lineno, ", ".join(names), "computed_once: dropped when rows change")
    )
    listed = ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "")
    draft.edits.insert_above(
        first_line(draft.source.first_method), f"computed_once = ({listed})\n\n"
    )


def _computed_once(draft: Draft) -> set[str]:
    """Attributes that scoring sets and __init__ sets to None."""
    methods = [
        method
        for definition in draft.source.chain
        for method in definition.body
        if isinstance(method, Function) and method.name in ("predict", "full_sort_predict")
    ]
    attributes = {
        attribute
        for method in methods
        for node in ast.walk(method)
        for attribute, _ in assignments(node)
    }
    values = {attribute: draft.source.assigned(attribute) for attribute in attributes}
    return {
        attribute
        for attribute, value in values.items()
        if isinstance(value, ast.Constant) and value.value is None
    }

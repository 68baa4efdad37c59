"""__init__(self, config, dataset), which is __init__(self, options, facts) here."""

from __future__ import annotations

import ast

from shoal.compat.recbole_import.config_keys import look_at_computed_key, translate_key
from shoal.compat.recbole_import.dataset import translate_dataset
from shoal.compat.recbole_import.draft import Draft
from shoal.compat.recbole_import.syntax import Function, is_self, is_super


def translate_constructor(draft: Draft, method: Function) -> None:
    """Rename the two arguments, and translate what is read of them, whatever they are called."""
    _, config, dataset = method.args.args
    draft.edits.replace(config, "options")
    draft.edits.replace(dataset, "facts")
    draft.done(method, "__init__(config, dataset)", "__init__(options, facts)")
    for node in ast.walk(method):
        if isinstance(node, ast.Call):
            _call_of_base(draft, node)
        elif isinstance(node, ast.Assign):
            _assignment(draft, node, dataset.arg)
    for node in ast.walk(method):
        if isinstance(node, ast.Call | ast.Attribute):
            translate_dataset(draft, node, dataset.arg)
        if isinstance(node, ast.Subscript | ast.Call):
            translate_key(draft, node, config.arg)
    # What is left of the two names, such as an argument of a helper class.
    for node in ast.walk(method):
        if isinstance(node, ast.Name) and node.id == config.arg:
            look_at_computed_key(draft, node)
            draft.edits.replace(node, "options")
        elif isinstance(node, ast.Name) and node.id == dataset.arg:
            draft.edits.replace(node, "self.dataset")


def _call_of_base(draft: Draft, node: ast.Call) -> None:
    """super().__init__(config, dataset) -> super().__init__(options, facts)"""
    function = node.func
    if not (isinstance(function, ast.Attribute) and is_super(function.value)):
        return
    if function.attr == "__init__":
        opening = draft.edits.find("(", draft.edits.end(function))
        draft.edits.replace_span(opening + 1, draft.edits.end(node) - 1, "options, facts")


def _assignment(draft: Draft, node: ast.Assign, dataset: str) -> None:
    """self.device = … and self.dataset = dataset, which the base has."""
    target, value = node.targets[0], node.value
    if not (isinstance(target, ast.Attribute) and is_self(target.value)):
        return
    if target.attr == "device":
        draft.edits.comment_out(node, "self.device is where the model is.")
        draft.done(node, "self.device", "where the model is, wherever it goes")
    elif target.attr == "dataset" and isinstance(value, ast.Name) and value.id == dataset:
        draft.edits.comment_out(node, "self.dataset has the training interactions.")
        draft.done(node, "self.dataset", "sizes and training interactions")

"""Methods: what each is here, and the parts of its body, each by the file that knows it."""

from __future__ import annotations

import ast

from shoal.compat.recbole_import.config_keys import translate_kept_key
from shoal.compat.recbole_import.constructor import translate_constructor
from shoal.compat.recbole_import.dataset import look_at_kept_dataset
from shoal.compat.recbole_import.draft import Draft
from shoal.compat.recbole_import.fields import look_at_attribute, look_at_field
from shoal.compat.recbole_import.names import dotted
from shoal.compat.recbole_import.processes import translate_layer_or_draw
from shoal.compat.recbole_import.syntax import Function, is_self, is_super
from shoal.compat.recbole_import.tables import (
    look_at_assigned_rows,
    look_at_pretrained_rows,
    translate_embedding,
    translate_parameters,
)


def translate_method(draft: Draft, method: Function) -> None:
    """A method of the class: its name, and each expression of its body."""
    if method.name == "__init__":
        translate_constructor(draft, method)
    _name(draft, method)
    for node in ast.walk(method):
        if isinstance(node, ast.Call):
            _call(draft, node, method)
        elif isinstance(node, ast.Attribute):
            _attribute(draft, node, method)
        elif isinstance(node, ast.Subscript):
            look_at_field(draft, node, method)
            if method.name != "__init__":
                translate_kept_key(draft, node)
        elif isinstance(node, ast.Assign):
            look_at_assigned_rows(draft, node)


def _name(draft: Draft, method: Function) -> None:
    """What a method of this name is here."""
    if method.name == "forward":
        at = draft.edits.find("forward", draft.edits.start(method))
        draft.edits.replace_span(at, at + len("forward"), draft.step_name)
        draft.done(method, "forward", f"{draft.step_name}: forward is the training step")
    elif method.name == "calculate_loss":
        draft.done(method, "calculate_loss", "the training loss: its mean × samples")
    elif method.name == "full_sort_predict":
        draft.done(method, "full_sort_predict", "score: of the items asked for")
    elif method.name == "predict":
        ranks_all = "full_sort_predict" in draft.source.methods
        becomes = "not called" if ranks_all else "score: of pairs"
        if draft.source.base == "ContextRecommender":
            becomes = "logits: the log odds of its probability"
        draft.done(method, "predict", becomes)
    elif method.name.startswith(("pretrain", "init_epoch", "get_flops")):
        why = "nobody calls it here: training is one loss, step by step"
        draft.look(method, method.name, why)


def _call(draft: Draft, node: ast.Call, method: Function) -> None:
    name = dotted(node.func, draft.source.names)
    if name == "self":
        draft.edits.replace(node.func, f"self.{draft.step_name}")
    elif name == "torch.nn.Embedding":
        translate_embedding(draft, node)
    elif name == "torch.nn.Embedding.from_pretrained":
        look_at_pretrained_rows(draft, node)
    else:
        translate_layer_or_draw(draft, node, name, method)
    if isinstance(node.func, ast.Attribute):
        _old_call(draft, node, node.func)


def _old_call(draft: Draft, node: ast.Call, function: ast.Attribute) -> None:
    """x.cuda() -> x.to(self.device), and a method that SciPy no longer has."""
    start = draft.edits.end(function.value)
    if function.attr == "cuda" and not node.args:
        draft.edits.replace_span(start, draft.edits.end(node), ".to(self.device)")
        draft.done(node, ".cuda()", ".to(self.device)")
    elif function.attr == "_update":
        draft.edits.replace_span(start, draft.edits.end(function), "._dict.update")
        draft.done(node, "dok_matrix._update", "._dict.update: SciPy 1.13 took it away")


def _attribute(draft: Draft, node: ast.Attribute, method: Function) -> None:
    if node.attr == "forward" and (is_self(node.value) or is_super(node.value)):
        end = draft.edits.end(node)
        draft.edits.replace_span(end - len("forward"), end, draft.step_name)
    look_at_attribute(draft, node)
    translate_parameters(draft, node, method)
    if method.name != "__init__":
        look_at_kept_dataset(draft, node)

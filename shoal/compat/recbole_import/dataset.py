"""The dataset of __init__(config, dataset): its sizes, and its training interactions."""

from __future__ import annotations

import ast

from shoal.compat.recbole_import.draft import Draft
from shoal.compat.recbole_import.names import dotted

# What `dataset` answers here (shoal.compat.recbole.interaction.TrainingData).
OF_DATASET = {
    "num",
    "user_num",
    "item_num",
    "inter_num",
    "uid_field",
    "iid_field",
    "inter_matrix",
    "history_item_matrix",
    "history_user_matrix",
    "inter_feat",
}
# Sizes that a model is given beside it, by attribute and by the argument of dataset.num().
SIZES = {"user_num": "facts.num_users", "item_num": "facts.num_items"}
SIZES_OF_FIELDS = {"self.USER_ID": "facts.num_users", "self.ITEM_ID": "facts.num_items"}


def translate_dataset(draft: Draft, node: ast.Call | ast.Attribute, dataset: str) -> None:
    """In __init__: dataset.num(self.USER_ID) -> facts.num_users; what a dataset has not here."""
    attribute = node.func if isinstance(node, ast.Call) else node
    if not (isinstance(attribute, ast.Attribute) and isinstance(attribute.value, ast.Name)):
        return
    if attribute.value.id != dataset:
        return
    text = draft.edits.source(node)
    if attribute.attr == "num" and isinstance(node, ast.Call) and node.args:
        size = SIZES_OF_FIELDS.get(ast.unparse(node.args[0]))
        if size is not None:
            draft.edits.replace(node, size)
            draft.done(node, text, size)
    elif attribute.attr in SIZES:
        draft.edits.replace(node, SIZES[attribute.attr])
        draft.done(node, text, SIZES[attribute.attr])
    elif attribute.attr not in OF_DATASET:
        if isinstance(node, ast.Attribute):
            draft.look(node, text, f"self.dataset has no {attribute.attr} here")
    elif isinstance(node, ast.Call):
        draft.done(node, text, f"self.{text}: of the training interactions")


def look_at_kept_dataset(draft: Draft, node: ast.Attribute) -> None:
    """In other methods: what self.dataset has not here."""
    text = dotted(node, {})
    if text.startswith("self.dataset."):
        name = text.split(".")[2]
        if name not in OF_DATASET:
            draft.look(node, text, f"self.dataset has no {name} here")

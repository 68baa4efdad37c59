"""Fields of a batch: interaction[self.USER_ID] stays; what a batch has not here asks a person."""

from __future__ import annotations

import ast

from shoal.compat.recbole_import.config_keys import KEYS_OF_RECBOLE
from shoal.compat.recbole_import.draft import Draft
from shoal.compat.recbole_import.syntax import Function, is_self

# Fields of `interaction` that are there, by kind of model. USER_ID stands for the name it has.
FIELDS_OF = {
    "GeneralRecommender": {"USER_ID", "ITEM_ID", "NEG_ITEM_ID", "LABEL"},
    "SequentialRecommender": {
        "USER_ID",
        "ITEM_ID",
        "NEG_ITEM_ID",
        "POS_ITEM_ID",
        "ITEM_SEQ",
        "ITEM_SEQ_LEN",
    },
    "ContextRecommender": {"LABEL"},
}
# The names that fields have in most data, where a class does not read them of an attribute.
USUAL_FIELDS = {
    "user_id": "USER_ID",
    "item_id": "ITEM_ID",
    "neg_item_id": "NEG_ITEM_ID",
    "item_id_list": "ITEM_SEQ",
    "item_length": "ITEM_SEQ_LEN",
    "label": "LABEL",
}
# Attributes of RecBole's ContextRecommender that the base here has not.
NOT_OF_CONTEXT = {
    "double_tower",
    "field_names",
    "token_field_names",
    "token_field_dims",
    "float_field_names",
    "float_field_dims",
    "token_embedding_table",
    "token_field_offsets",
    "double_embed_input_fields",
    "token_seq_field_names",
    "token_seq_embedding_table",
    "embed_token_fields",
}
METHODS_WITH_BATCH = ("calculate_loss", "predict", "full_sort_predict")


def look_at_field(draft: Draft, node: ast.Subscript, method: Function) -> None:
    """interaction["rating"], interaction[self.TIME]: fields that a batch has not."""
    if not (isinstance(node.value, ast.Name) and node.value.id in _names_of_batch(method)):
        return
    fields, text, key = FIELDS_OF[draft.source.base], draft.edits.source(node), node.slice
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        if USUAL_FIELDS.get(key.value) not in fields:
            draft.look(node, text, f"a batch has no field {key.value!r} here")
    elif isinstance(key, ast.Attribute) and is_self(key.value) and key.attr not in fields:
        assigned = draft.source.assigned(key.attr)
        origins = {*KEYS_OF_RECBOLE, *(f"self.{field}" for field in fields)}
        if assigned is None or not any(name in ast.unparse(assigned) for name in origins):
            draft.look(node, text, f"a batch has no field self.{key.attr} here")


def _names_of_batch(method: Function) -> set[str]:
    """Names of a method's arguments that are a batch."""
    arguments = [argument.arg for argument in method.args.args]
    if method.name in METHODS_WITH_BATCH:
        return {*arguments[1:2]}
    return {"interaction"} & {*arguments}


def look_at_attribute(draft: Draft, node: ast.Attribute) -> None:
    """self.token_field_names: lists of fields, which a click model is not given."""
    of_context = draft.source.base == "ContextRecommender" and node.attr in NOT_OF_CONTEXT
    if of_context and is_self(node.value):
        draft.look(node, f"self.{node.attr}", "it is not here; a batch has its features")

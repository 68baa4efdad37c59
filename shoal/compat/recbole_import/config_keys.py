"""Keys of the config: config["x"] -> options.x, a field of the class Options.

Keys that every config of RecBole has are what stands for them here: config["device"] is
self.device. What an option is declared as, and its default, is in options.py.
"""

from __future__ import annotations

import ast
from textwrap import indent
from typing import Any

from shoal.compat.recbole_import.draft import Draft, Line, look_comment
from shoal.compat.recbole_import.edits import first_line
from shoal.compat.recbole_import.names import dotted
from shoal.compat.recbole_import.options import MISSING, OptionKey, Values, is_option
from shoal.compat.recbole_import.syntax import is_self

# Keys of RecBole that every config has -> what a model here has instead.
KEYS_OF_RECBOLE = {
    "USER_ID_FIELD": "self.USER_ID",
    "ITEM_ID_FIELD": "self.ITEM_ID",
    "LABEL_FIELD": "self.LABEL",
    "NEG_PREFIX": '"neg_"',
    "LIST_SUFFIX": '"_list"',
    "ITEM_LIST_LENGTH_FIELD": '"item_length"',
    "MAX_ITEM_LIST_LENGTH": "facts.max_len",
    "device": "self.device",
}
# Keys of fields of interactions that a model is not given here.
KEYS_WITHOUT_FIELD = ("RATING_FIELD", "TIME_FIELD", "HEAD_ENTITY_ID_FIELD", "ENTITY_ID_FIELD")


def key_of(node: ast.Subscript | ast.Call, config: str) -> str | None:
    """The key of config["x"] or config.get("x", …); None: it reads no key."""
    names = (config, f"{config}.final_config_dict")
    if isinstance(node, ast.Subscript) and dotted(node.value, {}) in names:
        key: ast.expr | None = node.slice
    elif isinstance(node, ast.Call) and dotted(node.func, {}) == f"{config}.get" and node.args:
        key = node.args[0]
    else:
        return None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def translate_key(draft: Draft, node: ast.Subscript | ast.Call, config: str) -> None:
    """In __init__, whose argument is called config: config["x"] -> options.x"""
    name = key_of(node, config)
    if name is None:
        return
    text = draft.edits.source(node)
    if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        draft.look(node, text, "options are not changed; keep the value in an attribute")
    elif name in KEYS_OF_RECBOLE:
        draft.edits.replace(node, KEYS_OF_RECBOLE[name])
    elif name in KEYS_WITHOUT_FIELD:
        draft.look(node, text, f"a model is given no field {name} of interactions")
    else:
        add_option(draft, node, name)
        if is_option(name):
            draft.edits.replace(node, f"options.{name}")


def look_at_computed_key(draft: Draft, node: ast.Name) -> None:
    """A person must look where an attribute of config is read, or a key that is computed."""
    parents = draft.source.parents
    around = parents.get(node)
    if not isinstance(around, ast.Subscript | ast.Attribute) or around.value is not node:
        return
    readers = [around, parents.get(around)]  # config["x"]; config.get("x"), config.dict["x"]
    keys = [key_of(one, node.id) for one in readers if isinstance(one, ast.Subscript | ast.Call)]
    if not any(keys):
        why = "which option it reads is not known: write options.NAME"
        draft.look(around, draft.edits.source(around), why)


def translate_kept_key(draft: Draft, node: ast.Subscript) -> None:
    """In other methods: self.config["x"], which stays, or config["x"] of an argument."""
    for config in ("config", "self.config"):
        name = key_of(node, config)
        if name in KEYS_OF_RECBOLE:
            draft.edits.replace(node, KEYS_OF_RECBOLE[name].replace("facts.", "self.facts."))
        elif name is not None:
            add_option(draft, node, name)


def add_option(draft: Draft, node: ast.Subscript | ast.Call, name: str) -> None:
    """Make a key an option, with the default and the type that the code around it has."""
    if not is_option(name):
        draft.look(node, f"config[{name!r}]", "an option cannot have this name; choose another")
        return
    parents = draft.source.parents
    option = draft.options.setdefault(name, OptionKey(name, node.lineno))
    if isinstance(node, ast.Call) and len(node.args) > 1:  # config.get("x", 2)
        option.in_code = _literal(node.args[1])
    around = parents.get(node)
    if isinstance(around, ast.Call):
        function = ast.unparse(around.func)
        if function in ("int", "float", "str", "bool"):
            option.type_in_code = function
    while isinstance(around, ast.Call | ast.BoolOp | ast.IfExp) and option.in_code is MISSING:
        if isinstance(around, ast.BoolOp) and isinstance(around.op, ast.Or):
            option.in_code = _literal(around.values[-1])  # config["x"] or 2
        elif isinstance(around, ast.IfExp):
            option.in_code = _literal(around.orelse)  # config["x"] if "x" in config else 2
        around = parents.get(around)


def _literal(node: ast.expr) -> Any:
    """The value of a literal; MISSING: it is none."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return MISSING


def write_options(draft: Draft, values: Values) -> None:
    """Write the class Options above the first method, and a line of the table for each option."""
    for option in draft.options.values():
        option.find_default(values)
    # Fields without a default come first, as in every dataclass.
    options = sorted(draft.options.values(), key=lambda option: option.default is not MISSING)
    body = ""
    for option in options:
        origin = "" if option.origin in ("", "guess") else f", default of {option.origin}"
        what, becomes = f'config["{option.name}"]', f"options.{option.name}{origin}"
        draft.lines.append(Line(option.line, what, becomes, option.look))
        body += indent(look_comment(option.look), "    ") if option.look else ""
        body += f"    {option.declaration}\n"
    defaults = _defaults_of_run(draft)
    if defaults is not None:
        body += ("\n" if body else "") + f"    DEFAULTS = {defaults!r}\n"
    if body:
        text = f"class Options({draft.source.base}.Options):\n{body}\n"
        draft.edits.insert_above(first_line(draft.source.first_method), text)


def _defaults_of_run(draft: Draft) -> dict[str, Any] | None:
    """The default of train.negatives, where the class reads other samples than its base."""
    source = draft.source
    reads = {
        node.attr
        for method in source.methods.values()
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and is_self(node.value)
    }
    if source.base == "GeneralRecommender" and not reads & {"NEG_ITEM_ID", "LABEL"}:
        return {"train.negatives": None}
    if source.base != "SequentialRecommender" or "NEG_ITEM_ID" not in reads:
        return None
    loss = draft.options.get("loss_type")
    return {"train.negatives.num": 1} if loss is None or loss.default == "BPR" else None

"""Tables: nn.Embedding of as many rows as users or items -> TableEmbedding("name", …)."""

from __future__ import annotations

import ast
import re

from shoal.compat.recbole_import.draft import Draft
from shoal.compat.recbole_import.names import dotted
from shoal.compat.recbole_import.source import ModelSource
from shoal.compat.recbole_import.syntax import Function, is_self, keyword_value, one_line

# Names that hold how many users or items there are: n_users, item_num, num_items.
COUNTS = re.compile(r"^(n|num)_?(users?|items?)$|^(users?|items?)_?(num|count|size)$", re.I)
ARGUMENTS = ("num_embeddings", "embedding_dim", "padding_idx", "device")


def translate_embedding(draft: Draft, node: ast.Call) -> None:
    """nn.Embedding(self.n_users, d) -> TableEmbedding("user_embedding", self.n_users, d)"""
    edits, text = draft.edits, one_line(draft.edits.source(node))
    size = node.args[0] if node.args else keyword_value(node, "num_embeddings")
    if size is None or not _mentions_count(size, _names_of_counts(draft.source)):
        draft.done(node, text, "as it was: a layer, the same on every process")
        return
    extra = [keyword.arg for keyword in node.keywords if keyword.arg not in ARGUMENTS]
    if extra or len(node.args) > 3:
        names = ", ".join(map(str, extra)) or "a fourth argument"
        draft.look(node, text, f"a table has no {names}; leave it out")
    name, attribute = _table_name(node, draft.source.parents)
    opening = edits.find("(", edits.end(node.func))
    edits.replace_span(edits.start(node.func), opening + 1, f"TableEmbedding({name}, ")
    draft.runtime_names["TableEmbedding"] = "TableEmbedding"
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    if node.keywords and node.keywords[-1].arg == "device":  # a strategy places tables
        edits.replace_span(edits.end(values[-2]), edits.end(values[-1]), "")
    draft.done(node, text, f"a table named {name}")
    draft.tables.add(attribute)


def _names_of_counts(source: ModelSource) -> set[str]:
    """Attributes and local names to which __init__ assigns how many users or items there are."""
    counts = {"n_users", "n_items"}
    start = source.methods.get("__init__")
    for node in ast.walk(start) if start is not None else ():
        if isinstance(node, ast.Assign) and _mentions_count(node.value, counts):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    counts.add(target.attr)
                elif isinstance(target, ast.Name):
                    counts.add(target.id)
    return counts


def _mentions_count(node: ast.expr, counts: set[str]) -> bool:
    """Whether an expression reads how many users or items there are."""
    for inner in ast.walk(node):
        name = inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")
        if name in counts or COUNTS.match(name):
            return True
        if name == "num" and isinstance(inner, ast.Attribute):
            return True
    return False


def _table_name(node: ast.Call, parents: dict[ast.AST, ast.AST]) -> tuple[str, str]:
    """The name of a table as it is written, and the attribute that holds the table.

    One of several tables is named by its number: f"layers_{number}".
    """
    statement: ast.AST = node
    loop = ""
    while not isinstance(statement, ast.stmt):
        statement = parents[statement]
        generators = getattr(statement, "generators", ())
        if generators and isinstance(generators[0].target, ast.Name):
            loop = generators[0].target.id
    attribute = ""
    for target in getattr(statement, "targets", ()):
        if isinstance(target, ast.Attribute):
            attribute = target.attr
    if not attribute and isinstance(statement, ast.Expr):  # self.layers.append(nn.Embedding(...))
        attributes = [inner for inner in ast.walk(statement) if isinstance(inner, ast.Attribute)]
        attribute = next((inner.attr for inner in attributes if is_self(inner.value)), "")
        around = parents.get(statement)
        if isinstance(around, ast.For) and isinstance(around.target, ast.Name):
            loop = around.target.id
    attribute = attribute or f"table_{node.lineno}"
    return (f'f"{attribute}_{{{loop}}}"' if loop else f'"{attribute}"'), attribute


def look_at_pretrained_rows(draft: Draft, node: ast.Call) -> None:
    """nn.Embedding.from_pretrained(tensor)"""
    why = "rows from a tensor stay a layer of every process; use shoal train --from instead"
    draft.look(node, "nn.Embedding.from_pretrained", why)


def look_at_assigned_rows(draft: Draft, node: ast.Assign) -> None:
    """self.item_embedding.weight.data = …"""
    for target in node.targets:
        text = dotted(target, {})
        if text.endswith((".weight", ".weight.data")) and text.split(".")[1] in draft.tables:
            why = "a table takes no tensor as its rows; start from a run with shoal train --from"
            draft.look(node, text, why)


def translate_parameters(draft: Draft, node: ast.Attribute, method: Function) -> None:
    """self.parameters(), which has no tables; while the model is built, initial_parameters()."""
    if node.attr not in ("parameters", "named_parameters") or not is_self(node.value):
        return
    parents = draft.source.parents
    around = parents[parents[node]]
    if isinstance(around, ast.Call) and ast.unparse(around.func) == "next":
        return  # next(self.parameters()).device
    if method.name in draft.source.methods_at_start and node.attr == "parameters":
        end = draft.edits.end(node)
        draft.edits.replace_span(end - len("parameters"), end, "initial_parameters")
        draft.done(node, "self.parameters()", "initial_parameters(): tables are among them")
    else:
        draft.look(node, f"self.{node.attr}()", "tables are not among the parameters")

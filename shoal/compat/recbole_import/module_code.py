"""Code of the file beside the class: other models, helper classes and functions, and what runs."""

from __future__ import annotations

import ast

from shoal.compat.recbole import NAMES
from shoal.compat.recbole_import.config_keys import KEYS_OF_RECBOLE, add_option, key_of
from shoal.compat.recbole_import.draft import Draft, Line
from shoal.compat.recbole_import.names import dotted
from shoal.compat.recbole_import.processes import RANDOM, translate_dropout
from shoal.compat.recbole_import.tables import translate_embedding


def leave_out_code(draft: Draft) -> None:
    """Leave out other models, what runs when the file is imported, and classes of unknown bases."""
    for definition in draft.source.others:
        draft.edits.remove(definition)
        draft.done(definition, f"class {definition.name}", "left out: another model")
    for node in draft.source.tree.body:
        if not _only_defines(node):
            draft.edits.comment_out(node, "Left out: it runs when the file is imported.")
            draft.left_out.append(node)
            what = draft.edits.source(node).split("\n")[0][:40]
            draft.done(node, what, "a comment: it would run when the file is imported")
        elif isinstance(node, ast.ClassDef) and node not in draft.source.chain:
            unknown = _unknown_bases(node, draft.source.names)
            if unknown and node not in draft.left_out:
                draft.edits.remove(node)
                draft.left_out.append(node)
                why = f"made of {unknown[0]}"
                draft.lines.append(Line(node.lineno, f"class {node.name}", "left out", why))


def _only_defines(node: ast.stmt) -> bool:
    """Whether a statement of a module defines something and does nothing else."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Try):
        inside = [*node.body, *node.orelse, *node.finalbody]
        inside += [one for handler in node.handlers for one in handler.body]
        simple = ast.Import | ast.ImportFrom | ast.Assign | ast.Pass
        return all(isinstance(one, simple) for one in inside)
    return isinstance(
        node,
        ast.Import
        | ast.ImportFrom
        | ast.FunctionDef
        | ast.AsyncFunctionDef
        | ast.ClassDef
        | ast.Assign
        | ast.AnnAssign
        | ast.Pass,
    )


def _unknown_bases(node: ast.ClassDef, names: dict[str, str]) -> list[str]:
    """Bases of a class that are RecBole's and that are not here."""
    bases = [dotted(base, names) for base in node.bases]
    return [
        base
        for base in bases
        if base.startswith("recbole.") and base.removeprefix("recbole.") not in NAMES
    ]


def translate_helpers(draft: Draft) -> None:
    """Tables, dropout and keys of the classes and functions that a model is made of."""
    for statement in draft.source.tree.body:
        if statement in draft.source.chain or statement in draft.left_out:
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Subscript):
                _key(draft, node)
            elif isinstance(node, ast.Call):
                _call(draft, node, in_class=isinstance(statement, ast.ClassDef))


def _key(draft: Draft, node: ast.Subscript) -> None:
    """config["x"], which stays: Options can be read as a config, too."""
    name = key_of(node, "config") or key_of(node, "self.config")
    if name == "device":
        draft.look(node, draft.edits.source(node), "use the device of a tensor instead")
    elif name in KEYS_OF_RECBOLE:
        draft.done(node, draft.edits.source(node), "as it was: the model's options answer it")
    elif name is not None:
        add_option(draft, node, name)


def _call(draft: Draft, node: ast.Call, in_class: bool) -> None:
    name = dotted(node.func, draft.source.names)
    if name == "torch.nn.Embedding":
        translate_embedding(draft, node)
    elif name == "torch.nn.Dropout":
        translate_dropout(draft, node)
    elif in_class and name in RANDOM:
        draft.look(node, name, "it draws other numbers on every number of processes")

"""What depends on the number of processes: dropout, batch norms, random numbers, norms of a batch.

nn.Dropout becomes one with the same masks on any number; of the others a person must know.
"""

from __future__ import annotations

import ast

from shoal.compat.recbole_import.draft import Draft
from shoal.compat.recbole_import.names import dotted
from shoal.compat.recbole_import.syntax import Function, keyword_value, one_line

# Functions that draw numbers in another order on each number of processes.
RANDOM = {
    "torch.rand",
    "torch.randn",
    "torch.rand_like",
    "torch.randn_like",
    "torch.randint",
    "torch.randperm",
    "torch.bernoulli",
    "torch.multinomial",
    "torch.normal",
    "torch.nn.functional.dropout",
    "torch.nn.functional.gumbel_softmax",
    "torch.dropout",
}
RANDOM_MODULES = ("random.", "numpy.random.")
RANDOM_IN_PLACE = ("normal_", "uniform_", "random_", "bernoulli_")


def translate_layer_or_draw(draft: Draft, node: ast.Call, name: str, method: Function) -> None:
    """A call of a method, and its full name: a layer, random numbers, a norm of a batch."""
    if name == "torch.nn.Dropout":
        translate_dropout(draft, node)
    elif name.startswith("torch.nn.BatchNorm"):
        why = "it sees the samples of one process, so losses depend on their number"
        draft.look(node, name.removeprefix("torch."), why)
    elif name.startswith("torch.nn.") and keyword_value(node, "dropout") is not None:
        value = keyword_value(node, "dropout")
        if not (isinstance(value, ast.Constant) and not value.value):
            why = "its dropout is drawn anew on every process; Dropout is not"
            draft.look(node, f"{name.removeprefix('torch.')}(dropout=…)", why)
    elif method.name not in draft.source.methods_at_start and _draws(name, node):
        why = "it draws other numbers on every number of processes"
        draft.look(node, name or one_line(draft.edits.source(node.func)), why)
    _norm_of_batch(draft, node, name)


def translate_dropout(draft: Draft, node: ast.Call) -> None:
    """nn.Dropout(p) -> Dropout(p)"""
    if len(node.args) + len(node.keywords) != 1 or (node.keywords and node.keywords[0].arg != "p"):
        why = "Dropout has one argument, p; it is the same on any number"
        draft.look(node, "nn.Dropout", why)
        return
    draft.edits.replace(node.func, "Dropout")
    draft.runtime_names["Dropout"] = "Dropout"
    draft.done(node, "nn.Dropout", "Dropout: the same masks on any number of processes")


def _draws(name: str, node: ast.Call) -> bool:
    """Whether a call draws random numbers."""
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    return name in RANDOM or name.startswith(RANDOM_MODULES) or method in RANDOM_IN_PLACE


def _norm_of_batch(draft: Draft, node: ast.Call, name: str) -> None:
    """self.reg_loss(…), an EmbLoss without require_pow."""
    if not name.startswith("self.") or name.endswith("EmbLoss"):
        return
    attribute = name.removeprefix("self.")
    value = draft.source.assigned(attribute)
    if keyword_value(node, "require_pow") is not None or not isinstance(value, ast.Call):
        return
    if dotted(value.func, draft.source.names).endswith("EmbLoss"):
        why = (
            "the norm of all vectors of a process together: several processes penalise a "
            "little more; require_pow=True does not"
        )
        draft.look(node, f"self.{attribute}(…)", why)

"""Losses that compare the samples of a batch with each other, of which a process has only its own.

What is read of the batch is followed from calculate_loss through assignments and calls. A product
of two such tensors, the second transposed, has a number for each pair of samples:

    users = F.normalize(self.user_embedding(interaction[self.USER_ID]))    [b, d]
    items = F.normalize(self.item_embedding(interaction[self.ITEM_ID]))    [b, d]
    logits = torch.mm(users, items.t())                                    [b, b]

A product with the rows of a whole table is none, nor one of places within a sample, whose last
two dimensions are transposed.
"""

from __future__ import annotations

import ast

from shoal.compat.recbole_import.draft import Draft
from shoal.compat.recbole_import.names import dotted
from shoal.compat.recbole_import.source import ModelSource
from shoal.compat.recbole_import.syntax import Function, assigned_pairs, one_line

WHY = (
    "it compares the samples of one process, so losses depend on the number of processes; "
    "gather_global has those of all"
)
PRODUCTS = ("mm", "matmul")
DISTANCES = ("torch.pdist", "torch.cdist", "torch.nn.functional.pdist")
TRANSPOSES = ("transpose", "permute", "swapaxes")
# Attributes and methods of a tensor that have nothing of its samples.
ABOUT_TENSORS = ("shape", "size", "dim", "numel", "device", "dtype")


def look_at_batch_pairs(draft: Draft) -> None:
    """Every product and distance that has a number for each pair of samples."""
    source = draft.source
    places: set[ast.expr] = set()  # a set: code of a function in a function is read twice
    for function, names in _names_of_batch(source, draft.left_out).items():
        for node in [node for node in ast.walk(function) if isinstance(node, ast.expr)]:
            operands = _compared(node, source.names)
            if operands and all(_reads(operand, names) for operand in operands):
                places.add(node)
    for place in sorted(places, key=lambda node: (node.lineno, node.col_offset)):
        draft.look(place, one_line(draft.edits.source(place)), WHY)


def _compared(node: ast.expr, full_names: dict[str, str]) -> list[ast.expr]:
    """What an expression compares, each row with each: a @ b.T, torch.cdist(a, b); else nothing."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        operands = [node.left, node.right]
    elif not isinstance(node, ast.Call):
        return []
    elif dotted(node.func, full_names) in DISTANCES:
        return node.args[:2]
    elif dotted(node.func, full_names) in [f"torch.{name}" for name in PRODUCTS]:
        operands = node.args
    elif isinstance(node.func, ast.Attribute) and node.func.attr in PRODUCTS:
        operands = [node.func.value, *node.args]
    else:
        return []
    return operands if len(operands) == 2 and _is_transposed(operands[1]) else []


def _is_transposed(node: ast.expr) -> bool:
    """Whether the two dimensions of a matrix are exchanged: x.T, x.t(), x.transpose(0, 1)."""
    if isinstance(node, ast.Attribute):
        return node.attr == "T"
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    numbers = {value.value for value in node.args if isinstance(value, ast.Constant)}
    return node.func.attr == "t" or (node.func.attr in TRANSPOSES and numbers == {0, 1})


# ---- what is read of the batch ------------------------------------------------------------------


def _names_of_batch(source: ModelSource, left_out: list[ast.stmt]) -> dict[Function, set[str]]:
    """calculate_loss and the functions that it calls, also through others -> names in each."""
    functions = {
        node.name: node
        for statement in source.tree.body
        if statement not in left_out
        for node in ast.walk(statement)
        if isinstance(node, Function) and not isinstance(source.parents[node], ast.ClassDef)
    }
    waiting = [
        (method, {argument.arg for argument in method.args.args[1:2]})
        for definition in source.chain
        for method in definition.body
        if isinstance(method, Function) and method.name == "calculate_loss"
    ]
    names_of: dict[Function, set[str]] = {}
    while waiting:
        function, names = waiting.pop()
        if function in names_of and names <= names_of[function]:
            continue
        names_of[function] = _follow(function, names | names_of.get(function, set()))
        for call in [node for node in ast.walk(function) if isinstance(node, ast.Call)]:
            callee = _callee(call, function, source, functions)
            if callee is not None:
                waiting.append((callee, _arguments(call, callee, names_of[function])))
    return names_of


def _follow(function: Function, names: set[str]) -> set[str]:
    """The names, and those to which the function assigns what it computes of them."""
    before: set[str] = set()
    while names != before:
        before = names
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                for target, value in assigned_pairs(node):
                    if _reads(value, names):
                        names = names | _stored(target)
            elif isinstance(node, ast.AugAssign) and _reads(node.value, names):
                names = names | _stored(node.target)
    return names


def _stored(target: ast.expr) -> set[str]:
    """Names that an assignment to a target binds."""
    nodes = [node for node in ast.walk(target) if isinstance(node, ast.Name)]
    return {node.id for node in nodes if isinstance(node.ctx, ast.Store)}


def _reads(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression has values of one of the names: more than its size or device."""
    waiting = [node]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, ast.Name) and inner.id in names:
            return True
        is_length = isinstance(inner, ast.Call) and dotted(inner.func, {}) == "len"
        is_about = isinstance(inner, ast.Attribute) and inner.attr in ABOUT_TENSORS
        if not (is_length or is_about):
            waiting += ast.iter_child_nodes(inner)
    return False


def _callee(
    call: ast.Call,
    function: Function,
    source: ModelSource,
    functions: dict[str, Function],
) -> Function | None:
    """The function of the file that a call runs: a function, a method, the forward of a layer."""
    name = dotted(call.func, {})
    if name != "self" and not name.startswith("self."):
        return functions.get(name)
    owner = source.parents[function]
    if isinstance(owner, ast.ClassDef) and owner not in source.chain:
        return None  # self is a layer
    attribute = name.removeprefix("self").removeprefix(".") or "forward"
    if attribute in source.methods:
        return source.methods[attribute]
    layer = source.assigned(attribute)
    name = dotted(layer.func, {}) if isinstance(layer, ast.Call) else ""
    for definition in source.tree.body:
        if isinstance(definition, ast.ClassDef) and definition.name == name:
            methods = [node for node in definition.body if isinstance(node, Function)]
            return next((method for method in methods if method.name == "forward"), None)
    return None


def _arguments(call: ast.Call, function: Function, names: set[str]) -> set[str]:
    """Names of a function's arguments for which a call gives it what is read of the batch."""
    arguments = [argument.arg for argument in function.args.args]
    positional = arguments[1:] if arguments[:1] == ["self"] else arguments
    values = dict(zip(positional, call.args))
    values |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    return {name for name, value in values.items() if _reads(value, names)} & {*arguments}

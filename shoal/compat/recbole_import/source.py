"""A model class for RecBole as it was read, and what its methods call and assign."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shoal.compat.recbole_import.names import full_names
from shoal.compat.recbole_import.syntax import Function, assignments, is_self

BASES = ("GeneralRecommender", "SequentialRecommender", "ContextRecommender")


@dataclass
class ModelSource:
    """A model class, with the classes of the same file that it is made of."""

    path: Path
    text: str
    tree: ast.Module
    chain: list[ast.ClassDef]  # the class itself, its base, ..., the one made of RecBole's
    base: str  # of BASES
    others: list[ast.ClassDef]  # other model classes of the file

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.chain[0].name

    @cached_property
    def names(self) -> dict[str, str]:
        """Local name -> what the file imported it as: nn -> torch.nn."""
        return full_names(self.tree)

    @cached_property
    def methods(self) -> dict[str, Function]:
        """The methods of the class, inherited ones too."""
        return {
            method.name: method
            for definition in reversed(self.chain)
            for method in definition.body
            if isinstance(method, Function)
        }

    @property
    def first_method(self) -> Function:
        """The first method of the chain's end, or of the class nearest to it that has one."""
        bodies = [definition.body for definition in reversed(self.chain)]
        return next(node for body in bodies for node in body if isinstance(node, Function))

    @cached_property
    def methods_at_start(self) -> set[str]:
        """Names of the methods that __init__ calls, also through others; __init__ is one."""
        reached: set[str] = set()
        waiting = ["__init__"]
        while waiting:
            name = waiting.pop()
            if name in reached or name not in self.methods:
                continue
            reached.add(name)
            for node in ast.walk(self.methods[name]):
                if isinstance(node, ast.Attribute) and is_self(node.value):
                    waiting.append(node.attr)
        return reached

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Node of the tree -> the node that it is a part of."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def assigned(self, attribute: str) -> ast.expr | None:
        """What the methods assign to an attribute first, __init__ before the others."""
        start = self.methods.get("__init__")
        for method in (start, *self.methods.values()):
            for node in ast.walk(method) if method is not None else ():
                for target, value in assignments(node):
                    if target == attribute:
                        return value
        return None

"""One pass over a model class: what its lines are here, as edits of its text and as a table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent, wrap
from typing import Any

from shoal.compat.recbole import NAMES
from shoal.compat.recbole_import.edits import Edits, first_line
from shoal.compat.recbole_import.imports import (
    dotted,
    full_names,
    is_recbole,
    missing_packages,
    only_defines,
)
from shoal.compat.recbole_import.names import (
    DRAWING_MODULES,
    FIELDS_OF,
    KEYS_OF_RECBOLE,
    KEYS_WITHOUT_FIELD,
    NOT_OF_CONTEXT,
    OF_DATASET,
    RANDOM,
    USUAL_FIELDS,
)
from shoal.compat.recbole_import.options import (
    MISSING,
    OptionKey,
    Values,
    files_beside,
    is_option,
    read_values,
)
from shoal.compat.recbole_import.source import ModelSource, read_source

COUNTS = re.compile(r"^(n|num)_?(users?|items?)$|^(users?|items?)_?(num|count|size)$", re.I)
STEP = ("calculate_loss", "predict", "full_sort_predict")
Function = ast.FunctionDef


@dataclass(frozen=True)
class Line:
    """A line of the table: what stands in the class, and what it is here."""

    number: int
    what: str
    becomes: str
    look: str = ""  # why a person must look; empty: done


@dataclass
class MovedClass:
    """A class as it was translated."""

    name: str
    text: str
    lines: list[Line] = field(default_factory=list)

    @property
    def looks(self) -> int:
        """How many places need a person."""
        return sum(bool(line.look) for line in self.lines)


def translate(place: str, configs: list[Path] | None = None) -> MovedClass:
    """Translate the class of FILE.py or FILE.py:Class. The file is read and never run.

    configs: property files with defaults of options; None: the one beside the file, if any
    """
    source = read_source(place)
    files = files_beside(source.path, source.name) if configs is None else configs
    return _Pass(source, read_values(files)).run()


class _Pass:
    """Collects edits and lines, from the top of the file to its end."""

    def __init__(self, source: ModelSource, values: Values):
        self.source, self.values = source, values
        self.edits = Edits(source.text)
        self.names = full_names(source.tree)
        self.lines: list[Line] = []
        self.runtime: dict[str, str] = {}  # names of shoal.compat.recbole -> as what
        self.options: dict[str, OptionKey] = {}
        self.tables: set[str] = set()  # attributes
        self.kept_for_scores: set[str] = set()  # attributes, too
        self.left_out: list[ast.stmt] = [*source.others]
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(source.tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
        self.methods = {
            method.name: method
            for definition in reversed(source.chain)
            for method in definition.body
            if isinstance(method, Function)
        }
        self.at_start = self._called_from("__init__")
        self.counts = self._attributes_that_count()
        self.step_name = "compute" if "compute" not in self.methods else "compute_outputs"

    def run(self) -> MovedClass:
        """Everything, in the order of the file."""
        self._check()
        self._module()
        for definition in self.source.chain:
            self._class(definition)
        for statement in self.source.tree.body:
            if statement not in [*self.source.chain, *self.left_out]:
                self._layers(statement)
        self._options()
        self._import_runtime()
        self.lines.sort(key=lambda line: line.number)
        text = self._header() + self.edits.text()
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise ValueError(
                f"{self.source.path}: what was written of it is no Python (line {error.lineno}: "
                f"{error.msg}); it is written in an unusual way, move it by hand"
            ) from None
        return MovedClass(self.source.name, text, self.lines)

    # ---- the table, and comments in the file ----------------------------------------------------

    def done(self, node: Any, what: str, becomes: str) -> None:
        """Add a line of something that needs nobody."""
        self.lines.append(Line(node.lineno, what, becomes))

    def look(self, node: Any, what: str, why: str, becomes: str = "as it was") -> None:
        """Add a line of something that a person must look at, and a comment above it."""
        self.lines.append(Line(node.lineno, what, becomes, why))
        statement = node
        while not isinstance(statement, ast.stmt):
            statement = self.parents[statement]
        self.edits.insert_above(first_line(statement), comment(why))

    def _header(self) -> str:
        number = sum(bool(line.look) for line in self.lines)
        places = "1 place needs" if number == 1 else f"{number} places need"
        return (
            f"# {self.source.name}, moved from RecBole by `shoal import recbole`; {places} a person"
            f"{': search for LOOK' if number else ''}.\n"
        )

    # ---- what is refused ------------------------------------------------------------------------

    def _check(self) -> None:
        name = self.source.name
        if "calculate_loss" not in self.methods:
            raise ValueError(f"{name} has no calculate_loss, so there is nothing to train")
        if not {"predict", "full_sort_predict"} & set(self.methods):
            raise ValueError(f"{name} has neither predict nor full_sort_predict: it scores nothing")
        for definition in self.source.chain:
            for node in ast.walk(definition):
                kind = dotted(node, self.names) if isinstance(node, ast.Attribute) else ""
                for other in ("TRADITIONAL", "DECISIONTREE", "KNOWLEDGE"):
                    if kind.endswith(f"ModelType.{other}"):
                        raise ValueError(
                            f"{name} is of ModelType.{other} (line {definition.lineno}), which "
                            "RecBole trains in a way of its own; move it by hand"
                        )
        start = self.methods.get("__init__")
        if start is not None and len(start.args.args) != 3:
            raise ValueError(
                f"{name}.__init__ (line {start.lineno}) takes other arguments than (self, config, "
                "dataset); RecBole gives a model these two"
            )

    # ---- what is known before the pass ----------------------------------------------------------

    def _called_from(self, name: str) -> set[str]:
        """Names of the methods that a method calls on self, also through others."""
        reached, waiting = set(), [name]
        while waiting:
            here = waiting.pop()
            if here in reached or here not in self.methods:
                continue
            reached.add(here)
            for node in ast.walk(self.methods[here]):
                if isinstance(node, ast.Attribute) and _is_self(node.value):
                    waiting.append(node.attr)
        return reached

    def _attributes_that_count(self) -> set[str]:
        """Attributes and local names that hold how many users or items there are."""
        counts = {"n_users", "n_items"}
        start = self.methods.get("__init__")
        for node in ast.walk(start) if start is not None else ():
            if isinstance(node, ast.Assign) and _mentions_count(node.value, counts):
                for target in node.targets:
                    if isinstance(target, ast.Attribute):
                        counts.add(target.attr)
                    elif isinstance(target, ast.Name):
                        counts.add(target.id)
        return counts

    # ---- the module -----------------------------------------------------------------------------

    def _module(self) -> None:
        for definition in self.source.others:
            self.edits.remove(definition)
            self.done(definition, f"class {definition.name}", "left out: another model")
        for node in self.source.tree.body:
            if not only_defines(node):
                self.edits.comment_out(node, "Left out: it runs when the file is imported.")
                self.left_out.append(node)
                what = self.edits.source(node).split("\n")[0][:40]
                self.done(node, what, "a comment: it would run when the file is imported")
            elif isinstance(node, ast.ClassDef) and node not in self.source.chain:
                foreign = [dotted(base, self.names) for base in node.bases]
                theirs = [one for one in foreign if one.startswith("recbole.")]
                unknown = [one for one in theirs if one.removeprefix("recbole.") not in NAMES]
                if unknown and node not in self.left_out:
                    self.edits.remove(node)
                    self.left_out.append(node)
                    self.lines.append(
                        Line(node.lineno, f"class {node.name}", "left out", f"made of {unknown[0]}")
                    )
        for statement in self.source.tree.body:
            for inner in ast.walk(statement) if statement not in self.left_out else ():
                if isinstance(inner, ast.Import | ast.ImportFrom):
                    self._import(inner)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        text = self.edits.source(node).split("\n")[0]
        if isinstance(node, ast.Import) and node.names[0].name.split(".")[0] == "recbole":
            self.edits.comment_out(node, "LOOK: RecBole itself is not here.")
            self.lines.append(Line(node.lineno, text, "a comment", "RecBole itself is not here"))
        elif isinstance(node, ast.ImportFrom) and is_recbole(node):
            self._import_from_recbole(node)
        elif isinstance(node, ast.ImportFrom) and node.level:
            why = "a file of its own imports nothing beside it; put what it needs into this file"
            self.edits.comment_out(node, f"LOOK: {why}.")
            self.lines.append(Line(node.lineno, text, "a comment", why))
        elif missing := missing_packages(node):
            why = f"{', '.join(missing)} is not installed here"
            if node in self.source.tree.body:
                self.look(node, text, why)

    def _import_from_recbole(self, node: ast.ImportFrom) -> None:
        from_here = [alias for alias in node.names if alias.name in NAMES]
        unknown = [alias for alias in node.names if alias.name not in NAMES]
        for alias in from_here:
            self.runtime[alias.name] = alias.asname or alias.name
        in_use = {one.id for one in ast.walk(self.source.tree) if isinstance(one, ast.Name)}
        unknown = [alias for alias in unknown if (alias.asname or alias.name) in in_use]
        names = ", ".join(alias.name for alias in node.names)
        if unknown:
            missing = ", ".join(alias.name for alias in unknown)
            why = f"{missing} of {node.module} has no counterpart here; put its code into this file"
            self.edits.comment_out(node, f"LOOK: {why}.")
            self.lines.append(Line(node.lineno, f"import {names}", "a comment", why))
        elif node in self.source.tree.body:
            self.edits.remove(node)
            becomes = "from shoal.compat.recbole" if from_here else "left out: it is not used"
            self.done(node, f"import {names}", becomes)
        else:
            self.edits.replace(node, "pass")

    def _import_runtime(self) -> None:
        """Import what stands for RecBole's names, behind the imports at the top of the file."""
        self.runtime.setdefault(self.source.base, self.source.base)
        names = sorted(
            name if alias == name else f"{name} as {alias}" for name, alias in self.runtime.items()
        )
        statement = f"from shoal.compat.recbole import {', '.join(names)}\n"
        if len(statement) > 101:
            body = "".join(f"    {name},\n" for name in names)
            statement = f"from shoal.compat.recbole import (\n{body})\n"
        if any("field(default_factory" in key.declaration for key in self.options.values()):
            statement = f"from dataclasses import field\n\n{statement}"
        top = self.source.tree.body
        imports = [node for node in top if isinstance(node, ast.Import | ast.ImportFrom)]
        first_class = min(node.lineno for node in top if isinstance(node, ast.ClassDef))
        before = [node for node in imports if node.lineno < first_class]
        target = before[-1] if before else None
        if target is None:
            root = self.source.chain[-1]
            self.edits.insert_above(first_line(root), f"{statement}\n\n")
        else:
            self.edits.insert_below(target, statement)

    # ---- the class ------------------------------------------------------------------------------

    def _class(self, definition: ast.ClassDef) -> None:
        if definition is self.source.chain[-1]:
            self._bases(definition)
        for node in definition.body:
            if isinstance(node, Function):
                self._method(node)
            elif isinstance(node, ast.Assign):
                self._class_attribute(node)

    def _bases(self, definition: ast.ClassDef) -> None:
        for base in definition.bases:
            name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
            if isinstance(base, ast.Attribute) and name == self.source.base:
                self.edits.replace(base, name)
            if name == self.source.base:
                self.done(definition, f"class {self.source.name}({name})", f"Shoal's {name}")
            else:
                what = f"class {definition.name}(…, {name})"
                self.look(definition, what, f"its base {name} must be in this file and run here")

    def _class_attribute(self, node: ast.Assign) -> None:
        text = self.edits.source(node)
        if "LISTWISE" in text:
            self.look(node, text, "batches are pairs, or users, items and labels")
        elif "InputType" in text and self.source.base == "GeneralRecommender":
            fields = "user, item, label" if "POINTWISE" in text else "user, item, negative item"
            self.done(node, text, f"a batch has {fields}")

    def _method(self, node: Function) -> None:
        if node.name == "__init__":
            self._start(node)
        if node.name == "forward":
            at = self.edits.find("forward", self.edits.start(node))
            self.edits.replace_span(at, at + len("forward"), self.step_name)
            self.done(node, "forward", f"{self.step_name}: forward is the training step")
        if node.name == "calculate_loss":
            self.done(node, "calculate_loss", "the training loss: its mean × samples")
        if node.name == "full_sort_predict":
            self.done(node, "full_sort_predict", "score: of the items asked for")
        if node.name == "predict":
            full = "full_sort_predict" in self.methods
            becomes = "not called" if full else "score: of pairs"
            if self.source.base == "ContextRecommender":
                becomes = "logits: the log odds of its probability"
            self.done(node, "predict", becomes)
        if node.name.startswith(("pretrain", "init_epoch", "get_flops")):
            self.look(node, node.name, "nobody calls it here: training is one loss, step by step")
        for inner in ast.walk(node):
            self._expression(inner, node)
        if node.name in ("predict", "full_sort_predict"):
            self._computed_once(node)

    def _start(self, node: Function) -> None:
        """__init__(self, config, dataset) -> __init__(self, options, facts)"""
        _, config, data = node.args.args
        self.edits.replace(config, "options")
        self.edits.replace(data, "facts")
        self.done(node, "__init__(config, dataset)", "__init__(options, facts)")
        for inner in ast.walk(node):
            is_call = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute)
            if is_call and _is_super(inner.func.value) and inner.func.attr == "__init__":  # type: ignore[attr-defined]
                opening = self.edits.find("(", self.edits.end(inner.func))  # type: ignore[attr-defined]
                self.edits.replace_span(opening + 1, self.edits.end(inner) - 1, "options, facts")
            elif isinstance(inner, ast.Assign):
                self._assignment(inner, config.arg, data.arg)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call | ast.Attribute):
                self._of_dataset(inner, data.arg)
            if isinstance(inner, ast.Subscript | ast.Call):
                self._key(inner, config.arg)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id in (config.arg, data.arg):
                self.edits.replace(inner, "options" if inner.id == config.arg else "self.dataset")

    def _assignment(self, node: ast.Assign, config: str, data: str) -> None:
        target, value = node.targets[0], node.value
        if not (isinstance(target, ast.Attribute) and _is_self(target.value)):
            return
        if target.attr == "device":
            self.edits.comment_out(node, "self.device is where the model is.")
            self.done(node, "self.device", "where the model is, wherever it goes")
        elif target.attr == "dataset" and isinstance(value, ast.Name) and value.id == data:
            self.edits.comment_out(node, "self.dataset has the training interactions.")
            self.done(node, "self.dataset", "sizes and training interactions")

    def _of_dataset(self, node: ast.Call | ast.Attribute, data: str) -> None:
        """dataset.num(self.USER_ID) and its like; what a dataset has not here."""
        attribute = node.func if isinstance(node, ast.Call) else node
        if not (isinstance(attribute, ast.Attribute) and isinstance(attribute.value, ast.Name)):
            return
        if attribute.value.id != data:
            return
        text = self.edits.source(node)
        sizes = {"user_num": "facts.num_users", "item_num": "facts.num_items"}
        if attribute.attr == "num" and isinstance(node, ast.Call) and node.args:
            field_name = ast.unparse(node.args[0])
            fields = {"self.USER_ID": "facts.num_users", "self.ITEM_ID": "facts.num_items"}
            if field_name in fields:
                self.edits.replace(node, fields[field_name])
                self.done(node, text, fields[field_name])
        elif attribute.attr in sizes:
            self.edits.replace(node, sizes[attribute.attr])
            self.done(node, text, sizes[attribute.attr])
        elif attribute.attr not in OF_DATASET:
            if isinstance(node, ast.Attribute):
                self.look(node, text, f"self.dataset has no {attribute.attr} here")
        elif isinstance(node, ast.Call):
            self.done(node, text, f"self.{text}: of the training interactions")

    # ---- keys of the config ---------------------------------------------------------------------

    def _key(self, node: ast.Subscript | ast.Call, config: str) -> None:
        """config["x"] in __init__ -> options.x"""
        name = _key_of(node, config)
        if name is None:
            return
        key = self.edits.source(node)
        if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            self.look(node, key, "options are not changed; keep the value in an attribute")
        elif name in KEYS_OF_RECBOLE:
            self.edits.replace(node, KEYS_OF_RECBOLE[name])
        elif name in KEYS_WITHOUT_FIELD:
            self.look(node, key, f"a model is given no field {name} of interactions")
        elif is_option(name):
            self._add_option(node, name)
            self.edits.replace(node, f"options.{name}")
        else:
            self._add_option(node, name)

    def _add_option(self, node: Any, name: str) -> None:
        if not is_option(name):
            self.look(node, f"config[{name!r}]", "an option cannot have this name; choose another")
            return
        option = self.options.setdefault(name, OptionKey(name, node.lineno))
        if isinstance(node, ast.Call) and len(node.args) > 1:
            option.in_code = _literal(node.args[1])
        around = self.parents.get(node)
        converts = isinstance(around, ast.Call) and ast.unparse(around.func)
        if converts in ("int", "float", "str", "bool"):
            option.type_in_code = str(converts)
        while isinstance(around, ast.Call | ast.BoolOp | ast.IfExp) and option.in_code is MISSING:
            if isinstance(around, ast.BoolOp) and isinstance(around.op, ast.Or):
                option.in_code = _literal(around.values[-1])
            elif isinstance(around, ast.IfExp):
                option.in_code = _literal(around.orelse)
            around = self.parents.get(around)

    def _options(self) -> None:
        """Write the class Options, and what a class says about its training."""
        root = self.source.chain[-1]
        for key in self.options.values():
            key.find_default(self.values)
        # Fields without a default come first, as in every dataclass.
        keys = sorted(self.options.values(), key=lambda key: key.default is not MISSING)
        body = ""
        for key in keys:
            origin = "" if key.origin in ("", "guess") else f", default of {key.origin}"
            what, becomes = f'config["{key.name}"]', f"options.{key.name}{origin}"
            self.lines.append(Line(key.line, what, becomes, key.look))
            body += indent(comment(key.look), "    ") if key.look else ""
            body += f"    {key.declaration}\n"
        defaults = self._negatives()
        if defaults is not None:
            body += ("\n" if body else "") + f"    DEFAULTS = {defaults!r}\n"
        text = f"class Options({self.source.base}.Options):\n{body}\n" if body else ""
        kept = sorted(self.kept_for_scores)
        if kept:
            listed = ", ".join(f'"{name}"' for name in kept) + ("," if len(kept) == 1 else "")
            text = f"computed_once = ({listed})\n\n" + text
            line = Line(root.lineno, ", ".join(kept), "computed_once: dropped when rows change")
            self.lines.append(line)
        first = next(node for node in root.body if isinstance(node, Function))
        self.edits.insert_above(first_line(first), text)

    def _negatives(self) -> dict[str, Any] | None:
        """The default of train.negatives that differs from that of the base."""
        reads = {
            inner.attr
            for node in self.methods.values()
            for inner in ast.walk(node)
            if isinstance(inner, ast.Attribute) and _is_self(inner.value)
        }
        general = self.source.base == "GeneralRecommender"
        if general and not reads & {"NEG_ITEM_ID", "LABEL"}:
            return {"train.negatives": None}
        if self.source.base != "SequentialRecommender" or "NEG_ITEM_ID" not in reads:
            return None
        loss = self.options.get("loss_type")
        return {"train.negatives.num": 1} if loss is None or loss.default == "BPR" else None

    # ---- expressions ----------------------------------------------------------------------------

    def _expression(self, node: ast.AST, method: Function) -> None:
        if isinstance(node, ast.Call):
            self._call(node, method)
        elif isinstance(node, ast.Attribute):
            self._attribute(node, method)
        elif isinstance(node, ast.Subscript):
            self._field(node, method)
            if method.name != "__init__":
                self._config_kept(node)
        elif isinstance(node, ast.Assign):
            self._changed_rows(node)

    def _call(self, node: ast.Call, method: Function) -> None:
        name = dotted(node.func, self.names)
        if name == "torch.nn.Embedding":
            self._embedding(node)
        elif name == "torch.nn.Embedding.from_pretrained":
            why = "rows from a tensor stay a layer of every process; use shoal train --from instead"
            self.look(node, "nn.Embedding.from_pretrained", why)
        elif name == "torch.nn.Dropout":
            self._dropout(node)
        elif name.startswith("torch.nn.BatchNorm"):
            why = "it sees the samples of one process, so losses depend on their number"
            self.look(node, name.removeprefix("torch."), why)
        elif name.startswith("torch.nn.") and _keyword(node, "dropout") is not None:
            value = _keyword(node, "dropout")
            if not (isinstance(value, ast.Constant) and not value.value):
                why = "its dropout is drawn anew on every process; Dropout is not"
                self.look(node, f"{name.removeprefix('torch.')}(dropout=…)", why)
        elif name == "self":
            self.edits.replace(node.func, f"self.{self.step_name}")
        elif method.name not in self.at_start and self._draws(name, node):
            why = "it draws other numbers on every number of processes"
            self.look(node, name or _short(self.edits.source(node.func)), why)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda" and not node.args:
            start = self.edits.end(node.func.value)
            self.edits.replace_span(start, self.edits.end(node), ".to(self.device)")
            self.done(node, ".cuda()", ".to(self.device)")
        if isinstance(node.func, ast.Attribute) and node.func.attr == "_update":
            start, end = self.edits.end(node.func.value), self.edits.end(node.func)
            self.edits.replace_span(start, end, "._dict.update")
            self.done(node, "dok_matrix._update", "._dict.update: SciPy 1.13 took it away")
        if name.endswith("EmbLoss"):
            return
        if name.startswith("self.") and _keyword(node, "require_pow") is None:
            self._penalty(node, name.removeprefix("self."))

    def _draws(self, name: str, node: ast.Call) -> bool:
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        in_place = method in ("normal_", "uniform_", "random_", "bernoulli_")
        return name in RANDOM or name.startswith(DRAWING_MODULES) or in_place

    def _penalty(self, node: ast.Call, attribute: str) -> None:
        """A call of an EmbLoss without require_pow."""
        value = self._assigned(attribute)
        if isinstance(value, ast.Call) and dotted(value.func, self.names).endswith("EmbLoss"):
            why = (
                "the norm of all vectors of a process together: several processes penalise a "
                "little more; require_pow=True does not"
            )
            self.look(node, f"self.{attribute}(…)", why)

    def _embedding(self, node: ast.Call) -> None:
        """nn.Embedding(self.n_users, d) -> TableEmbedding("user_embedding", self.n_users, d)"""
        size = node.args[0] if node.args else _keyword(node, "num_embeddings")
        text = self.edits.source(node)
        if size is None or not _mentions_count(size, self.counts):
            self.done(node, _short(text), "as it was: a layer, the same on every process")
            return
        arguments = ("num_embeddings", "embedding_dim", "padding_idx", "device")
        extra = [one.arg for one in node.keywords if one.arg not in arguments]
        if extra or len(node.args) > 3:
            names = ", ".join(map(str, extra)) or "a fourth argument"
            self.look(node, _short(text), f"a table has no {names}; leave it out")
        name, number = self._table_name(node)
        at = self.edits.find("(", self.edits.end(node.func))
        self.edits.replace_span(self.edits.start(node.func), at + 1, f"TableEmbedding({name}, ")
        self.runtime["TableEmbedding"] = "TableEmbedding"
        parts = [*node.args, *(one.value for one in node.keywords)]
        if node.keywords and node.keywords[-1].arg == "device":  # a strategy places tables
            self.edits.replace_span(self.edits.end(parts[-2]), self.edits.end(parts[-1]), "")
        self.done(node, _short(text), f"a table named {name}")
        if number:
            self.tables.add(number)

    def _table_name(self, node: ast.Call) -> tuple[str, str]:
        """The name of a table as it is written, and its attribute, if it is one."""
        inside: ast.AST = node
        loop = ""
        while not isinstance(inside, ast.stmt):
            inside = self.parents[inside]
            generators = getattr(inside, "generators", ())
            if generators and isinstance(generators[0].target, ast.Name):
                loop = generators[0].target.id
        attribute = ""
        for target in getattr(inside, "targets", ()):
            if isinstance(target, ast.Attribute):
                attribute = target.attr
        if not attribute and isinstance(inside, ast.Expr):  # self.layers.append(nn.Embedding(...))
            attributes = [one for one in ast.walk(inside) if isinstance(one, ast.Attribute)]
            attribute = next((one.attr for one in attributes if _is_self(one.value)), "")
            around = self.parents.get(inside)
            if isinstance(around, ast.For) and isinstance(around.target, ast.Name):
                loop = around.target.id
        attribute = attribute or f"table_{node.lineno}"
        return (f'f"{attribute}_{{{loop}}}"' if loop else f'"{attribute}"'), attribute

    def _dropout(self, node: ast.Call) -> None:
        """nn.Dropout(p) -> Dropout(p)"""
        if len(node.args) + len(node.keywords) != 1 or (
            node.keywords and node.keywords[0].arg != "p"
        ):
            self.look(
                node, "nn.Dropout", "Dropout has one argument, p; it is the same on any number"
            )
            return
        self.edits.replace(node.func, "Dropout")
        self.runtime["Dropout"] = "Dropout"
        self.done(node, "nn.Dropout", "Dropout: the same masks on any number of processes")

    def _attribute(self, node: ast.Attribute, method: Function) -> None:
        if node.attr == "forward" and (_is_self(node.value) or _is_super(node.value)):
            end = self.edits.end(node)
            self.edits.replace_span(end - len("forward"), end, self.step_name)
        of_context = self.source.base == "ContextRecommender" and node.attr in NOT_OF_CONTEXT
        if of_context and _is_self(node.value):
            self.look(node, f"self.{node.attr}", "it is not here; a batch has its features")
        if node.attr in ("parameters", "named_parameters") and _is_self(node.value):
            self._parameters(node, method)
        text = dotted(node, {})
        if text.startswith("self.dataset.") and method.name != "__init__":
            name = text.split(".")[2]
            if name not in OF_DATASET and isinstance(node.value, ast.Attribute):
                self.look(node, text, f"self.dataset has no {name} here")

    def _parameters(self, node: ast.Attribute, method: Function) -> None:
        around = self.parents[self.parents[node]]
        if isinstance(around, ast.Call) and ast.unparse(around.func) == "next":
            return
        if method.name in self.at_start and node.attr == "parameters":
            end = self.edits.end(node)
            self.edits.replace_span(end - len("parameters"), end, "initial_parameters")
            self.done(node, "self.parameters()", "initial_parameters(): tables are among them")
        else:
            self.look(node, f"self.{node.attr}()", "tables are not among the parameters")

    def _field(self, node: ast.Subscript, method: Function) -> None:
        """interaction[self.USER_ID], and fields that a batch has not."""
        if not (isinstance(node.value, ast.Name) and node.value.id in self._interactions(method)):
            return
        fields, text = FIELDS_OF[self.source.base], self.edits.source(node)
        key = node.slice
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            if USUAL_FIELDS.get(key.value) not in fields:
                self.look(node, text, f"a batch has no field {key.value!r} here")
        elif isinstance(key, ast.Attribute) and _is_self(key.value) and key.attr not in fields:
            assigned = self._assigned(key.attr)
            sources = {*KEYS_OF_RECBOLE, *(f"self.{one}" for one in fields)}
            if assigned is None or not any(one in ast.unparse(assigned) for one in sources):
                self.look(node, text, f"a batch has no field self.{key.attr} here")

    def _interactions(self, method: Function) -> set[str]:
        """Names of a method's arguments that are a batch."""
        arguments = [one.arg for one in method.args.args]
        return {*arguments[1:2]} if method.name in STEP else {"interaction"} & {*arguments}

    def _assigned(self, attribute: str) -> ast.expr | None:
        """What the methods assign to an attribute first, __init__ before the others."""
        start = self.methods.get("__init__")
        for method in (start, *self.methods.values()):
            for node in ast.walk(method) if method is not None else ():
                for target, value in _assignments(node):
                    if target == attribute:
                        return value
        return None

    def _config_kept(self, node: ast.Subscript) -> None:
        """self.config["x"], or config["x"] of an argument, outside of __init__."""
        for config in ("config", "self.config"):
            name = _key_of(node, config)
            if name in KEYS_OF_RECBOLE:
                self.edits.replace(node, KEYS_OF_RECBOLE[name].replace("facts.", "self.facts."))
            elif name is not None:
                self._add_option(node, name)

    def _changed_rows(self, node: ast.Assign) -> None:
        """self.item_embedding.weight.data = …"""
        for target in node.targets:
            text = dotted(target, {})
            if text.endswith((".weight", ".weight.data")) and text.split(".")[1] in self.tables:
                why = (
                    "a table takes no tensor as its rows; start from a run with shoal train --from"
                )
                self.look(node, text, why)

    def _computed_once(self, method: Function) -> None:
        """Attributes that requests set and __init__ sets to None."""
        for node in ast.walk(method):
            for target, _ in _assignments(node):
                value = self._assigned(target)
                if isinstance(value, ast.Constant) and value.value is None:
                    self.kept_for_scores.add(target)

    # ---- other code of the file -----------------------------------------------------------------

    def _layers(self, definition: ast.stmt) -> None:
        """Tables, dropout and keys of the classes and functions that a model is made of."""
        for node in ast.walk(definition):
            if isinstance(node, ast.Subscript):
                name = _key_of(node, "config") or _key_of(node, "self.config")
                if name == "device":
                    self.look(node, self.edits.source(node), "use the device of a tensor instead")
                elif name is not None:
                    self._add_option(node, name)
            if isinstance(node, ast.Call):
                name = dotted(node.func, self.names)
                if name == "torch.nn.Embedding":
                    self._embedding(node)
                elif name == "torch.nn.Dropout":
                    self._dropout(node)
                elif isinstance(definition, ast.ClassDef) and name in RANDOM:
                    self.look(node, name, "it draws other numbers on every number of processes")


def comment(why: str) -> str:
    """The lines of a comment that asks a person to look."""
    return "".join(f"# {line}\n" for line in wrap(f"LOOK: {why}", 88))


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _is_super(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    )


def _mentions_count(node: ast.expr, counts: set[str]) -> bool:
    """Whether an expression reads how many users or items there are."""
    for inner in ast.walk(node):
        name = inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")
        if name in counts or COUNTS.match(name):
            return True
        if name == "num" and isinstance(inner, ast.Attribute):
            return True
    return False


def _key_of(node: ast.Subscript | ast.Call, config: str) -> str | None:
    """The key of config["x"] or config.get("x", …)."""
    if isinstance(node, ast.Subscript) and dotted(node.value, {}) == config:
        key: ast.expr | None = node.slice
    elif isinstance(node, ast.Call) and dotted(node.func, {}) == f"{config}.get" and node.args:
        key = node.args[0]
    else:
        return None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in node.keywords if one.arg == name), None)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return MISSING


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Attributes of self that a statement assigns, and their values: self.a, self.b = 1, 2."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        value = node.value  # type: ignore[attr-defined]
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        is_pair = isinstance(value, ast.Tuple) and len(value.elts) == len(targets)
        values = value.elts if is_pair else [value] * len(targets)
        for part, its_value in zip(targets, values):
            if isinstance(part, ast.Attribute) and _is_self(part.value):
                yield part.attr, its_value


def _short(text: str) -> str:
    """A text in one line."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"

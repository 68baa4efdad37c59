"""Translate a class: read its file, let each kind of thing be translated, and put it together."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

from shoal.compat.recbole_import.batch_pairs import look_at_batch_pairs
from shoal.compat.recbole_import.config_keys import write_options
from shoal.compat.recbole_import.draft import Draft, Line
from shoal.compat.recbole_import.imports import import_runtime, translate_imports
from shoal.compat.recbole_import.model_class import translate_class, write_computed_once
from shoal.compat.recbole_import.module_code import leave_out_code, translate_helpers
from shoal.compat.recbole_import.options import files_beside, read_values
from shoal.compat.recbole_import.reading import read_source
from shoal.compat.recbole_import.refusals import check_class


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
    values = read_values(files_beside(source.path, source.name) if configs is None else configs)
    check_class(source)
    draft = Draft(source)
    leave_out_code(draft)
    translate_imports(draft)
    for definition in source.chain:
        translate_class(draft, definition)
    translate_helpers(draft)
    look_at_batch_pairs(draft)
    write_computed_once(draft)
    write_options(draft, values)
    import_runtime(draft)
    return _moved(draft)


def _moved(draft: Draft) -> MovedClass:
    """The text with its edits below a line that says where it is from, and the table."""
    source = draft.source
    moved = MovedClass(source.name, "", sorted(draft.lines, key=lambda line: line.number))
    places = "1 place needs" if moved.looks == 1 else f"{moved.looks} places need"
    remedy = ": search for LOOK" if moved.looks else ""
    moved.text = (
        f"# {source.name}, moved from RecBole by `shoal import recbole`; {places} a person"
        f"{remedy}.\n{draft.edits.text()}"
    )
    try:
        ast.parse(moved.text)
    except SyntaxError as error:
        raise ValueError(
            f"{source.path}: what was written of it is no Python (line {error.lineno}: "
            f"{error.msg}); it is written in an unusual way, move it by hand"
        ) from None
    return moved

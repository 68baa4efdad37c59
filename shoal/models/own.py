"""Users' own models: a class in a Python file or in an installed package.

my_models.py:TwoTower        a class of a file
package.module:TwoTower      a class of a module that Python finds, here or in this folder

The file is run when the class is looked up. For a run folder that needs trust first
(shoal.config.trust).
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
import typing
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from shoal.config.errors import did_you_mean
from shoal.models.base import Model

_given: dict[str, type[Model]] = {}  # classes that were handed over in Python, by name
_modules: dict[tuple[str, str], ModuleType] = {}  # files that were run, by path and hash
_running: list[str] = []  # files that are being run now


def is_own(name: str) -> bool:
    """Whether a name is of a class of the user's: FILE.py:Class or package.module:Class."""
    return ":" in name


def is_given(name: str) -> bool:
    """Whether the class was handed over in Python, so that nothing is run to have it."""
    return name in _given


def is_file(name: str) -> bool:
    """Whether the name is of a class in a file."""
    return name.rpartition(":")[0].endswith(".py")


def full_name(name: str) -> str:
    """The name that is the same in every folder: a file's path is absolute."""
    place, _, wanted = name.rpartition(":")
    return f"{os.path.abspath(place)}:{wanted}" if is_file(name) else name


def give(model: type[Model]) -> str:
    """The name of a class that a Python program hands over; `find_own` knows it from now on."""
    if not (isinstance(model, type) and issubclass(model, Model)):
        raise ValueError(
            f"model is {model!r}; give a name, or a class that is made of shoal.models.base.Model"
        )
    module = model.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    place = module if "." in module or file is None else os.path.abspath(file)
    name = f"{place}:{model.__qualname__}"
    _check(model, name)
    _given[name] = model
    return name


def check_launchable(name: str) -> None:
    """Refuse a class that other processes cannot find."""
    place, _, wanted = name.rpartition(":")
    if is_given(name) and ("<locals>" in wanted or place == "__main__"):
        raise ValueError(
            f"the processes of a launch must find {wanted.rpartition('.')[2]} by themselves, and "
            "it is in no file, or within a function; put it at the top of a .py file"
        )


def find_own(name: str) -> type[Model]:
    """The class of a name."""
    if name in _given:
        return _given[name]
    place, _, wanted = name.rpartition(":")
    module = _run(place, name) if is_file(name) else _import(place, name)
    found: object = module
    for part in wanted.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, Model)):
        own = [
            key
            for key, one in vars(module).items()
            if isinstance(one, type)
            and issubclass(one, Model)
            and one.__module__ == module.__name__
        ]
        raise ValueError(
            f"model {name}: {place} has no model {wanted!r} (a class that is made of "
            f"shoal.models.base.Model); it has {', '.join(own) or 'none'}"
            f"{did_you_mean(wanted, own)}"
        )
    _check(found, name)
    return found


def code_of(name: str) -> tuple[str, bytes] | None:
    """The name and the text of the file of a class; None where there is none."""
    place = name.rpartition(":")[0]
    file: str | None = place
    if not is_file(name):
        file = getattr(sys.modules.get(place), "__file__", None)
    if file is None or not file.endswith(".py") or not os.path.isfile(file):
        return None
    return os.path.basename(file), Path(file).read_bytes()


def refuse_while_running(what: str) -> None:
    """Refuse what a file of models does when it is run for its classes alone."""
    if _running:
        raise ValueError(
            f"{_running[-1]} calls {what} where it is run for its model; put that part of it under "
            'if __name__ == "__main__":'
        )


class _Loader(SourceFileLoader):
    """Runs the text of a file, never a compiled form of it."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _run(path: str, name: str) -> ModuleType:
    """The module that a file makes."""
    path = os.path.abspath(path)
    try:
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(
            f"model {name}: cannot read {path}: {error.strerror}; give FILE.py:Class or "
            "package.module:Class"
        ) from None
    if (path, digest) not in _modules:
        label = f"shoal_own_{Path(path).stem}_{digest[:12]}"
        spec = importlib.util.spec_from_loader(label, _Loader(label, path))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[label] = module  # where the types of its options are looked up
        with _loading(path, name):
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[label]
                raise
        _modules[path, digest] = module
    return _modules[path, digest]


def _import(place: str, name: str) -> ModuleType:
    """A module that Python finds, in the present folder too."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    with _loading(place, name):
        return importlib.import_module(place)


@contextmanager
def _loading(place: str, name: str) -> typing.Iterator[None]:
    """One message where the user's code fails, with the line."""
    _running.append(place)
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f"line {frame.lineno}: " for frame in frames if frame.filename == place]
        line = lines[-1] if lines else ""
        raise ValueError(
            f"model {name}: {place} cannot be loaded: {line}{type(error).__name__}: {error}"
        ) from error
    finally:
        _running.pop()


def _check(model: type[Model], name: str) -> None:
    """Refuse options that could not be read from a config."""
    options = model.Options
    if "Options" in vars(model) and "__dataclass_fields__" not in vars(options):
        raise ValueError(f"model {name}: its Options need @dataclass above them")
    try:
        typing.get_type_hints(options, include_extras=True)
    except NameError as error:
        raise ValueError(f"model {name}: a type of its Options is unknown: {error}") from None
    if any(field.name == "name" for field in dataclasses.fields(options)):
        raise ValueError(f"model {name}: an option cannot be called name, which is the model's")

"""Users' own classes, models and others: in a Python file or in an installed package.

my_models.py:TwoTower        a class of a file
package.module:TwoTower      a class of a module that Python finds, here or in this folder

The file is run when the class is looked up. For a run folder that needs trust first
(shoal.config.trust).
"""

import dataclasses
import os
import sys
import typing
from pathlib import Path
from typing import TypeVar

from shoal.config.errors import did_you_mean
from shoal.config.plugins import load_code
from shoal.models.base import Model

T = TypeVar("T")
_registered: dict[str, type] = {}  # classes that were handed over in Python, by name


def is_own(name: str) -> bool:
    """Whether a name is of a class of the user's: FILE.py:Class or package.module:Class."""
    return ":" in name


def is_registered(name: str) -> bool:
    """Whether the class was handed over in Python, so that nothing is run to have it."""
    return name in _registered


def is_file(name: str) -> bool:
    """Whether the name is of a class in a file."""
    return name.rpartition(":")[0].endswith(".py")


def full_name(name: str) -> str:
    """The name that is the same in every folder: a file's path is absolute."""
    place, _, wanted = name.rpartition(":")
    return f"{os.path.abspath(place)}:{wanted}" if is_file(name) else name


def register_model(model: type[Model]) -> str:
    """The name of a class that a Python program hands over; `find_own` knows it from now on."""
    if not (isinstance(model, type) and issubclass(model, Model)):
        raise ValueError(
            f"model is {model!r}; give a name, or a class that is made of shoal.models.base.Model"
        )
    name = register_class(model)
    _check(model, name)
    return name


def register_class(cls: type) -> str:
    """The name of any class that is handed over; `find_class` knows it from now on."""
    module = cls.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    place = module if "." in module or file is None else os.path.abspath(file)
    name = f"{place}:{cls.__qualname__}"
    _registered[name] = cls
    return name


def check_launchable(name: str) -> None:
    """Refuse a class that other processes cannot find."""
    place, _, wanted = name.rpartition(":")
    if is_registered(name) and ("<locals>" in wanted or place == "__main__"):
        raise ValueError(
            f"the processes of a launch must find {wanted.rpartition('.')[2]} by themselves, and "
            "it is in no file, or within a function; put it at the top of a .py file"
        )


def find_own(name: str) -> type[Model]:
    """The model of a name."""
    model = find_class(name, Model, "model")
    _check(model, name)
    return model


def find_class(name: str, base: type[T], what: str) -> type[T]:
    """The class of a name, which must be made of `base`; what: the word for it in errors."""
    if name in _registered:
        return _registered[name]
    place, _, wanted = name.rpartition(":")
    module = load_code(place, f"{what} {name}", "FILE.py:Class or package.module:Class")
    definition: object = module
    for part in wanted.split("."):
        definition = getattr(definition, part, None)
    if not (isinstance(definition, type) and issubclass(definition, base)):
        own = [
            key
            for key, member in vars(module).items()
            if isinstance(member, type)
            and issubclass(member, base)
            and member.__module__ == module.__name__
        ]
        raise ValueError(
            f"{what} {name}: {place} has no {what} {wanted!r} (a class that is made of "
            f"{base.__module__}.{base.__name__}); it has {', '.join(own) or 'none'}"
            f"{did_you_mean(wanted, own)}"
        )
    return definition


def code_of(name: str) -> tuple[str, bytes] | None:
    """The name and the text of the file of a class; None where there is none."""
    place = name.rpartition(":")[0]
    file: str | None = place
    if not is_file(name):
        file = getattr(sys.modules.get(place), "__file__", None)
    if file is None or not file.endswith(".py") or not os.path.isfile(file):
        return None
    return os.path.basename(file), Path(file).read_bytes()


def _check(model: type[Model], name: str) -> None:
    """Refuse options that could not be read from a config."""
    options = model.Options
    try:
        typing.get_type_hints(options, include_extras=True)
    except NameError as error:
        raise ValueError(f"model {name}: a type of its Options is unknown: {error}") from None
    if any(field.name == "name" for field in dataclasses.fields(options)):
        raise ValueError(f"model {name}: an option cannot be called name, which is the model's")

"""Python files that a config names: plugins, which register things, and files with custom models.

run.plugins: [ours.py]          a file, or a module that Python finds, here or in this folder

A plugin is run before the rest of the config is read, in every process of a run, so that what it
registers (a dialect, a metric, a source, ...) is there when a key names it. Plugins and custom
models that a run folder names need trust (shoal.config.trust).
"""

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from shoal.config.sources import Layer, Origin

KEY = "run.plugins"
_modules: dict[tuple[str, str], ModuleType] = {}  # files that were run, by path and hash
_running: list[str] = []  # files that are being run now


def named(layers: Sequence[Layer]) -> tuple[list[str], Origin] | None:
    """The plugins that the strongest of all sources names, and where; None: no source does."""
    named_plugins = None
    for layer in layers:
        section = layer.values.get("run")
        inner = section.get("plugins") if isinstance(section, dict) else None
        for value, path in ((inner, ("run", "plugins")), (layer.values.get(KEY), (KEY,))):
            if isinstance(value, str | list):
                names = [value] if isinstance(value, str) else [str(one) for one in value]
                named_plugins = names, layer.origin(path)
    return named_plugins


def load_code(place: str, setting: str, expected: str) -> ModuleType:
    """The module of a file or of a dotted name; it is run unless it was, in this very form.

    what, expected: the key with its value, and what it may be, for errors.
    """
    return _run(place, setting, expected) if place.endswith(".py") else _import(place, setting)


def refuse_while_running(call: str) -> None:
    """Refuse what a file does when it is run for what it defines alone."""
    if _running:
        raise ValueError(
            f"{_running[-1]} calls {call} where it is run for what it defines; put that part of "
            'it under if __name__ == "__main__":'
        )


class _Loader(SourceFileLoader):
    """Runs the text of a file, never a compiled form of it that lies somewhere."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _run(path: str, setting: str, expected: str) -> ModuleType:
    path = os.path.abspath(path)
    try:
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(
            f"{setting}: cannot read {path}: {error.strerror}; give {expected}"
        ) from None
    if (path, digest) not in _modules:
        label = f"shoal_own_{Path(path).stem}_{digest[:12]}"
        spec = importlib.util.spec_from_loader(label, _Loader(label, path))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[label] = module  # where the types of its options are looked up
        with _reporting(path, setting):
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[label]
                raise
        _modules[path, digest] = module
    return _modules[path, digest]


def _import(place: str, setting: str) -> ModuleType:
    """A module that Python finds, in the present folder too."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    with _reporting(place, setting):
        return importlib.import_module(place)


@contextmanager
def _reporting(place: str, setting: str) -> Iterator[None]:
    """One message where the user's code fails, with the line."""
    _running.append(place)
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f"line {frame.lineno}: " for frame in frames if frame.filename == place]
        line = lines[-1] if lines else ""
        raise ValueError(
            f"{setting}: {place} cannot be loaded: {line}{type(error).__name__}: {error}"
        ) from error
    finally:
        _running.pop()


def full_names(names: Any) -> list[str]:
    """Plugins by names that are the same in every folder: a file's path is absolute."""
    return [os.path.abspath(one) if one.endswith(".py") else one for one in names]

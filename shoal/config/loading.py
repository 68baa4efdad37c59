"""From files, a Python mapping and command-line words to one checked config.

Precedence: command line > Python > files (later ones win) > defaults of the model > defaults. All
problems of a config are reported together, each with its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.config.checks import canonical, problems, without_effect
from shoal.config.dialects import paddlerec, recbole, torchrec
from shoal.config.errors import ConfigError, nearest
from shoal.config.keys import LEAVES, MISSING, OPTIONAL, SECTIONS, Leaf, given, options_of
from shoal.config.output import dump, json_schema
from shoal.config.output import show as _show
from shoal.config.schema import Config
from shoal.config.sources import BARE, Layer, Origin, from_file, from_overrides, from_python
from shoal.config.spelling import others, unknown

# Model name as written -> (its canonical name, dataclass of its options). ValueError if unknown.
ModelLookup = Callable[[str], tuple[str, type]]

# What the model is for, by its canonical name: general, sequential or clicks.
KindLookup = Callable[[str], str]

DEFAULT = Origin("default")
CLICK_DEFAULTS: dict[str, Any] = {
    "data.name": "clicks",
    "eval.mode": "labeled",
    "eval.metrics": ["AUC", "LogLoss"],
    "eval.valid_metric": "AUC",
    "train.negatives": None,
}

__all__ = [
    "ConfigError",
    "ModelLookup",
    "Origin",
    "Resolved",
    "dump",
    "json_schema",
    "load",
    "show",
]


@dataclass
class Resolved:
    """A config, where each of its values came from, and lines to log once."""

    config: Config
    origins: dict[str, str]  # dotted key -> origin; options of the model as model.KEY
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Value:
    """A value with its place. An implied one gives way to a spelled-out one of its source."""

    value: Any
    origin: Origin
    implied: bool = False
    per_process: bool = False


def load(
    files: Sequence[str | Path] | str | Path,
    overrides: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
    *,
    models: ModelLookup,
    kinds: KindLookup = lambda name: "general",
) -> Resolved:
    """Reads, translates, merges and checks a config; ConfigError tells all that is wrong."""
    errors: list[str] = []
    layers: list[Layer] = []
    paths = [files] if isinstance(files, str | Path) else files
    for read, source in [
        *[(from_file, path) for path in paths],
        (from_python, values or {}),
        (from_overrides, overrides),
    ]:
        try:
            layers.append(read(source))  # type: ignore[operator]
        except ConfigError as error:
            errors += error.errors
    if errors:
        raise ConfigError(errors)
    paddle = paddlerec.gather(layers, paths)
    name, options_type = _choose_model(layers, models, paddle, errors)
    options = options_of(options_type) if options_type else None

    reader = _Reader(name, options, errors, paddle)
    state: dict[str, Value] = {
        key: Value(leaf.default, DEFAULT) for key, leaf in {**LEAVES, **(options or {})}.items()
    }
    weakest = [from_python(getattr(options_type, "DEFAULTS", {}), f"default of {name}")]
    clicks = options_type is not None and kinds(name) == "clicks"
    if clicks:
        weakest.insert(0, from_python(CLICK_DEFAULTS, "default of click models"))
    if any(torchrec.is_spoken(layer.values, name, options or {}) for layer in layers):
        values = torchrec.defaults([layer.values for layer in layers])
        weakest.append(from_python(values, "default of TorchRec's example"))
        reader.notes.append(torchrec.NOTE)
    if paddle:
        weakest.append(from_python(paddle.defaults(), "default of PaddleRec"))
        reader.notes.append(paddlerec.NOTE)
    for layer in [*weakest, *layers]:
        _merge(state, reader.read(layer))
    reader.notes += _multiply(state)
    state["model.name"] = Value(name, state["model.name"].origin)
    for key in options or {}:
        if state[key].value is MISSING:
            reader.failed.add(key)
            errors.append(f"{key} must be given: {name} has no default for it")

    plain = {key: entry.value for key, entry in state.items()}
    origins = {key: str(entry.origin) for key, entry in state.items()}
    canonical(plain)
    config = Config.model_validate(_nested(plain))
    if options_type and not any(key.startswith("model.") for key in reader.failed):
        errors += _check_options(config, options_type)
    errors += problems(config, origins, reader.failed, clicks)
    if errors:
        raise ConfigError(errors)
    assert options_type is not None, "a model that is not found is an error above"
    return Resolved(config, origins, reader.notes + without_effect(config) + _notes(config))


def _choose_model(
    layers: list[Layer],
    models: ModelLookup,
    paddle: paddlerec.Spoken | None,
    errors: list[str],
) -> tuple[str, type | None]:
    """The model's canonical name and options; without options if there is no such model."""
    written: tuple[Any, Origin] = (LEAVES["model.name"].default, DEFAULT)
    for layer in layers:
        written = layer.model_name() or written
        if "dialect" in layer.values and written[1] is DEFAULT:
            written = (torchrec.MODEL, layer.origin(("dialect",)))
    name, origin = written
    if not isinstance(name, str):
        return str(name), None  # its type is reported with all others
    try:
        if paddle:  # a model by the name of its folder there
            name = (
                paddle.model_of_folder() if origin is DEFAULT else paddlerec.FOLDERS.get(name, name)
            )
        return models(name)
    except ValueError as error:
        errors.append(str(error) if origin is DEFAULT else f"{origin}: {error}")
        return name, None


def show(resolved: Resolved) -> str:
    """YAML of the config with the origin of every value; loads to the same values."""
    return _show(resolved.config, resolved.origins)


class _Reader:
    """Turns layers into values by dotted key, and collects what is wrong with them."""

    def __init__(
        self,
        model: str,
        options: dict[str, Leaf] | None,
        errors: list[str],
        paddle: paddlerec.Spoken | None,
    ):
        self.model, self.options, self.paddle = model, options or {}, paddle
        if paddle:
            paddle.model, paddle.options = model, options
        self.options_known = options is not None
        self.others = others(model, paddle)
        self.errors = errors
        self.notes: list[str] = []
        self.failed: set[str] = set()  # keys whose given value could not be used

    def read(self, layer: Layer) -> dict[str, Value]:
        """All values of one source. Saying the same thing twice in it is an error."""
        self.layer, self.found = layer, {}  # type: ignore[var-annotated]
        spoken = torchrec.is_spoken(layer.values, self.model, self.options)
        self.rows = {**recbole.ROWS, **(torchrec.ROWS if spoken else torchrec.UNSPOKEN)}
        for key, value in layer.values.items():
            try:
                self._top(key, value)
            except ValueError as error:
                self._error((key,), f"{error}")
        for section in OPTIONAL & self.found.keys():
            for key in self.found:
                if key.startswith(section + ".") and self.found[section].value is None:
                    self._twice(key, self.found[section].origin, self.found[key].origin)
        return self.found

    def _top(self, key: str, value: Any) -> None:
        """Decides whose key it is: Shoal's, another tool's, or a flat option of the model."""
        row = self.rows.get(key)
        if paddlerec.is_key(key):
            self._paddle(key, value)
        elif key in SECTIONS or "." in key:
            self._native(key, value, (key,))
        elif row and row.targets:
            self._translate(row, value)
        elif f"model.{key}" in self.options:
            self._set(f"model.{key}", value, self.layer.origin((key,)), key)
        elif row:
            self._translate(row, value)
        elif self.options_known:
            text = unknown(key, self.options, self.others)
            if isinstance(value, dict) and (found := nearest(key, paddlerec.SECTIONS)):
                text = f"unknown key {key}; did you mean {found}, a section of PaddleRec's?"
            elif "did you mean" not in text:
                names = ", ".join(name[6:] for name in self.options) or "none"
                text = (
                    f"unknown key {key}: neither a key of Shoal or RecBole nor an option of "
                    f"{self.model} (its options: {names})"
                )
            self._error((key,), text)
        # Else it may be an option of the model that could not be found: that error stands already.

    def _native(self, key: str, value: Any, path: tuple[str, ...]) -> None:
        """A key of the schema: sections are walked down to their leaves."""
        if key in SECTIONS:
            if isinstance(value, dict) and value:
                for name, inner in value.items():
                    self._native(f"{key}.{name}", inner, (*path, name))
            elif key in OPTIONAL and value in (None, {}):
                self._put(key, Value(value, self.layer.origin(path)))
            elif isinstance(value, str) and f"{key}.name" in LEAVES:
                self._native(f"{key}.name", value, path)  # `model: BPR`, `strategy: ddp`
            elif value not in (None, {}):
                shown = "no value" if value is BARE else given(value)
                keys = ", ".join(SECTIONS[key].model_fields).replace("options", "its options")
                self._error(path, f"{key}: given {shown}; it is a section of {keys}")
        elif key in LEAVES or key in self.options:
            self._set(key, value, self.layer.origin(path), path[0])
        elif self.options_known or not key.startswith("model."):
            self._error(path, unknown(key, self.options, self.others))

    def _paddle(self, key: str, value: Any) -> None:
        """A section of PaddleRec's, or one of its keys; a stronger source's value replaces it."""
        assert self.paddle is not None, "a source has such a key, so the dialect is spoken"
        for name, _, path in paddlerec.leaves(key, value):
            try:
                row = self.paddle.row(name)
                if self.paddle.sources[name] is self.layer:
                    self._translate(row, self.paddle.values[name], path, "PaddleRec")
            except ValueError as error:
                self._error(path, f"{error}")

    def _translate(
        self, row: recbole.Row, value: Any, path: tuple[str, ...] = (), dialect: str = ""
    ) -> None:
        """A key of another tool; `path` leads to it where it stands in a section."""
        path = path or (row.key,)
        place = self.layer.origin(path)
        dialect = dialect or ("RecBole" if recbole.ROWS.get(row.key) is row else "TorchRec")
        origin = Origin(place.source, place.line, row.key, dialect)
        if value is BARE:
            if not (row.targets and LEAVES.get(row.targets[0], Leaf(str)).type is bool):
                raise ValueError(f"has no value; write --{row.key}=VALUE")
            value = True
        try:
            translation = recbole.translate(row, value)
        except ValueError as error:
            self.failed |= set(row.targets)
            raise ValueError(f"{dialect} key {row.key}: {error}") from None
        self.notes += [f"{place}: {note}" for note in translation.notes]
        for key, said in translation.values.items():
            if key in OPTIONAL:
                self._put(key, Value(said, origin))
            else:
                self._set(key, said, origin, path[0])
        for key, said in translation.implied.items():
            self._set(key, said, origin, path[0], implied=True)
        for key in translation.per_process & self.found.keys():
            self.found[key] = replace(self.found[key], per_process=True)

    def _set(self, key: str, value: Any, origin: Origin, top: str, implied: bool = False) -> None:
        """Checks a leaf's value against its type and keeps it."""
        leaf = LEAVES.get(key) or self.options[key]
        if value is BARE:
            if leaf.type is not bool:
                self.errors.append(f"{origin}: {key} has no value; write --{top}=VALUE")
                return
            value = True
        # On a command line all is text: what YAML takes for a number may be meant as a name.
        text = self.layer.texts.get(top)
        if leaf.is_text and text is not None and not isinstance(value, str):
            value = None if value is None and leaf.is_optional else text
        try:
            value = leaf.check(value, key)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{key}: given {given(value)}; allowed: a finite number")
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise ValueError(f"{key}: given {value:.3g}; allowed: a number of 64 bits")
        except ValueError as error:
            self.failed.add(key)
            self.errors.append(f"{origin}: {error}")
            return
        self._put(key, Value(value, origin, implied))

    def _put(self, key: str, new: Value) -> None:
        old = self.found.get(key)
        if old is None or old.implied:
            self.found[key] = new
        elif not new.implied:
            self._twice(key, old.origin, new.origin)

    def _twice(self, key: str, first: Origin, second: Origin) -> None:
        self.errors.append(f"{second}: {key} is set twice, first at {first}; keep one of them")

    def _error(self, path: tuple[str, ...], text: str) -> None:
        self.errors.append(f"{self.layer.origin(path)}: {text}")


def _merge(state: dict[str, Value], found: dict[str, Value]) -> None:
    """Lays the values of one source over those below it."""
    for key, new in found.items():
        section = key if key in OPTIONAL else key.rpartition(".")[0]
        if key in OPTIONAL and new.value is None:
            for child in [child for child in state if child.startswith(key + ".")]:
                del state[child]
            state[key] = new
            continue
        if section in OPTIONAL and section in state:  # it was null, and comes back to life
            del state[section]
            for child, leaf in LEAVES.items():
                if child.startswith(section + "."):
                    state[child] = Value(leaf.default, DEFAULT)
        if key not in OPTIONAL:
            state[key] = new


def _multiply(state: dict[str, Value]) -> list[str]:
    """Makes sizes per process global, in place; a line for the log about each."""
    keys = [key for key, entry in state.items() if entry.per_process]
    if not keys:
        return []
    from shoal.world.world import launched_size  # brings torch, which most configs can do without

    launch = [state["launch.nproc"].value, state["launch.world_size"].value]
    processes = launched_size() or max(launch)
    apart = (state["strategy.name"].value, state["strategy.ps.mode"].value) == ("ps", "async")
    if apart:  # every worker makes updates of its own, so a size per worker is what we mean too
        processes = 1
    notes = []
    for key in keys:
        each, origin = state[key].value, state[key].origin
        state[key] = Value(each * processes, origin)
        notes.append(
            f"{origin}: a size per process: {each} × {processes} process"
            f"{'' if processes == 1 else 'es'} = {key}: {each * processes}"
        )
    return notes


def _nested(plain: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys -> nested mappings; the options of the model -> model.options."""
    nested: dict[str, Any] = {}
    for key, value in plain.items():
        *sections, last = key.split(".")
        if sections == ["model"] and last != "name":
            sections.append("options")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return nested


def _check_options(config: Config, options_type: type) -> list[str]:
    """Builds the model's options once, so that checks of the model's own speak up here."""
    try:
        options_type(**config.model.options)
    except ValueError as error:
        return [f"options of {config.model.name}: {error}"]
    return []


def _notes(config: Config) -> list[str]:
    ranks = max(config.launch.world_size, config.launch.nproc)
    if ranks == 1:
        return []
    if config.updates_apart:
        return [f"every worker makes updates of its own, of {config.train.batch_size} samples each"]
    return [
        f"batch sizes are global: each batch of {config.train.batch_size} samples is split over "
        f"{ranks} processes"
    ]

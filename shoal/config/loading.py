"""From files, a Python mapping and command-line words to one checked config.

Precedence: what the command itself decides > command line > Python > files (later ones win) >
defaults of the model > defaults. All problems of a config are reported together, each with its
place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from shoal.config import plugins
from shoal.config.checks import canonical, problems
from shoal.config.dialect import Dialect, Named, listen
from shoal.config.errors import ConfigError
from shoal.config.key_applicability import refusals
from shoal.config.keys import LEAVES, MISSING, OPTIONAL, options_of
from shoal.config.reading import Reader, Value, merged
from shoal.config.resolved import Resolved
from shoal.config.schema import Config
from shoal.config.schema.launch import EVERY_GPU
from shoal.config.sources import DEFAULT, Layer, Origin, from_file, from_overrides, from_python

# Model name as written -> (its canonical name, dataclass of its options). ValueError if unknown.
ModelLookup = Callable[[str], tuple[str, type]]

# What the model is for, by its canonical name: general, sequential or clicks.
KindLookup = Callable[[str], str]

# Given model.name or run.plugins, the name as written and where; may refuse to run its code.
CodeCheck = Callable[[str, str, Origin], None]

CLICK_DEFAULTS: dict[str, Any] = {
    "data.split.group_by": "none",
    "eval.mode": "labeled",
    "eval.metrics": ["AUC", "LogLoss"],
    "eval.valid_metric": "AUC",
    "train.negatives": None,
}


@dataclass(frozen=True)
class Command:
    """What a command decides itself, above all sources."""

    name: str  # the origin of these values
    values: Mapping[str, Any] = field(default_factory=dict)
    # key -> (the value it must have, why): another one than the default is refused
    requires: Mapping[str, tuple[Any, str]] = field(default_factory=dict)


def load(
    files: Sequence[str | Path] | str | Path,
    overrides: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
    *,
    models: ModelLookup,
    kinds: KindLookup = lambda name: "general",
    source: str = "python",
    command: Command | None = None,
    allow_code: CodeCheck = lambda key, name, origin: None,
) -> Resolved:
    """Reads, translates, merges and checks a config; ConfigError tells all that is wrong.

    `source` is the origin of `values`.
    """
    layers = _read_sources([files] if isinstance(files, str | Path) else files, overrides)
    layers.insert(-1, from_python(values or {}, source))
    errors: list[str] = []
    plugged = _run_plugins(layers, allow_code)
    dialects = listen(layers)
    name, options_type = _choose_model(layers, models, allow_code, dialects, errors)
    options = options_of(options_type) if options_type else None
    for dialect in dialects:
        dialect.meet(name, options)

    reader = Reader(name, options, dialects, errors)
    state: dict[str, Value] = {
        key: Value(leaf.default, DEFAULT) for key, leaf in {**LEAVES, **(options or {})}.items()
    }
    weakest = [from_python(getattr(options_type, "DEFAULTS", {}), f"default of {name}")]
    clicks = options_type is not None and kinds(name) == "clicks"
    if clicks:
        weakest.insert(0, from_python(CLICK_DEFAULTS, "default of click models"))
    for dialect in dialects:
        if defaults := dialect.defaults():
            weakest.append(from_python(defaults, f"default of {dialect.tool}"))
            reader.notes.append(dialect.note)
    for layer in [*weakest, *layers]:
        _merge(state, reader.read(layer))
    errors += _check_merged(state, reader)
    if command is not None:
        errors += _decide(state, command)
    reader.notes += [*_count_processes(state), *_multiply(state)]
    state["model.name"] = Value(name, state["model.name"].origin)
    state[plugins.KEY] = Value(plugged, state[plugins.KEY].origin)
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
    errors += [
        f"{origins[key]}: {key}: {text}"
        for key, text in refusals(config)
        if not reader.failed & {key, "strategy.name"}
    ]
    if errors:
        raise ConfigError(errors)
    assert options_type is not None, "a model that is not found is an error above"
    return Resolved(config, origins, reader.notes)


def _read_sources(files: Sequence[str | Path], overrides: Sequence[str]) -> list[Layer]:
    """Files, weakest first, and the command line; ConfigError with all that cannot be read."""
    layers: list[Layer] = []
    errors: list[str] = []
    reads = [*(partial(from_file, path) for path in files), partial(from_overrides, overrides)]
    for read in reads:
        try:
            layers.append(read())
        except ConfigError as error:
            errors += error.errors
    if errors:
        raise ConfigError(errors)
    return layers


def _run_plugins(layers: list[Layer], allow: CodeCheck) -> list[str]:
    """Runs the plugins that are named, before any key is read; their full names."""
    found = plugins.named(layers)
    if found is None:
        return []
    names, origin = plugins.full_names(found[0]), found[1]
    for name in names:
        allow(plugins.KEY, name, origin)
        try:
            plugins.load_code(name, f"{plugins.KEY} {name}", "FILE.py or package.module")
        except ValueError as error:
            raise ConfigError(f"{origin}: {error}") from error
    return names


def _choose_model(
    layers: list[Layer],
    models: ModelLookup,
    allow: CodeCheck,
    dialects: Sequence[Dialect],
    errors: list[str],
) -> tuple[str, type | None]:
    """The model's canonical name and options; without options if there is no such model."""
    named: Named | None = None
    for layer in layers:
        named = layer.model_name() or named
    origin = named[1] if named else DEFAULT
    try:
        for dialect in dialects:
            named = dialect.name_model(named)
        name, origin = named or (LEAVES["model.name"].default, DEFAULT)
        if not isinstance(name, str):
            return str(name), None  # its type is reported with all others
        allow("model.name", name, origin)
        return models(name)
    except ConfigError:
        raise
    except ValueError as error:
        errors.append(str(error) if origin is DEFAULT else f"{origin}: {error}")
        return (str(named[0]) if named else LEAVES["model.name"].default), None


def _decide(state: dict[str, Value], command: Command) -> list[str]:
    """Lays what the command decides over everything, in place; what contradicts it."""
    errors, origin = [], Origin(command.name)
    for key, (value, why) in command.requires.items():
        given = state[key]
        if given.value != value:
            if given.value != LEAVES[key].default:
                errors.append(f"{key} is {given.value} ({given.origin}), and {command.name} {why}")
            state[key] = Value(value, origin)
    for key, value in command.values.items():
        given = state[key]
        if given.value != value and given.origin.source.startswith("command line"):
            errors.append(f"{given.origin}: {key} is decided by {command.name}; leave it out")
        state[key] = Value(value, origin)
    return errors


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
            below = state[key].value
            state[key] = replace(new, value=merged(below, new.value)) if new.entries else new


def _check_merged(state: dict[str, Value], reader: Reader) -> list[str]:
    """Mappings whose entries come from several sources, as a whole; what is wrong with them."""
    errors = []
    for key, entry in state.items():
        if not entry.entries:
            continue
        leaf = LEAVES.get(key) or reader.options[key]
        try:
            leaf.check(entry.value, key)
        except ValueError as error:
            errors.append(f"{entry.origin}: {error}")
            reader.failed.add(key)
            state[key] = Value(leaf.default, DEFAULT)
    return errors


def _count_processes(state: dict[str, Value]) -> list[str]:
    """Puts the number of visible GPUs in the place of launch.nproc -1; a line for the log."""
    entry = state["launch.nproc"]
    if entry.value != EVERY_GPU:
        return []
    from shoal.world.gpus import count_gpus  # brings torch, which most configs can do without
    from shoal.world.variables import launched_size

    gpus = count_gpus(state["run.gpu_ids"].value, state["run.device"].value)
    state["launch.nproc"] = Value(launched_size() or max(1, gpus), entry.origin)
    if launched_size():  # they were counted, and logged, when we were started
        return []
    found = f"{gpus} processes, a GPU each" if gpus > 1 else f"1 process, since there is {gpus} GPU"
    return [
        f"{entry.origin}: {found}: all that are visible; CUDA_VISIBLE_DEVICES, run.gpu_ids or "
        "--nproc names fewer"
    ]


def _multiply(state: dict[str, Value]) -> list[str]:
    """Makes sizes per process global, in place; a line for the log about each."""
    keys = [key for key, entry in state.items() if entry.per_process]
    if not keys:
        return []
    from shoal.world.variables import (
        launched_size,  # brings torch, which most configs can do without
    )

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

"""From files, a Python mapping and command-line words to one checked config.

Precedence: what the command itself decides > command line > Python > files (later ones win) >
defaults of the model > defaults. All problems of a config are reported together, each with its
place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shoal.config import plugins
from shoal.config.checks import canonical, problems
from shoal.config.dialect import Dialect, Named, listen
from shoal.config.errors import ConfigError
from shoal.config.key_applicability import notes as unread_notes
from shoal.config.key_applicability import refusals
from shoal.config.keys import KEYS, MISSING, Key, options_of
from shoal.config.launch_section import EVERY_GPU
from shoal.config.reading import ConfigReader, Value, merged
from shoal.config.schema import Config
from shoal.config.sources import DEFAULT, Layer, Origin, from_file, from_overrides, from_python

# Model name as written -> (its canonical name, dataclass of its options). ValueError if unknown.
ModelLookup = Callable[[str], tuple[str, type]]

# What the model is for, by its canonical name: general, sequential or clicks.
KindLookup = Callable[[str], str]

# A custom metric, FILE.py:Class -> its name in full; the metric can be chosen from now on.
MetricLookup = Callable[[str], str]

# Given model.name, eval.metrics or run.plugins, the name as written and where; may refuse to run
# its code.
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


@dataclass(frozen=True)
class Resolved:
    """A config, where each of its values came from, and lines to log once.

    Nothing changes it; copies are derived.
    """

    config: Config
    origins: Mapping[str, str]  # dotted key -> origin; options of the model as model.KEY
    read_notes: list[str] = field(default_factory=list)  # how keys of other tools were read

    @property
    def notes(self) -> list[str]:
        """All lines to log: those of reading, and those that the values themselves call for."""
        return [*self.read_notes, *unread_notes(self.config), *_batch_notes(self.config)]

    def with_written_keys(self, text: str) -> str:
        """An error's text; of each key in it that another tool's key set: that key and its place.

        `run.device is cuda, and there is no GPU` ends with
        `(run.device: dnn.yaml:3, PaddleRec key runner.use_gpu)`.
        """
        written = []
        for key, origin in self.origins.items():
            place = re.fullmatch(r"(.*) \((.+ key .+)\)", origin)
            if place and origin not in text and re.search(rf"(?<![\w.]){re.escape(key)}\b", text):
                written.append(f"{key}: {place[1]}, {place[2]}")
        return f"{text} ({'; '.join(written)})" if written else text

    def with_values(self, values: Mapping[str, Any], origin: str) -> Resolved:
        """A copy with other values under some dotted keys, checked like all, and their origin."""
        plain = self.config.model_dump()
        for key, value in values.items():
            *sections, last = key.split(".")
            inner = plain
            for section in sections:
                inner = inner[section]
            inner[last] = KEYS[key].check(value, key)
        origins = {**self.origins, **dict.fromkeys(values, origin)}
        config = _validated(plain, origins)
        if errors := problems(config, origins):
            raise ConfigError(errors)
        return replace(self, config=config, origins=origins)


def _batch_notes(config: Config) -> list[str]:
    """What a batch is where there are several processes."""
    ranks = max(config.launch.world_size, config.launch.nproc)
    if ranks <= 1:
        return []
    if config.per_worker_batches:
        whose = (
            ""
            if not isinstance(config.train.batch_size, int)
            else f", of {config.train.batch_size} samples each"
        )
        return [f"every worker makes its own updates{whose}"]
    section = config.train
    is_open = not isinstance(section.batch_size, int)
    size = "" if is_open else f" of {section.batch_size} samples"
    if section.batch_tokens is not None:
        size = f" of {section.batch_tokens} items at most"
    return [f"batch sizes are global: each batch{size} is split over {ranks} processes"]


def load(
    files: Sequence[str | Path] | str | Path,
    overrides: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
    *,
    models: ModelLookup,
    kinds: KindLookup = lambda name: "general",
    metrics: MetricLookup = lambda name: name,
    source: str = "python",
    command: Command | None = None,
    allow_code: CodeCheck = lambda key, name, origin: None,
) -> Resolved:
    """Reads, translates, merges and checks a config; ConfigError lists all that is wrong.

    `source` is the origin of `values`.
    """
    # Read all sources, and choose the model, whose options are keys, too.
    layers = _read_sources([files] if isinstance(files, str | Path) else files, overrides)
    layers.insert(-1, from_python(values or {}, source))
    errors: list[str] = []
    plugged = _run_plugins(layers, allow_code)
    dialects = listen(layers)
    name, options_type = _choose_model(layers, models, allow_code, dialects, errors)
    options = options_of(options_type) if options_type else None
    kind = kinds(name) if options_type is not None else "general"
    for dialect in dialects:
        dialect.kind = kind
        dialect.meet(name, options)

    # Merge the values of all sources, the weakest first.
    reader = ConfigReader(name, options, dialects, errors)
    state = {key: Value(one.default, DEFAULT) for key, one in reader.keys.items()}
    weakest = [from_python(getattr(options_type, "DEFAULTS", {}), f"default of {name}")]
    clicks = kind == "clicks"
    if clicks:
        weakest.insert(0, from_python(CLICK_DEFAULTS, "default of click models"))
    for dialect in dialects:
        if defaults := dialect.defaults():
            weakest.append(from_python(defaults, f"default of {dialect.tool}"))
            reader.notes.append(dialect.note)
    for layer in [*weakest, *layers]:
        for key, new in reader.read(layer).items():
            value = merged(state[key].value, new.value) if new.entries else new.value
            state[key] = replace(new, value=value)
    # Check what no source shows alone, and apply what the command itself decides.
    errors += _check_merged(state, reader.keys) + _imply_split(state)
    if command is not None:
        errors += _decide(state, command)
    state[plugins.KEY] = Value(plugged, state[plugins.KEY].origin)
    if not errors:
        errors += _load_metrics(state, metrics, allow_code)
    for key in options or {}:
        if state[key].value is MISSING:
            errors.append(f"{key} must be given: {name} has no default for it")
    if errors:
        raise ConfigError(errors)
    assert options_type is not None, "a model that is not found is an error above"

    # Build the config, and check keys that depend on each other.
    reader.notes += [*_count_processes(state), *_multiply(state)]
    state["model.name"] = Value(name, state["model.name"].origin)
    plain = {key: entry.value for key, entry in state.items()}
    origins = {key: str(entry.origin) for key, entry in state.items()}
    canonical(plain)
    config = _validated(_nested(plain), origins)
    errors += _check_options(config, options_type)
    errors += problems(config, origins, clicks)
    errors += [f"{origins[key]}: {key}: {text}" for key, text in refusals(config)]
    if errors:
        raise ConfigError(errors)
    return Resolved(config, origins, reader.notes)


def _validated(plain: dict[str, Any], origins: Mapping[str, str]) -> Config:
    """The config; what its sections check themselves is reported as `key: what is wrong`."""
    try:
        return Config.model_validate(plain)
    except ValidationError as error:
        texts = [str(one.get("ctx", {}).get("error", one["msg"])) for one in error.errors()]
        places = [origins.get(text.partition(":")[0], "default") for text in texts]
        raise ConfigError([f"{p}: {text}" for p, text in zip(places, texts)]) from None


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
    named = plugins.named(layers)
    if named is None:
        return []
    names, origin = plugins.full_names(named[0]), named[1]
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
        name, origin = named or (KEYS["model.name"].default, DEFAULT)
        if not isinstance(name, str):
            return str(name), None  # its type is reported with all others
        allow("model.name", name, origin)
        return models(name)
    except ConfigError:
        raise
    except ValueError as error:
        errors.append(str(error) if origin is DEFAULT else f"{origin}: {error}")
        return (str(named[0]) if named else KEYS["model.name"].default), None


def _load_metrics(state: dict[str, Value], metrics: MetricLookup, allow: CodeCheck) -> list[str]:
    """Runs the files of custom metrics; their full names are in the state. What is wrong there."""
    chosen, errors = state["eval.metrics"], []
    names = []
    for name in chosen.value:
        if ":" in name:
            allow("eval.metrics", name, chosen.origin)
            try:
                name = metrics(name)
            except ValueError as error:
                errors.append(f"{chosen.origin}: eval.metrics: {error}")
        names.append(name)
    state["eval.metrics"] = replace(chosen, value=names)
    return errors


def _decide(state: dict[str, Value], command: Command) -> list[str]:
    """Sets what the command decides, in place; returns what contradicts it."""
    errors, origin = [], Origin(command.name)
    for key, (value, why) in command.requires.items():
        entry = state[key]
        if entry.value != value:
            if entry.value != KEYS[key].default:
                errors.append(f"{key} is {entry.value} ({entry.origin}), and {command.name} {why}")
            state[key] = Value(value, origin)
    for key, value in command.values.items():
        entry = state[key]
        if entry.value != value and entry.origin.source.startswith("command line"):
            errors.append(f"{entry.origin}: {key} is decided by {command.name}; leave it out")
        state[key] = Value(value, origin)
    return errors


def _check_merged(state: dict[str, Value], keys: Mapping[str, Key]) -> list[str]:
    """What is wrong with mappings whose entries come from several sources, each as a whole."""
    errors = []
    for key, entry in state.items():
        if entry.entries:
            try:
                keys[key].check(entry.value, key)
            except ValueError as error:
                errors.append(f"{entry.origin}: {error}")
    return errors


def _imply_split(state: dict[str, Value]) -> list[str]:
    """Chooses data.split.by where only its options are given; what is wrong with them."""
    by = state["data.split.by"]
    if by.value != "auto" or by.origin is not DEFAULT:
        return []
    options = {"data.split.ratio": "ratio", "data.split.leave": "leave_one_out"}
    written = [key for key in options if not state[key].origin.source.startswith("default")]
    if len(written) == 2:
        return [
            f"{state[written[1]].origin}: data.split.ratio and data.split.leave are both given; "
            "set data.split.by to ratio or to leave_one_out"
        ]
    if written:
        implied = Origin(f"{DEFAULT.source} where {written[0]} is given")
        state["data.split.by"] = Value(options[written[0]], implied)
    return []


def _count_processes(state: dict[str, Value]) -> list[str]:
    """Puts the number of visible GPUs in the place of launch.nproc -1; a line for the log."""
    entry = state["launch.nproc"]
    if entry.value != EVERY_GPU:
        return []
    from shoal.distributed.gpus import count_gpus  # imports torch, which most configs do without
    from shoal.distributed.rank_variables import launched_size

    gpus = count_gpus(state["run.gpu_ids"].value, state["run.device"].value)
    state["launch.nproc"] = Value(launched_size() or max(1, gpus), entry.origin)
    if launched_size():  # they were counted, and logged, when we were started
        return []
    count_text = f"{gpus} processes, a GPU each" if gpus > 1 else "1 process, since there is 1 GPU"
    if not gpus:
        return [
            f"{entry.origin}: 1 process, since no GPU can be used here (CUDA_VISIBLE_DEVICES, "
            "run.gpu_ids and run.device say which); --nproc names more"
        ]
    return [
        f"{entry.origin}: {count_text}: all that are visible; CUDA_VISIBLE_DEVICES, run.gpu_ids or "
        "--nproc names fewer"
    ]


def _multiply(state: dict[str, Value]) -> list[str]:
    """Makes sizes per process global, in place; a line for the log about each."""
    keys = [key for key, entry in state.items() if entry.per_process]
    if not keys:
        return []
    from shoal.distributed.rank_variables import launched_size

    launch = [state["launch.nproc"].value, state["launch.world_size"].value]
    processes = launched_size() or max(launch)
    if (state["strategy.name"].value, state["strategy.ps.mode"].value) == ("ps", "async"):
        processes = 1  # every worker makes its own updates: a size per worker is what we mean too
    notes = []
    for key in keys:
        size, origin = state[key].value, state[key].origin
        if not isinstance(size, int):  # the data decides it, for all processes together
            continue
        state[key] = Value(size * processes, origin)
        notes.append(
            f"{origin}: a size per process: {size} × {processes} process"
            f"{'' if processes == 1 else 'es'} = {key}: {size * processes}"
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
    """Builds the model's options once, so that its own checks are reported here."""
    try:
        options_type(**config.model.options)
    except ValueError as error:
        return [f"options of {config.model.name}: {error}"]
    return []

"""PaddleRec's configs, translated. The table of keys stands in paddlerec_keys.py.

Their keys stand in two sections, `runner` and `hyper_parameters`, or dotted (`runner.epochs`). A
source that has one of them speaks this dialect; keys of Shoal may stand beside them. Of a key that
several sources have only the strongest is read. The model is the one that is named, else that of
the folder the config stands in, as there: models/rank/wide_deep/config.yaml.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from shoal.config.dialects.paddlerec_keys import KEYS, table
from shoal.config.dialects.paddlerec_values import Said
from shoal.config.dialects.recbole import Row, free, same
from shoal.config.errors import nearest
from shoal.config.keys import given
from shoal.config.sources import Layer

SECTIONS = ("runner", "hyper_parameters")
FOLDERS = {
    "logistic_regression": "LR",
    "fm": "FM",
    "dnn": "DNN",
    "wide_deep": "WideDeep",
    "deepfm": "DeepFM",
    "dcn_v2": "DCNV2",
    "dlrm": "DLRM",
}
NOTE = (
    "keys of PaddleRec are given: its defaults hold for data.format, data.path, run.seed and "
    "train.patience, as `shoal config show` tells"
)


@dataclass
class Spoken(Said):
    """The same with the source of each key, and the folder that names the model."""

    sources: dict[str, Layer] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)  # of the configs, by name

    @cached_property
    def rows(self) -> dict[str, Row]:
        return {row.key: row for row in table(self)}

    def row(self, key: str) -> Row:
        """How a key is read; ValueError if there is none such."""
        if key in self.rows:
            return self.rows[key]
        section, _, name = key.partition(".")
        if section == "hyper_parameters":  # there it is the model that decides what it reads
            if self.options is None:
                return free(key, "an option of a model that is not known")
            if f"model.{name}" in self.options:
                return same(key, f"model.{name}")
        raise ValueError(f"unknown PaddleRec key {key}{self._meant(key)}")

    def _meant(self, key: str) -> str:
        """The key of that name in another section, or the nearest in this one, or in all."""
        options = [name.partition(".")[2] for name in self.options or ()]
        known = [*KEYS, *(f"hyper_parameters.{name}" for name in options)]
        section, _, tail = key.partition(".")
        beside = {name.partition(".")[2]: name for name in known if name.startswith(section)}
        ends = {name.rpartition(".")[2]: name for name in known}
        last = key.rpartition(".")[2]
        found = (
            ends.get(last)
            or beside.get(nearest(tail, beside, 0.7) or "")
            or ends.get(nearest(last, ends, 0.7) or "")
        )
        return f"; did you mean {found}?" if found else "; docs/paddlerec.md lists those there are"

    def model_of_folder(self) -> str:
        """The model that the config's folder names; ValueError if it names none."""
        for name in reversed(self.folders):
            if name in FOLDERS:
                return FOLDERS[name]
        where = f"its folder is {self.folders[-1]}" if self.folders else "there is no config file"
        raise ValueError(
            f"a config of PaddleRec does not name its model, and {where}, not one of "
            f"{', '.join(FOLDERS)}; add --model=NAME, e.g. --model=DNN"
        )

    def defaults(self) -> dict[str, Any]:
        """What holds there where nothing is given; nothing there stops before the last epoch."""
        return {
            "model.name": self.model,
            "data.format": "slots",
            "data.path": str(self.folder),
            "run.seed": 12345,
            "train.patience": 1_000_000,
        }


def is_key(key: str) -> bool:
    """Whether a key at the top of a source is PaddleRec's."""
    return key.partition(".")[0] in SECTIONS or key in KEYS


def leaves(key: str, value: Any) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """(dotted key, value, the keys that lead to it as written) of all below a key."""
    yield from _leaves(key, value, (key,))


def _leaves(key: str, value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any, Any]]:
    if key not in KEYS and isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner, (*path, name))
    elif key not in SECTIONS:
        yield key, value, path
    elif value is not None:
        raise ValueError(f"{key}: given {given(value)}; it is a section of PaddleRec's keys")


def gather(sources: Sequence[Layer], files: Sequence[str | Path]) -> Spoken | None:
    """What the sources, weakest first and files before others, say; None: nothing of PaddleRec."""
    spoken = Spoken(values={})
    said: dict[str, Any] = {}
    folder = None
    for number, source in enumerate(sources):
        own: dict[str, Any] = {}
        for top in filter(is_key, source.values):
            try:
                own |= {key: value for key, value, _ in leaves(top, source.values[top])}
            except ValueError:
                own |= {top: None}  # reported when the source is read
        if own and number < len(files):
            home = Path(os.path.abspath(files[number])).parent
            spoken.folders.append(home.name)
            if folder is None or "runner.train_data_dir" in own:
                folder = home
        said |= own
        spoken.sources |= dict.fromkeys(own, source)
    if not said:
        return None
    spoken.values = {key: _placed(value, said.get("workspace")) for key, value in said.items()}
    spoken.folder = folder or Path.cwd()
    return spoken


def _placed(value: Any, workspace: Any) -> Any:
    known = isinstance(value, str) and isinstance(workspace, str)
    return value.replace("{workspace}", workspace) if known else value

"""PaddleRec's configs, translated. The table of keys stands in paddlerec_keys.py.

Their keys stand in two sections, `runner` and `hyper_parameters`, or dotted (`runner.epochs`). A
source that has one of them is in this dialect; keys of Shoal may stand beside them. Of a key that
several sources have only the strongest is read. The model is the one that is named, else that of
the folder the config stands in, as there: models/rank/wide_deep/config.yaml.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from shoal.compat.dialects.paddlerec_keys import KEYS, TABLE
from shoal.compat.dialects.paddlerec_values import Said
from shoal.config.dialect import Dialect, Named, Row, free, same
from shoal.config.errors import nearest
from shoal.config.keys import describe_value
from shoal.config.sources import DEFAULT, Layer

SECTIONS = ("runner", "hyper_parameters", "loader")
FOLDERS = {
    "logistic_regression": "LR",
    "fm": "FM",
    "dnn": "DNN",
    "wide_deep": "WideDeep",
    "deepfm": "DeepFM",
    "dcn_v2": "DCNV2",
    "dlrm": "DLRM",
}


class PaddleRec(Dialect):
    tool, sections, table = "PaddleRec", SECTIONS, TABLE
    note = (
        "keys of PaddleRec are given: its defaults hold for data.format, data.path, run.seed and "
        "train.patience, as `shoal config show` shows"
    )

    def __init__(self, sources: Sequence[Layer]):
        super().__init__(sources)
        self.strongest: dict[str, Layer] = {}  # key -> the source whose value is read
        self.folders: list[str] = []  # of the configs, by name
        self.said = self._gather()
        self.context = self.said

    def _gather(self) -> Said:
        """The strongest value of every key, and the folder that relative paths begin at."""
        values: dict[str, Any] = {}
        folder = None
        for source in self.sources:
            own: dict[str, Any] = {}
            for top in filter(is_key, source.values):
                try:
                    own |= {key: value for key, value, _ in _leaves(top, source.values[top], ())}
                except ValueError:
                    own |= {top: None}  # reported when the source is read
            if own and source.file is not None:
                home = Path(os.path.abspath(source.file)).parent
                self.folders.append(home.name)
                if folder is None or "runner.train_data_dir" in own:
                    folder = home
            values |= own
            self.strongest |= dict.fromkeys(own, source)
        workspace = values.get("workspace")
        if isinstance(workspace, str):
            texts = {key: value for key, value in values.items() if isinstance(value, str)}
            values |= {k: text.replace("{workspace}", workspace) for k, text in texts.items()}
        return Said(values, folder or Path.cwd())

    def name_model(self, named: Named | None) -> Named | None:
        """A model by the name of its folder there; ValueError if the config's names none."""
        if not self.said.values:
            return named
        if named is not None:
            name, origin = named
            return (FOLDERS.get(name, name) if isinstance(name, str) else name), origin
        for name in reversed(self.folders):
            if name in FOLDERS:
                return FOLDERS[name], DEFAULT
        where = f"its folder is {self.folders[-1]}" if self.folders else "there is no config file"
        raise ValueError(
            f"a config of PaddleRec does not name its model, and {where}, not one of "
            f"{', '.join(FOLDERS)}; add --model=NAME, e.g. --model=DNN"
        )

    def meet(self, model: str, options: Collection[str] | None) -> None:
        super().meet(model, options)
        self.said.model, self.said.options = model, options

    def defaults(self) -> dict[str, Any]:
        """What holds there where nothing is given; nothing there stops before the last epoch."""
        if not self.said.values:
            return {}
        return {
            "model.name": self.model,
            "data.format": "slots",
            "data.path": str(self.said.folder),
            "run.seed": 12345,
            "train.patience": 1_000_000,
        }

    def knows(self, key: str, source: Layer) -> bool:
        return is_key(key)

    def leaves(
        self, key: str, value: Any, source: Layer
    ) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
        """The keys below `key` that no stronger source has too, with their values and paths."""
        for name, _, path in _leaves(key, value, (key,)):
            if self.strongest[name] is source:
                yield name, self.said.values[name], path

    def row(self, name: str) -> Row:
        if name in self.rows:
            return self.rows[name]
        section, _, last = name.partition(".")
        if section == "hyper_parameters":  # there it is the model that decides what it reads
            if self.options is None:
                return free(name, "an option of a model that is not known")
            if f"model.{last}" in self.options:
                return same(name, f"model.{last}")
        raise ValueError(f"unknown PaddleRec key {name}{self._meant(name)}")

    def _meant(self, key: str) -> str:
        """The key of that name in another section, or the nearest in this one, or in all."""
        options = [name.partition(".")[2] for name in self.options or ()]
        all_keys = [*KEYS, *(f"hyper_parameters.{name}" for name in options)]
        section, _, tail = key.partition(".")
        in_section = {name.partition(".")[2]: name for name in all_keys if name.startswith(section)}
        ends = {name.rpartition(".")[2]: name for name in all_keys}
        last = key.rpartition(".")[2]
        suggestion = (
            ends.get(last)
            or in_section.get(nearest(tail, in_section, 0.7) or "")
            or ends.get(nearest(last, ends, 0.7) or "")
        )
        return (
            f"; did you mean {suggestion}?" if suggestion else "; docs/from/every_key.md lists them"
        )

    def words(self) -> dict[str, str]:
        """In a config of PaddleRec also the last parts of keys; in any the dotted ones."""
        if not self.said.values:
            return {key: key for key in KEYS if "." in key}
        shown_keys = self.shown(self.rows.values())
        return {key.rpartition(".")[2]: text for key, text in shown_keys.items()} | shown_keys


def is_key(key: str) -> bool:
    """Whether a key at the top of a source is PaddleRec's."""
    return key.partition(".")[0] in SECTIONS or key in KEYS


def _leaves(key: str, value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any, Any]]:
    if key not in KEYS and isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner, (*path, name))
    elif key not in SECTIONS:
        yield key, value, path
    elif value is not None:
        raise ValueError(
            f"{key}: given {describe_value(value)}; it is a section of PaddleRec's keys"
        )

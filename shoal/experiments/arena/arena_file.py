"""The file of an arena, read strictly: what is trained on what, and what holds for all runs.

models: [BPR, best.yaml, {name: SASRec, title: wide, hidden_size: 128}]
data: [ml-100k, shop.csv, {name: beauty, data.filter.user_inter_num: "[5,inf)"}]
seeds: [2020, 2021, 2022]      # or how many: 3
keys: {train.epochs: 20}       # of all runs
tune: 20                       # trials of `shoal tune` for each model and data set
jobs: 2                        # runs at once
price_per_hour: 3.5            # of this machine; with --launch: of what one run uses
published:                     # figures of others, shown beside those of the runs
  - {model: SASRec, data: beauty, source: "the paper, table 2", ndcg@10: 0.0318}
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.config import ConfigError
from shoal.config.errors import did_you_mean
from shoal.config.output import flat
from shoal.config.yaml_io import inline, read_file
from shoal.experiments.tuning.sweep_grid import read_seeds

ALLOWED = ("models", "data", "seeds", "keys", "tune", "jobs", "price_per_hour", "published")
EXAMPLE = "`models: [BPR, LightGCN]` and `data: [ml-100k]`"
FIRST_SEED, NUM_SEEDS = 2020, 3  # where the file names none
# Keys of a config that an arena decides -> what says it instead.
DECIDED = {
    "model": "models",
    "model.name": "models",
    "dataset": "data",
    "data.name": "data",
    "run.seed": "seeds",
    "seed": "seeds",
    "run.output": "--output",
}


@dataclass(frozen=True)
class ArenaEntry:
    """A model or a data set as the file names it, with the config keys that are its own."""

    name: str
    title: str | None = None  # what tables call it, where that is not its name
    keys: dict[str, Any] = field(default_factory=dict)  # by dotted key


@dataclass(frozen=True)
class Published:
    """Figures of others for a model and a data set, and where they stand."""

    model: str
    data: str
    source: str
    metrics: dict[str, float]


@dataclass(frozen=True)
class ArenaFile:
    """What the file of an arena says."""

    path: Path
    text: str
    models: list[ArenaEntry]
    data: list[ArenaEntry]
    seeds: list[int]
    keys: dict[str, Any]  # of all runs, by dotted key
    trials: int  # of a search for each model and data set; 0: no search
    jobs: int
    price_per_hour: float | None
    published: list[Published]


def read_arena(path: str | Path) -> ArenaFile:
    """Read the file of an arena; ConfigError with all that is wrong in it."""
    values, lines = read_file(path)
    if not values:
        raise ConfigError(f"{path}: is empty; an arena needs at least {EXAMPLE}")
    reader = _Reader(Path(path), values, lines)
    arena = ArenaFile(
        path=Path(path),
        text=Path(path).read_text(encoding="utf-8-sig"),
        models=reader.entries("models"),
        data=reader.entries("data"),
        seeds=reader.seeds(),
        keys=reader.config_keys("keys", values.get("keys", {})),
        trials=reader.whole("tune", default=0, least=0),
        jobs=reader.whole("jobs", default=1, least=1),
        price_per_hour=reader.price(),
        published=reader.published(),
    )
    if reader.errors:
        raise ConfigError(reader.errors)
    return arena


class _Reader:
    """Takes the parts of a file one by one, and collects what is wrong."""

    def __init__(self, path: Path, values: dict[str, Any], lines: dict[tuple[str, ...], int]):
        self.path = path
        self.values = values
        self.lines = lines
        self.errors: list[str] = []
        for key in values:
            if key not in ALLOWED:
                hint = did_you_mean(key, ALLOWED)
                self.refuse(key, f"unknown key {key}; allowed: {', '.join(ALLOWED)}{hint}")

    def refuse(self, key: str, problem: str) -> None:
        """Note a problem, with the line of the key at the top that it stands under."""
        line = self.lines.get((key,))
        place = str(self.path) if line is None else f"{self.path}:{line}"
        self.errors.append(f"{place}: {problem}")

    def entries(self, part: str) -> list[ArenaEntry]:
        """The models, or the data sets; none of them twice."""
        value = self.values.get(part)
        if isinstance(value, str | dict) and value:
            value = [value]
        if not isinstance(value, list) or not value:
            shown = "there are none" if part not in self.values else f"given {inline(value)[:80]}"
            self.refuse(part, f"{part}: {shown}; write a list of names, such as {EXAMPLE}")
            return []
        entries = [entry for item in value if (entry := self._entry(part, item)) is not None]
        titles = [entry.title or entry.name for entry in entries]
        for title in dict.fromkeys(title for title in titles if titles.count(title) > 1):
            self.refuse(
                part,
                f"{part}: {title} stands there twice; leave one out, or tell them apart: "
                f"{{name: {title}, title: OTHER, KEY: VALUE}}",
            )
        return entries

    def _entry(self, part: str, item: Any) -> ArenaEntry | None:
        if isinstance(item, str) and item:
            return ArenaEntry(item)
        if not isinstance(item, dict):
            self.refuse(
                part, f"{part}: given {inline(item)[:80]}; allowed: a name, or {{name: NAME, KEYS}}"
            )
            return None
        names = {key: item[key] for key in ("name", "title") if key in item}
        if "name" not in names:
            self.refuse(part, f"{part}: {inline(item)[:80]} has no name")
            return None
        for key, text in names.items():
            if not isinstance(text, str) or not text:
                self.refuse(part, f"{part}: {key} is {inline(text)[:80]}; allowed: a text")
                return None
        keys = {key: value for key, value in item.items() if key not in names}
        return ArenaEntry(names["name"], names.get("title"), self.config_keys(part, keys))

    def config_keys(self, part: str, value: Any) -> dict[str, Any]:
        """Keys of a config by dotted key; those that the arena decides are refused."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.refuse(
                part,
                f"{part}: given {inline(value)[:80]}; allowed: a mapping of config keys, such as "
                "{train.epochs: 20}",
            )
            return {}
        keys = flat(value)
        for key in keys:
            if key in DECIDED:
                self.refuse(part, f"{part}: {key} is decided by {DECIDED[key]}; leave it out")
        return keys

    def seeds(self) -> list[int]:
        """The seeds, none of them twice."""
        value = self.values.get("seeds", NUM_SEEDS)
        try:
            seeds = read_seeds([value] if isinstance(value, bool) else value, FIRST_SEED)
        except ValueError as error:
            self.refuse("seeds", str(error))
            return []
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            self.refuse("seeds", f"seeds: {', '.join(map(str, twice))} stands there twice")
        return seeds

    def whole(self, key: str, default: int, least: int) -> int:
        """A whole number of at least `least`."""
        value = self.values.get(key, default)
        if type(value) is not int or value < least:
            self.refuse(key, f"{key}: given {inline(value)[:80]}; allowed: {least} or more")
            return default
        return value

    def price(self) -> float | None:
        """The price of an hour, where one is named."""
        value = self.values.get("price_per_hour")
        if value is None:
            return None
        if not _is_number(value) or value <= 0:
            self.refuse(
                "price_per_hour",
                f"price_per_hour: given {inline(value)[:80]}; allowed: a number above 0, in any "
                "currency",
            )
            return None
        return float(value)

    def published(self) -> list[Published]:
        """The figures of others."""
        value = self.values.get("published") or []
        if not isinstance(value, list):
            value = [value]
        return [row for item in value if (row := self._published_row(item)) is not None]

    def _published_row(self, item: Any) -> Published | None:
        names = ("model", "data", "source")
        form = "{model: SASRec, data: beauty, source: WHERE IT STANDS, ndcg@10: 0.0318}"
        if not isinstance(item, dict):
            self.refuse("published", f"published: given {inline(item)[:80]}; write {form}")
            return None
        missing = [name for name in names if not isinstance(item.get(name), str) or not item[name]]
        if missing:
            self.refuse(
                "published",
                f"published: {inline(item)[:80]} has no {' and no '.join(missing)}; write {form}",
            )
            return None
        metrics = {key.lower(): value for key, value in item.items() if key not in names}
        wrong = [name for name, figure in metrics.items() if not _is_number(figure)]
        if wrong or not metrics:
            problem = f"{wrong[0]} is no number" if wrong else "names no metric"
            self.refuse("published", f"published: {inline(item)[:80]}: {problem}; write {form}")
            return None
        texts = {name: item[name] for name in names}
        return Published(**texts, metrics={name: float(one) for name, one in metrics.items()})


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)

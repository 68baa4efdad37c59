"""The file of a pipeline: YAML, read strictly. docs/reference/pipeline.md describes its keys.

Every error names the file, the line and the key. Paths are relative to the file's folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from shoal.config.errors import ConfigError, did_you_mean
from shoal.config.yaml_io import Path_, read_file
from shoal.serving.pipeline import diversity, exploration, filters, list_rules
from shoal.serving.pipeline.feature_files import Key
from shoal.serving.pipeline.rule import Changes, PipelineSection, Rule
from shoal.serving.pipeline.stages import By

RULES: dict[str, type[Rule]] = {
    "only": filters.OnlyItems,
    "exclude": filters.ExcludedItems,
    "seen": filters.SeenItems,
    "allowed": filters.AllowedItems,
    "boost": list_rules.Boost,
    "freshness": list_rules.Freshness,
    "at_most": list_rules.AtMost,
    "diversity": diversity.Diversity,
    "pinned": list_rules.PinnedItems,
    "explore": exploration.Explore,
}
PIPELINE = "pipeline.yaml"  # its name in the folder of an exported pipeline
KEYS = ("retrieve", "rank", "rules", "items", "fallback")
ORDER: tuple[Changes, ...] = ("items", "scores", "order")  # what rules change, first to last
STAGES = ("retrieve", "rank")  # in what counts fallbacks, beside the sources
MOST_SOURCES, MOST_RULES = 32, 100
TYPES = ("bool", "str", "int", "float")  # of which a value may be one, in pydantic's places
Part = TypeVar("Part", bound=PipelineSection)
Milliseconds = Annotated[float, Field(gt=0, le=3_600_000)]


class SourceEntry(PipelineSection):
    """A source of candidates, as the file has it; CandidateSource says what its keys mean.

    within: milliseconds; when it has brought nothing by then, it has failed.
    """

    artifact: Annotated[str, Field(min_length=1)]
    by: By = "model"
    number: Annotated[int, Field(ge=1, le=10_000)]
    quota: Annotated[int, Field(ge=1)] | None = None
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    within: Milliseconds | None = None


class FeaturesEntry(PipelineSection):
    """A table of features, as the file has it; FeatureFile says what its keys mean."""

    file: Annotated[str, Field(min_length=1)]
    key: Key
    default: dict[str, bool | str | int | float | None] | None = None


class RankEntry(PipelineSection):
    """The click model that ranks, as the file has it; ClickRanker says what its keys mean.

    within: as of a source.
    """

    artifact: Annotated[str, Field(min_length=1)]
    label: str | None = None
    context: dict[str, bool | str | int | float | None] | None = None
    features: Annotated[list[FeaturesEntry], Field(max_length=10)] | None = None
    within: Milliseconds | None = None


@dataclass(frozen=True)
class PipelineFile:
    """What the file of a pipeline says.

    rules   name -> rule, in the order of the file; the second of a kind is `boost 2`
    lines   where each key stands, by the keys that lead to it
    sha256  of its values, whatever its comments are
    """

    path: Path
    retrieve: dict[str, SourceEntry]
    rank: RankEntry | None
    rules: dict[str, Rule]
    items: Path | None
    fallback: SourceEntry | None
    lines: Mapping[Path_, int]
    sha256: str = ""

    def place(self, *keys: str) -> str:
        """FILE:LINE: key, of the keys that lead to a value; entries of lists by number, from 0."""
        nearest = keys
        while nearest and nearest not in self.lines:
            nearest = nearest[:-1]
        line = f":{self.lines[nearest]}" if nearest else ""
        return f"{self.path}{line}: {shown_keys(keys)}"

    def artifact_names(self) -> list[str]:
        """The folders of artifacts that the file names, each once, in its order."""
        entries = [*self.retrieve.values(), self.rank, self.fallback]
        return list(dict.fromkeys(entry.artifact for entry in entries if entry is not None))

    def tables(self) -> list[Path]:
        """The tables that the file names: of items, then of features."""
        features = (self.rank.features or ()) if self.rank is not None else ()
        items = [] if self.items is None else [self.items]
        return [*items, *(self.folder(entry.file) for entry in features)]

    def folder(self, name: str) -> Path:
        """A path that the file names."""
        return self.path.parent / name


def shown_keys(keys: tuple[str, ...]) -> str:
    """Keys as an error shows them.

    >>> shown_keys(("retrieve", "0", "number"))
    'retrieve[0].number'
    """
    text = ""
    for key in keys:
        text += f"[{key}]" if key.isdigit() else f".{key}" * bool(text) or key
    return text


def read_pipeline(path: str | Path) -> PipelineFile:
    """The file of a pipeline; ConfigError names everything that is wrong with it."""
    values, lines = read_file(path)
    return _Reader(Path(path), values, lines).read()


class _Reader:
    """Turns the values of a file into its parts, and collects what is wrong with them."""

    def __init__(self, path: Path, values: dict[str, Any], lines: Mapping[Path_, int]):
        self.values = values
        self.errors: list[str] = []
        self.file = PipelineFile(path, {}, None, {}, None, None, lines)

    def read(self) -> PipelineFile:
        """All parts; raises the errors of all of them."""
        self._check_keys(self.values, KEYS, ())
        retrieve = self._sources()
        rank = self._part(RankEntry, self.values.get("rank"), ("rank",))
        fallback = self._part(SourceEntry, self.values.get("fallback"), ("fallback",))
        rules = self._rules()
        self._check_limits(retrieve, rank, fallback)
        items = self.values.get("items")
        if items is not None and not isinstance(items, str):
            self._error(("items",), "must be the name of a file, such as items.csv")
            items = None
        if self.errors:
            raise ConfigError(self.errors)
        path = self.file.path
        return PipelineFile(
            path,
            retrieve=retrieve,
            rank=rank,
            rules=rules,
            items=None if items is None else self.file.folder(items),
            fallback=fallback,
            lines=self.file.lines,
            sha256=hashlib.sha256(json.dumps(self.values, default=str).encode()).hexdigest(),
        )

    def _sources(self) -> dict[str, SourceEntry]:
        sources: dict[str, SourceEntry] = {}
        for number, value in enumerate(self._list("retrieve", MOST_SOURCES)):
            keys = ("retrieve", str(number))
            entry = self._part(SourceEntry, value, keys)
            if entry is None:
                if value is None:
                    self._error(keys, "is empty; give artifact and number")
                continue
            plain = Path(entry.artifact).name or entry.artifact
            name = entry.name or (plain if entry.by == "model" else f"{plain} {entry.by}")
            if name in STAGES:
                self._error(keys, f"{name!r} is what another stage is called; give it a name")
            if name in sources:
                self._error(keys, f"another source has the name {name!r} too; give it a name")
            sources[name] = entry
        if not self.values.get("retrieve"):
            self._error(("retrieve",), "is missing: a list of sources, each with artifact, number")
        return sources

    def _check_limits(
        self,
        retrieve: Mapping[str, SourceEntry],
        rank: RankEntry | None,
        fallback: SourceEntry | None,
    ) -> None:
        """Limits of time need something that answers instead, and that has none itself."""
        if fallback is not None and fallback.within is not None:
            self._error(("fallback", "within"), "the fallback has no limit: nothing answers for it")
        if self.values.get("fallback") is not None:
            return
        limited: list[tuple[str, ...]] = [
            ("retrieve", str(number))
            for number, entry in enumerate(retrieve.values())
            if entry.within is not None
        ]
        limited += [("rank",)] if rank is not None and rank.within is not None else []
        for keys in limited:
            self._error((*keys, "within"), "within needs a fallback, which answers in its place")

    def _rules(self) -> dict[str, Rule]:
        rules: dict[str, Rule] = {}
        counts: dict[str, int] = {}
        last = ""
        for number, value in enumerate(self._list("rules", MOST_RULES)):
            keys = ("rules", str(number))
            if isinstance(value, str):
                value = {value: {}}  # a rule without arguments
            if not isinstance(value, dict) or len(value) != 1:
                self._error(keys, "must be one rule, such as `at_most: {number: 2, attribute: x}`")
                continue
            ((kind, arguments),) = value.items()
            if kind not in RULES:
                hint = did_you_mean(kind, RULES)
                self._error(keys, f"there is no rule {kind!r}; there are {', '.join(RULES)}{hint}")
                continue
            rule = self._part(RULES[kind], {} if arguments is None else arguments, (*keys, kind))
            if rule is None:
                continue
            if last and ORDER.index(rule.changes) < ORDER.index(RULES[last].changes):
                self._error(
                    (*keys, kind),
                    f"changes {rule.changes}, and {last} before it {RULES[last].changes}: put it "
                    f"before {last} (rules that change items come first, then those of scores, "
                    "then those of the order)",
                )
            else:
                last = kind
            counts[kind] = counts.get(kind, 0) + 1
            rules[kind if counts[kind] == 1 else f"{kind} {counts[kind]}"] = rule
        return rules

    def _list(self, key: str, most: int) -> list[Any]:
        values = self.values.get(key)
        if values is None:
            return []
        if not isinstance(values, list):
            self._error((key,), "must be a list: each entry on a line that begins with `-`")
            return []
        if len(values) > most:
            self._error((key,), f"has {len(values)} entries; at most {most} are read")
        return values[:most]

    def _part(self, kind: type[Part], value: Any, keys: tuple[str, ...]) -> Part | None:
        """A part of the file as its class; None where it is missing or wrong."""
        if value is None:
            return None
        if not isinstance(value, dict):
            self._error(keys, f"must have keys: {', '.join(kind.model_fields)}")
            return None
        if not self._check_keys(value, kind.model_fields, keys):
            return None
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_context=False):
                inner = [str(key) for key in problem["loc"] if key not in TYPES]
                text = problem["msg"].removeprefix("Value error, ")
                if problem["type"] not in ("missing", "value_error"):
                    text += f" (given {problem['input']!r})"
                self._error((*keys, *inner), text[:300])
        return None

    def _check_keys(
        self, value: dict[str, Any], allowed: Iterable[str], keys: tuple[str, ...]
    ) -> bool:
        odd = [key for key in value if key not in allowed]
        for key in odd:
            names = ", ".join(allowed) or "none"
            hint = did_you_mean(key, allowed)
            self._error((*keys, key), f"unknown key; the keys here are: {names}{hint}")
        return not odd

    def _error(self, keys: tuple[str, ...], text: str) -> None:
        self.errors.append(f"{self.file.place(*keys)}: {text}")

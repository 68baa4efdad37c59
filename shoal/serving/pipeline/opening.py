"""Opening a pipeline: its artifacts and table, a number for each item, and what must agree."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shoal.data.ids import Ids, word_of
from shoal.files.durable import open_regular
from shoal.serving.artifact.artifact import Artifact
from shoal.serving.pipeline.file import PipelineFile, SourceEntry
from shoal.serving.pipeline.items import PipelineItems, read_items
from shoal.serving.pipeline.stages import CandidateSource, ClickRanker

if TYPE_CHECKING:
    import polars as pl

FALLBACK = "fallback"  # the name of its source
VERSION_DIGITS = 12
ALIKE = 0.5  # share of ids that two stages must have in common
Result = TypeVar("Result")


@dataclass(frozen=True)
class PipelineParts:
    """What a file names, opened: artifacts as stages, and the items of all of them.

    num_retrievable: how many items sources can bring. version: 12 hex digits, which follow from
    the bytes of all that was opened.
    """

    sources: dict[str, CandidateSource]
    fallback: CandidateSource | None
    ranker: ClickRanker | None
    items: PipelineItems
    num_retrievable: int
    version: str
    artifacts: list[Artifact]


def open_parts(file: PipelineFile) -> PipelineParts:
    """Open all that a file names; the first thing that is wrong is an error with its key."""
    return _Opening(file).open()


@dataclass
class _Opening:
    """The steps of opening a pipeline."""

    file: PipelineFile
    artifacts: dict[Path, Artifact] = field(default_factory=dict)

    def open(self) -> PipelineParts:
        """Sources first: the others must agree with the first of them."""
        entries = self._entries()
        catalogues = {name: self._catalogue(*entry) for name, entry in entries.items()}
        first = next(iter(catalogues.values()))
        for (keys, entry), artifact in zip(entries.values(), catalogues.values()):
            self._agree(keys, entry.artifact, artifact.items, first, "items")
        ranker = self._ranker(first)
        ids = united([artifact.items for artifact in catalogues.values()])
        num_retrievable = len(ids) - 1
        table = self._table(first)
        if table is not None:
            ids = self._at(("items",), partial(united, [ids, _ids_of(table)]))
        if ranker is not None:
            ranker.set_items(ids)
        sources = {
            name: _source(name, entry, catalogues[name], ids)
            for name, (_, entry) in entries.items()
        }
        fallback = sources.pop(FALLBACK, None)
        items = PipelineItems(ids, table, self.file.items, SourceVectors(sources))
        for number, (name, rule) in enumerate(self.file.rules.items()):
            kind = name.partition(" ")[0]
            self._at(("rules", str(number), kind), partial(rule.check, items))
        return PipelineParts(
            sources=sources,
            fallback=fallback,
            ranker=ranker,
            items=items,
            num_retrievable=num_retrievable,
            version=self._version(),
            artifacts=list(self.artifacts.values()),
        )

    def _entries(self) -> dict[str, tuple[tuple[str, ...], SourceEntry]]:
        """Name -> the keys that lead to a source, and what the file says of it."""
        entries: dict[str, tuple[tuple[str, ...], SourceEntry]] = {}
        for number, (name, entry) in enumerate(self.file.retrieve.items()):
            entries[name] = (("retrieve", str(number)), entry)
        if self.file.fallback is not None:
            if FALLBACK in entries:
                place = self.file.place(*entries[FALLBACK][0])
                raise ValueError(f"{place}: {FALLBACK!r} is the name of the fallback: name it else")
            entries[FALLBACK] = (("fallback",), self.file.fallback)
        return entries

    def _catalogue(self, keys: tuple[str, ...], entry: SourceEntry) -> Artifact:
        """The artifact of a source, which must have what it retrieves by."""

        def open_source() -> Artifact:
            artifact = self._artifact(entry.artifact)
            artifact.needs_catalogue()
            if entry.by == "last_item":
                _ = artifact.item_vectors  # refused where there are none
            return artifact

        return self._at((*keys, "artifact"), open_source)

    def _artifact(self, name: str) -> Artifact:
        """An artifact that the file names, opened once."""
        if "://" in name:
            raise ValueError(f"{name} is a URL; a pipeline reads folders, so copy it here first")
        folder = self.file.folder(name)
        if folder not in self.artifacts:
            self.artifacts[folder] = Artifact(folder)
        return self.artifacts[folder]

    def _ranker(self, first: Artifact) -> ClickRanker | None:
        """The click model; first: the artifact whose users and items it must know."""
        entry = self.file.rank
        if entry is None:
            return None
        keys = ("rank", "artifact")
        artifact = self._at(keys, partial(self._artifact, entry.artifact))
        opening = partial(ClickRanker, artifact, entry.label, entry.context)
        ranker = self._at(keys, opening)
        for number, table in enumerate(entry.features or ()):
            place = ("rank", "features", str(number))
            path = self.file.folder(table.file)
            self._at(place, partial(ranker.add_features, path, table.key, table.default))
        self._agree(keys, entry.artifact, ranker.items, first, "items")
        self._agree(keys, entry.artifact, ranker.users, first, "users")
        return ranker

    def _table(self, first: Artifact) -> pl.DataFrame | None:
        """The attributes of items; first: the artifact whose items they must be of."""
        file = self.file.items
        if file is None:
            return None
        table = self._at(("items",), partial(read_items, file))
        name = f"{file.name} (column {table.columns[0]!r})"
        self._agree(("items",), name, _ids_of(table), first, "items")
        return table

    def _agree(
        self, keys: tuple[str, ...], name: str, ids: Ids, first: Artifact, noun: str
    ) -> None:
        """Refuse users or items whose ids are other ones than those of the first source."""
        words, others = ids.words[1:], first.users if noun == "users" else first.items
        common = int((others.find(words) > 0).sum())
        if common < ALIKE * min(len(words), len(others) - 1):
            raise ValueError(
                f"{self.file.place(*keys)}: {name} and {first.folder.name} disagree on {noun}: of "
                f"{len(words):,} and {len(others) - 1:,} they have {common:,} in common; the first "
                f"id of one is {str(words[0])!r}, of the other {str(others.words[1])!r}"
            )

    def _at(self, keys: tuple[str, ...], work: Callable[[], Result]) -> Result:
        """The result of work that a key of the file asks for; an error names the key."""
        try:
            return work()
        except ValueError as error:
            raise ValueError(f"{self.file.place(*keys)}: {error}") from error

    def _version(self) -> str:
        """A digest of the file, of its artifacts and of its table."""
        digests = [self.file.sha256]
        digests += [artifact.manifest["sha256"] for artifact in self.artifacts.values()]
        if self.file.items is not None:
            with open_regular(self.file.items) as opened:
                digests.append(hashlib.file_digest(opened, "sha256").hexdigest())
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:VERSION_DIGITS]


def _ids_of(table: pl.DataFrame) -> Ids:
    """The items of a table's rows."""
    return Ids(["[PAD]", *map(word_of, table[table.columns[0]].to_list())])


def _source(name: str, entry: SourceEntry, artifact: Artifact, ids: Ids) -> CandidateSource:
    """A source whose numbers of items are translated into those of the pipeline."""
    to_pipeline = np.zeros(len(artifact.items), np.int64)
    to_pipeline[1:] = ids.find(artifact.items.words[1:])
    from_pipeline = np.zeros(len(ids), np.int64)
    from_pipeline[to_pipeline[1:]] = np.arange(1, len(to_pipeline))
    return CandidateSource(
        name=name,
        artifact=artifact,
        by=entry.by,
        number=entry.number,
        quota=entry.quota,
        to_pipeline=to_pipeline,
        from_pipeline=from_pipeline,
    )


class SourceVectors(Mapping[str, np.ndarray]):
    """Vectors of items by source, of length 1, made when they are first asked for."""

    def __init__(self, sources: Mapping[str, CandidateSource]):
        self._sources = {
            name: source for name, source in sources.items() if source.artifact.kind == "retrieval"
        }
        self._vectors: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._vectors:
            source = self._sources[name]
            own = source.artifact.item_vectors.float().numpy()
            lengths = np.linalg.norm(own, axis=1, keepdims=True).clip(min=1e-12)
            vectors = np.zeros((len(source.from_pipeline), own.shape[1]), np.float32)
            vectors[source.to_pipeline] = own / lengths
            vectors[0] = 0
            self._vectors[name] = vectors
        return self._vectors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def united(parts: Sequence[Ids]) -> Ids:
    """The ids of all parts, each once, those of the first one first, in its type.

    >>> united([Ids(["[PAD]", "7", "8"], int), Ids(["[PAD]", "8.0", "9"])]).values.tolist()
    [None, 7, 8, 9]
    """
    first, *others = parts
    ids = first
    for other in others:
        words = np.asarray(other.words[1:], dtype=object)
        new = words[ids.find(words) == 0].tolist()
        for word in new:
            try:
                first.kind(word)
            except ValueError:
                kind = first.kind.__name__
                raise ValueError(f"the id {word!r} is no {kind}, as those of others are") from None
        if new:
            ids = Ids([*ids.words, *new], first.kind)
    return ids

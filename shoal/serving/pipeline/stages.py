"""Stages of a pipeline: sources of candidates, and the click model that ranks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from shoal.clicks.encoder import FeatureEncoder
from shoal.config.errors import did_you_mean
from shoal.data.ids import Ids, Words
from shoal.kernels.topk import Pairs
from shoal.recommender.recommender import NO_IDS, History, asked_at
from shoal.serving.artifact.artifact import Artifact
from shoal.serving.artifact.histories import HISTORIES
from shoal.serving.pipeline.feature_files import FeatureFile, Key
from shoal.serving.pipeline.question import PipelineQuestion
from shoal.training.evaluation.clicks import TILE_ROWS

if TYPE_CHECKING:
    import polars as pl

By = Literal["model", "popularity", "last_item"]
Retrieved = tuple[np.ndarray, np.ndarray]  # items and their scores, the best first


@dataclass
class CandidateSource:
    """An artifact that retrieves candidates; items are numbers of the pipeline.

    by           `model`: the best items by its scores; `popularity`: the items that were taken
                 most; `last_item`: those most like the last item of the history
    number       how many items it brings
    quota        how many of them it may add to those of the sources before it; None: all
    to_pipeline  its numbers -> numbers of the pipeline; from_pipeline: back, 0 where it has none
    """

    name: str
    artifact: Artifact
    by: By
    number: int
    quota: int | None
    to_pipeline: np.ndarray
    from_pipeline: np.ndarray
    _last_allowed: tuple[np.ndarray, np.ndarray] | None = None

    def retrieve(
        self,
        questions: Sequence[PipelineQuestion],
        allowed: np.ndarray | None,
        banned: Sequence[np.ndarray],
    ) -> list[Retrieved | None]:
        """The candidates of each question; None where it knows nothing of who asks.

        allowed: items that may come, bool [num_items], None: all; banned: of each question, those
        that may not.
        """
        numbers = None if allowed is None else self._own_numbers(allowed)
        barred = [self.from_pipeline[items] for items in banned]
        ways = {
            "model": self._by_model,
            "popularity": self._by_popularity,
            "last_item": self._by_last_item,
        }
        if numbers is not None and not len(numbers):
            return [(NO_IDS, np.zeros(0))] * len(questions)
        results = ways[self.by](questions, numbers, barred)
        return [
            None if result is None else (self.to_pipeline[result[0]], result[1])
            for result in results
        ]

    def _own_numbers(self, allowed: np.ndarray) -> np.ndarray:
        """Its own items of those that may come, ascending. Filters let the same come question after
        question, so the last answer is kept."""
        if self._last_allowed is None or self._last_allowed[0] is not allowed:
            self._last_allowed = allowed, 1 + np.flatnonzero(allowed[self.to_pipeline[1:]])
        return self._last_allowed[1]

    def taken(self, questions: Sequence[PipelineQuestion]) -> list[Retrieved]:
        """What the user of each question took in the data of the artifact, and when (nan: not
        known); nothing where it does not hold that."""
        results = [(NO_IDS, np.zeros(0))] * len(questions)
        if not self.has_histories:
            return results
        users = self._users(questions)
        known_places = np.flatnonzero(users)
        rows, items = self.artifact.seen(users[known_places])
        for row, place in enumerate(known_places.tolist()):
            taken = items[rows == row]
            times = np.full(len(taken), np.nan)
            history = self.artifact.history_of(int(users[place]))
            if history.times is not None:
                taken = np.append(taken[~np.isin(taken, history.items)], history.items)
                earlier = np.full(len(taken) - len(history.items), np.nan)
                times = np.append(earlier, history.times[:-1].astype(np.float64))
            results[place] = self.to_pipeline[taken], times
        return results

    @property
    def has_histories(self) -> bool:
        """Whether the artifact holds what users took."""
        return HISTORIES in self.artifact.manifest["files"]

    # ---- the three ways, by numbers of the artifact ----------------------------------------------

    def _by_model(
        self,
        questions: Sequence[PipelineQuestion],
        allowed: np.ndarray | None,
        banned: Sequence[np.ndarray],
    ) -> list[Retrieved | None]:
        """Users are ranked in one pass, histories in another."""
        recommender = self.artifact.recommender
        results: list[Retrieved | None] = [None] * len(questions)
        histories = self._histories(questions)
        users = self._users(questions)
        by_history = [place for place, history in enumerate(histories) if history is not None]
        by_user = [n for n in np.flatnonzero(users).tolist() if histories[n] is None]
        for places, is_history in ((by_history, True), (by_user, False)):
            if not places:
                continue
            if is_history:
                query = self.artifact.of_histories([one for one in histories if one is not None])
            else:
                query = self.artifact.of_users(users[by_user])
            best, scores = recommender.rank(
                query,
                len(places),
                self.number,
                without=_pairs([banned[place] for place in places]),
                allowed=allowed,
            )
            for row, place in enumerate(places):
                results[place] = _left(best[row], scores[row])
        return results

    def _by_popularity(
        self,
        questions: Sequence[PipelineQuestion],
        allowed: np.ndarray | None,
        banned: Sequence[np.ndarray],
    ) -> list[Retrieved | None]:
        longest = max((len(items) for items in banned), default=0)
        popular, counts = self.artifact.recommender.popular(self.number + longest, allowed)
        results: list[Retrieved | None] = []
        for items in banned:
            kept = np.flatnonzero(~np.isin(popular, items))[: self.number]
            results.append((popular[kept], counts[kept]))
        return results

    def _by_last_item(
        self,
        questions: Sequence[PipelineQuestion],
        allowed: np.ndarray | None,
        banned: Sequence[np.ndarray],
    ) -> list[Retrieved | None]:
        last_items = self._last_items(questions)
        places: list[int] = np.flatnonzero(last_items).tolist()
        results: list[Retrieved | None] = [None] * len(questions)
        if not places:
            return results
        items = last_items[places]
        # An item is most like itself: it does not come.
        barred = [np.append(banned[place], last_items[place]) for place in places]
        best, cosines = self.artifact.recommender.rank_similar(
            items, self.number, without=_pairs(barred), allowed=allowed
        )
        for row, place in enumerate(places):
            results[place] = _left(best[row], cosines[row])
        return results

    # ---- who asks --------------------------------------------------------------------------------

    def _users(self, questions: Sequence[PipelineQuestion]) -> np.ndarray:
        """The user of each question by number; 0: none, or not known."""
        users = np.zeros(len(questions), np.int64)
        named = [place for place, question in enumerate(questions) if question.user is not None]
        users[named] = self.artifact.users.find([questions[place].user for place in named])
        return users

    def _histories(self, questions: Sequence[PipelineQuestion]) -> list[History | None]:
        """The known items of each question's history; None where none is known or is read."""
        histories: list[History | None] = []
        for question in questions:
            history = None
            if question.history is not None and self.artifact.reads_histories:
                self.artifact.need_histories(question.times is not None)
                numbers = self.artifact.items.find(question.history)
                is_known = numbers > 0
                times = None
                if question.times is not None:
                    times = asked_at(question.times, len(numbers))[[*is_known, True]]
                history = History(numbers[is_known], times) if is_known.any() else None
            histories.append(history)
        return histories

    def _last_items(self, questions: Sequence[PipelineQuestion]) -> np.ndarray:
        """The last known item of each question's history, else of its user's; 0: there is none."""
        users = self._users(questions)
        last_items = np.zeros(len(questions), np.int64)
        for place, question in enumerate(questions):
            items = NO_IDS
            if question.history is not None:
                items = self.artifact.items.find(question.history)
            elif users[place] and self.has_histories:
                items = self.artifact.history_of(int(users[place])).items
            items = items[items > 0]
            last_items[place] = items[-1] if len(items) else 0
        return last_items


def _pairs(banned: Sequence[np.ndarray]) -> Pairs:
    """Lists of items as pairs: place of the list, item; items that are 0 are left out."""
    if not banned:
        return NO_IDS, NO_IDS
    rows = np.repeat(np.arange(len(banned)), [len(items) for items in banned])
    items = np.concatenate(banned).astype(np.int64)
    return rows[items > 0], items[items > 0]


def _left(items: np.ndarray, scores: np.ndarray) -> Retrieved:
    """A row of a ranking without its empty places."""
    return items[items > 0], scores[items > 0].astype(np.float64)


class ClickRanker:
    """A click model that ranks candidates by the chance of a click."""

    def __init__(
        self,
        artifact: Artifact,
        label: str | None = None,
        context: Mapping[str, Any] | None = None,
    ):
        """label: which of several that the model predicts. context: columns of the context where a
        question has none, such as a position that is one for all candidates."""
        artifact.needs_clicks()
        encoder = artifact.encoder
        if not isinstance(encoder, FeatureEncoder):
            raise ValueError(
                f"{artifact.folder} was trained on a click log, which names neither users nor "
                "items: train the click model on rows with both (data.fields.label), so that it "
                "can rank items"
            )
        labels = [name for name, _ in artifact.labels]
        if label is None and len(labels) > 1:
            raise ValueError(f"{artifact.folder} predicts {', '.join(labels)}; give label")
        if label is not None and label not in labels:
            raise ValueError(
                f"{artifact.folder} predicts no {label!r}; it predicts {', '.join(labels)}"
                f"{did_you_mean(label, labels)}"
            )
        self.artifact = artifact
        self.encoder = encoder
        self.label = labels[0] if label is None else label
        self._column = labels.index(self.label)
        self._numbers = np.zeros(1, np.int64)  # of the pipeline's items, as the model has them
        self._words: Words = np.array([""], dtype=object)
        self.constants = dict(context or {})
        for name in self.constants:
            self._check_column(name)
        self.feature_files: list[FeatureFile] = []

    def add_features(self, file: Path, key: Key, default: Mapping[str, Any] | None = None) -> None:
        """Read columns of a table by user or item, where a question does not give them."""
        words = self.items.words[1:] if key == "item" else ()
        table = FeatureFile(file, key, self.encoder, default or {}, list(words))
        for name in table.columns:
            if any(name in other.columns for other in self.feature_files):
                raise ValueError(f"{file}: another table has the column {name!r} too")
        self.feature_files.append(table)

    @property
    def users(self) -> Ids:
        """The users that the model knows."""
        return self.encoder.ids[self.encoder.fields["user"]]

    @property
    def items(self) -> Ids:
        """The items that the model knows."""
        return self.encoder.ids[self.encoder.fields["item"]]

    @cached_property
    def context(self) -> list[str]:
        """Columns that every question's context must have; an empty one is None."""
        sides = self.encoder.fields.values()
        return [
            feature.column
            for feature in self.encoder.table.features
            if feature.side == "context" and not (feature.is_of_time or feature.cross)
            if feature.name not in self.encoder.histories and feature.column not in sides
            if feature.column not in self.constants
            if not any(feature.column in table.columns for table in self.feature_files)
        ]

    def check_context(self, question: PipelineQuestion) -> None:
        """Refuse a question whose context lacks a column, or has one that is not read."""
        for name in self.context:
            if name not in question.context:
                hint = did_you_mean(name, question.context)
                raise ValueError(
                    f"{self.artifact.model} reads {name!r}, which the context does not have; give "
                    f'it ({{"{name}": null}} where it is empty; on a command line --context){hint}'
                )
        for name in question.context:
            self._check_column(name)
        for table in self.feature_files:
            for name in table.columns if table.key == "item" else ():
                if name in question.context:
                    raise ValueError(f"{name!r} comes from {table.path.name}, by item")
            needed = table.needed if table.key == "user" else ()
            missing = [name for name in needed if name not in question.context]
            if missing and missing[0] not in table.rows([question.user])[0]:
                raise ValueError(
                    f"{table.path.name} has no row for {question.user!r} and no default for "
                    f"{missing[0]!r}: give it in the context"
                )

    def set_items(self, items: Ids) -> None:
        """Numbers stand for these items from here on."""
        self._words = items.words
        self._numbers = np.zeros(len(items), np.int64)
        self._numbers[1:] = self.items.find(items.words[1:])

    @cached_property
    def columns(self) -> list[str]:
        """Columns that a context may have."""
        own = self.encoder.fields.values()
        return [name for name in self.encoder.columns if name not in own]

    def _check_column(self, name: str) -> None:
        if name not in self.columns:
            raise ValueError(
                f"{self.artifact.model} reads no {name!r}; a context may have "
                f"{', '.join(self.columns) or 'nothing'}{did_you_mean(name, self.columns)}"
            )

    def scores(
        self, questions: Sequence[PipelineQuestion], items: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """The chance of a click on each of the items of each question, float64 [n]; items by number
        (`set_items`).

        A question is encoded once, whatever the number of its items, and all items together.
        """
        import polars as pl

        fields = self.encoder.fields
        history = self._history_column()
        tables = [table for table in self.feature_files if table.key == "user"]
        stored = [table.rows([one.user for one in questions]) for table in tables]
        rows = []
        for place, question in enumerate(questions):
            row = {fields["user"]: question.user, **self.constants}
            for of_users in stored:
                row |= of_users[place]
            row |= question.context
            if history is not None and question.history is not None:
                row[history] = list(question.history)
            rows.append(row)
        counts = [len(numbers) for numbers in items]
        frame = self.encoder.frame(rows).with_columns(pl.col(fields["user"]).cast(pl.String))
        places = np.repeat(np.arange(len(questions)), counts)
        numbers = np.concatenate([NO_IDS, *items])
        if any(table.key == "item" for table in self.feature_files):
            chances = self._chances_of_rows(frame[places.tolist()], numbers)
        else:
            chances = self._chances_of_pairs(frame, places, self._numbers[numbers])
        if chances.ndim == 2:
            chances = chances[:, self._column]
        return np.split(chances, np.cumsum(counts)[:-1])

    def _chances_of_pairs(
        self, frame: pl.DataFrame, places: np.ndarray, numbers: np.ndarray
    ) -> np.ndarray:
        """Chances of items by the model's numbers [n]; places [n]: of their questions in frame."""
        parts = [np.zeros(0)]
        for first in range(0, len(numbers), TILE_ROWS):
            tile = slice(first, first + TILE_ROWS)
            batch = self.encoder.batch_of_pairs(frame, places[tile], numbers[tile])
            parts.append(self.artifact.predictor.predict_batch(batch).numpy().astype(np.float64))
        return np.concatenate(parts[1:] or parts)

    def _chances_of_rows(self, frame: pl.DataFrame, items: np.ndarray) -> np.ndarray:
        """Chances of items by the pipeline's numbers [n], with columns of tables; frame [n]."""
        import polars as pl

        if not len(items):
            return np.zeros(0)
        different, places = np.unique(items, return_inverse=True)
        words = [str(self._words[item]) for item in different.tolist()]
        frame = frame.with_columns(
            pl.Series(self.encoder.fields["item"], words, dtype=pl.String)[places.tolist()]
        )
        for table in self.feature_files:
            if table.key == "item":
                nothing = dict.fromkeys(table.columns)
                of_items = self.encoder.frame([nothing | row for row in table.rows(words)])
                frame = frame.hstack(of_items[places.tolist()])
        return self.artifact.predictor.chances(frame)

    def _history_column(self) -> str | None:
        """The column of a history's items, where the model reads nothing else of a history."""
        names = list(self.encoder.histories)
        return names[0] if len(names) == 1 else None

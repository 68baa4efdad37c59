"""Pipeline: sources of candidates, a click model that ranks them, and rules, behind one file.

filters    which items may come: rules `only`, `exclude`, `seen`, `allowed`
retrieve   every source brings its best of these items; their union, by quotas
rank       the click model scores the union; without one, the order of the sources stands
rules      scores, then order

All questions of a batch pass a stage together, so `recommend`, an evaluation and a service run the
same code.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from shoal.recommender.recommender import NO_IDS
from shoal.serving.pipeline.candidates import Candidates, places_of
from shoal.serving.pipeline.file import PipelineFile
from shoal.serving.pipeline.filters import SeenItems
from shoal.serving.pipeline.folder import read_any_pipeline
from shoal.serving.pipeline.opening import open_parts
from shoal.serving.pipeline.question import PipelineAnswer, PipelineQuestion, RecommendedItem
from shoal.serving.pipeline.rule import ItemFilter, ListRule, RuleRequest
from shoal.serving.pipeline.stages import CandidateSource, Retrieved
from shoal.serving.pipeline.time_limit import TimeLimit

log = logging.getLogger("shoal")
RANK = "rank"  # the stage, in what moved an item
FUSION = 60  # of reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009)
Result = TypeVar("Result")


@dataclass
class PendingQuestion:
    """A question on its way through the stages, and what happened to it."""

    question: PipelineQuestion
    request: RuleRequest
    unknown: list[str]  # sources that know nothing of who asks
    fallbacks: list[str]  # stages that failed or brought too little


class Pipeline:
    """Retrieval, ranking and rules as a file describes them (docs/reference/pipeline.md).

    It is checked when it is opened: artifacts by their checksums, item ids of all stages, and that
    the attributes which rules read are there.

    >>> from pathlib import Path
    >>> text = "retrieve: [{artifact: exported/first, number: 50}]"
    >>> _ = Path("pipeline.yaml").write_text(text)
    >>> len(shoal.Pipeline("pipeline.yaml").recommend("7", number=5))  # as shoal.export has it
    5
    """

    def __init__(self, file: str | Path, seed: int | None = None, limits: bool = True):
        """file: or the folder of an exported pipeline.

        seed: of what rules draw; None: another one each time. limits: whether stages must be done
        `within` the times of the file; of thousands of questions in one batch none would be.
        """
        self.file = read_any_pipeline(file)
        self.rules = self.file.rules
        self.filters = {
            name: rule for name, rule in self.rules.items() if isinstance(rule, ItemFilter)
        }
        self.list_rules = {
            name: rule for name, rule in self.rules.items() if isinstance(rule, ListRule)
        }
        self.stages = [RANK, *self.list_rules]  # what can move an item
        self.fallbacks: Counter[str] = Counter()  # stage -> how often something took its place
        parts = open_parts(self.file)
        self.sources = parts.sources
        self.fallback = parts.fallback
        self.ranker = parts.ranker
        self.items = parts.items
        self.num_retrievable = parts.num_retrievable
        # By how many of the filters apply, in the order of the file.
        self._allowed = [
            self._allowed_items(list(self.filters.values())[:count])
            for count in range(len(self.filters) + 1)
        ]
        self.version = parts.version  # of the file and all that it names
        self.artifacts = parts.artifacts
        self._time_limits = _time_limits(self.file) if limits else {}
        self._random = np.random.default_rng(seed)
        self._lock = threading.Lock()

    def _allowed_items(self, rules: Sequence[ItemFilter]) -> np.ndarray | None:
        """The items that these filters let come, whoever asks, bool [num_items]; None: all."""
        allowed: np.ndarray | None = None
        for rule in rules:
            mask = rule.allowed(self.items)
            if mask is not None:
                allowed = mask if allowed is None else allowed & mask
        return allowed

    # ---- answers --------------------------------------------------------------------------------

    def recommend(
        self,
        user: Any = None,
        history: Sequence[Any] | None = None,
        number: int = 10,
        context: Mapping[str, Any] | None = None,
        times: Sequence[int] | None = None,
        exclude: Sequence[Any] = (),
        time: float | None = None,
    ) -> PipelineAnswer:
        """The best items for a user, a history (oldest first), or a user with a newer history.

        context: columns that the click model reads besides user and item. times: of the history,
        in seconds since 1970; time: of the question, now by default.
        """
        question = PipelineQuestion(
            user=user,
            history=history,
            times=times,
            number=number,
            context=dict(context or {}),
            exclude=list(exclude),
            time=time,
        )
        return self.answer([question])[0]

    def answer(self, questions: Sequence[PipelineQuestion]) -> list[PipelineAnswer]:
        """The answers of questions, all of them in one pass of each stage."""
        pending = self.accept(questions)
        lists = self.rank(pending, self.retrieve(pending))
        for name in self.list_rules:
            lists = self.apply(name, pending, lists)
        return [self._named(*pair) for pair in zip(pending, lists)]

    def prepare(self, question: PipelineQuestion) -> None:
        """Make what would be made at the first use, by a question that changes no draws."""
        warm = copy.copy(self)
        warm._random = np.random.default_rng(0)
        warm.answer([question])

    def check(self, question: PipelineQuestion) -> None:
        """Refuse what is no question to this pipeline."""
        question.check()
        if self.ranker is not None:
            self.ranker.check_context(question)

    def accept(
        self, questions: Sequence[PipelineQuestion], num_filters: int | None = None
    ) -> list[PendingQuestion]:
        """Questions, checked, with what rules know of them.

        num_filters: how many of the filters apply, in the order of the file; None: all.
        """
        for question in questions:
            self.check(question)
        filters = list(self.filters.values())[:num_filters]
        taken = self._taken(questions, filters)
        allowed = self._allowed[len(filters)]
        with self._lock:
            draws = self._random.spawn(len(questions))
        now = time.time()
        pending = []
        for question, (items, times), random in zip(questions, taken, draws):
            request = RuleRequest(
                number=question.number,
                time=now if question.time is None else question.time,
                taken=items,
                taken_times=times,
                allowed=allowed,
                banned=self.items.ids.find(question.exclude),
                random=random,
            )
            banned = [request.banned, *(rule.banned(request) for rule in filters)]
            request = replace(request, banned=np.unique(np.concatenate(banned)))
            pending.append(PendingQuestion(question, request, [], []))
        return pending

    def retrieve(
        self, pending: Sequence[PendingQuestion], sources: Sequence[str] | None = None
    ) -> list[Candidates]:
        """The union of what sources bring, by quotas.

        sources: their names; None: all, and the fallback where they bring less than is asked.
        """
        names = list(self.sources if sources is None else sources)
        nothing: list[Retrieved | None] = [None] * len(pending)
        brought = {
            name: self._guarded(
                name, pending, partial(self._retrieved, self.sources[name], pending), nothing
            )
            for name in names
        }
        lists = []
        for place, entry in enumerate(pending):
            parts = {name: brought[name][place] for name in names}
            entry.unknown = [name for name, part in parts.items() if part is None]
            lists.append(self._union(parts))
        if self.fallback is not None and sources is None:
            self._fill_short(pending, lists)
        return lists

    def rank(
        self, pending: Sequence[PendingQuestion], lists: Sequence[Candidates]
    ) -> list[Candidates]:
        """The lists in the order of the click model's scores; without one, as they are."""
        ranker = self.ranker
        if ranker is None:
            return list(lists)

        def ranked() -> list[Candidates]:
            numbers = [candidates.items for candidates in lists]
            scores = ranker.scores([entry.question for entry in pending], numbers)
            return [
                candidates.by_scores(chances).moved_from(candidates, self.stages.index(RANK))
                for candidates, chances in zip(lists, scores)
            ]

        return self._guarded(RANK, pending, ranked, list(lists))

    def apply(
        self, name: str, pending: Sequence[PendingQuestion], lists: Sequence[Candidates]
    ) -> list[Candidates]:
        """The lists after one of the rules."""
        rule, stage = self.list_rules[name], self.stages.index(name)
        if not rule.draws:  # it moves items that were drawn: their places are others then
            lists = [candidates.without_place_propensity() for candidates in lists]
        return [
            rule.apply(candidates, entry.request, self.items).moved_from(candidates, stage)
            for entry, candidates in zip(pending, lists)
        ]

    # ---- parts of these -------------------------------------------------------------------------

    def _taken(
        self, questions: Sequence[PipelineQuestion], filters: Sequence[ItemFilter]
    ) -> list[Retrieved]:
        """What who asks took, by its history and the data of the sources, and when (nan: not
        known); nothing where no rule reads it."""
        taken = [(np.zeros(0, np.int64), np.zeros(0))] * len(questions)
        if not any(isinstance(rule, SeenItems) for rule in filters):
            return taken
        by_artifact = {source.artifact.folder: source for source in self.sources.values()}
        sources = [source for source in by_artifact.values() if source.has_histories]
        parts = [source.taken(questions) for source in sources]
        for place, question in enumerate(questions):
            if question.history is None and not parts:
                raise ValueError(
                    "the rule `seen` needs what was taken: no artifact holds it (they were "
                    "exported with --no-histories), so give a history"
                )
            items = [part[place][0] for part in parts]
            times = [part[place][1] for part in parts]
            if question.history is not None:
                numbers = self.items.ids.find(question.history)
                when = np.full(len(numbers), np.nan)
                if question.times is not None:
                    when = np.asarray(question.times, np.float64)[: len(numbers)]
                items.append(numbers)
                times.append(when)
            taken[place] = np.concatenate(items), np.concatenate(times)
        return taken

    def _retrieved(
        self, source: CandidateSource, pending: Sequence[PendingQuestion]
    ) -> list[Retrieved | None]:
        """What one source brings for each question."""
        return source.retrieve(
            [entry.question for entry in pending],
            allowed=pending[0].request.allowed if pending else None,
            banned=[entry.request.banned for entry in pending],
        )

    def _fill_short(self, pending: Sequence[PendingQuestion], lists: list[Candidates]) -> None:
        """Put the fallback's items behind lists that are shorter than what is asked; no score."""
        assert self.fallback is not None
        pairs = enumerate(zip(pending, lists))
        short = [place for place, (entry, one) in pairs if len(one) < entry.request.number]
        parts = self._retrieved(self.fallback, [pending[place] for place in short])
        for place, part in zip(short, parts):
            items = NO_IDS if part is None else part[0]
            new = items[~np.isin(items, lists[place].items)][: self.fallback.quota]
            if len(new):
                lists[place] = lists[place].with_added(new)
                pending[place].fallbacks.append("retrieve")
                self._count_fallback("retrieve", 1)

    def _union(self, parts: Mapping[str, Retrieved | None]) -> Candidates:
        """The union of what sources brought for one question.

        Scores of several sources have no scale in common: an item's is then the sum of
        1 / (60 + its place) over the sources that have it (reciprocal rank fusion).
        """
        items = np.zeros(0, np.int64)
        for name, part in parts.items():
            if part is not None:
                new = part[0][~np.isin(part[0], items)]
                items = np.append(items, new[: self.sources[name].quota])
        columns = list(self.sources)
        scores = np.zeros(len(items))
        sources = np.zeros((len(items), len(columns)), bool)
        for name, part in parts.items():
            if part is not None:
                places = places_of(items, part[0])
                has = places >= 0
                sources[has, columns.index(name)] = True
                if len(parts) == 1:
                    scores[has] = part[1][places[has]]
                else:
                    scores[has] += 1 / (FUSION + 1 + places[has])
        candidates = Candidates.of(items, scores, sources, len(self.stages))
        return candidates.by_scores(scores)

    def _guarded(
        self,
        stage: str,
        pending: Sequence[PendingQuestion],
        work: Callable[[], Result],
        otherwise: Result,
    ) -> Result:
        """The result of a stage; where it fails and there is a fallback, what comes otherwise."""
        limit = self._time_limits.get(stage)
        try:
            return work() if limit is None else limit.call(work)
        except Exception as error:
            if self.fallback is None:
                raise
            if not self._count_fallback(stage, len(pending)):
                log.warning("%s: %s failed: %s; the fallback answers", self.file.path, stage, error)
            for entry in pending:
                entry.fallbacks.append(stage)
            return otherwise

    def _count_fallback(self, stage: str, times: int) -> int:
        """Count that something took a stage's place; how often it did before."""
        with self._lock:
            before = self.fallbacks[stage]
            self.fallbacks[stage] += times
        return before

    def _named(self, pending: PendingQuestion, candidates: Candidates) -> PipelineAnswer:
        """The answer of one question."""
        shown = candidates.chosen(np.arange(min(pending.request.number, len(candidates))))
        names = self.items.ids.values[shown.items].tolist()
        sources, stages = np.array([*self.sources], dtype=object), self.stages
        items = []
        for place, name in enumerate(names):
            score = float(shown.scores[place])
            chances = shown.propensity[place], shown.place_propensity[place]
            propensity, at_place = (None if np.isnan(one) else float(one) for one in chances)
            moves = shown.moves[place].tolist()
            items.append(
                RecommendedItem(
                    item=name,
                    score=None if np.isnan(score) else score,
                    sources=tuple(sources[shown.sources[place]]),
                    moved={stage: move for stage, move in zip(stages, moves) if move},
                    propensity=propensity,
                    place_propensity=at_place,
                )
            )
        return PipelineAnswer(items, pending.unknown, pending.fallbacks)


def _time_limits(file: PipelineFile) -> dict[str, TimeLimit]:
    """Stage -> its limit, of those that have one."""
    limits = {stage: entry.within for stage, entry in file.retrieve.items()}
    limits[RANK] = None if file.rank is None else file.rank.within
    return {
        stage: TimeLimit(seconds=within / 1000)
        for stage, within in limits.items()
        if within is not None
    }

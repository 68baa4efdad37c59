"""Artifact: a trained model in use, without its config and its data.

model = shoal.load("exported/BPR")
model.recommend("196", topk=10), model.recommend(history=["50", "181"])  # [(item, score), ...]
clicks = shoal.load("exported/DeepFM").predict(frame)  # probabilities
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.clicks import Layout
from shoal.clicks.encoder import FeatureEncoder, LogEncoder
from shoal.config.errors import did_you_mean
from shoal.data.batch import Jagged
from shoal.data.sources.files import is_remote
from shoal.data.vocabulary import Words
from shoal.kernels.topk import DotProducts, Fill, Pairs
from shoal.models.folding import Folding, folding_of
from shoal.models.general.pop import Pop
from shoal.pages import html as look
from shoal.recommender.explanation import Breakdown, Explanation, of_terms, of_vectors
from shoal.recommender.history_shares import of_history
from shoal.recommender.predictions import Predictor
from shoal.recommender.ranked_items import RankedItems
from shoal.recommender.recommender import NO_IDS, History, RankingQuestion, Recommender, padded
from shoal.serving.artifact import files
from shoal.serving.artifact import score_parts as why
from shoal.serving.artifact.encoding import FILE as FEATURES
from shoal.serving.artifact.encoding import read_encoder
from shoal.serving.artifact.files import ArtifactError
from shoal.serving.artifact.graph import ExportedGraph, Running
from shoal.serving.artifact.histories import HISTORIES, StoredHistories
from shoal.serving.artifact.kept_histories import (
    ALWAYS_EXTENDED,
    HistoryCosts,
    KeptHistories,
    measure_costs,
)
from shoal.serving.artifact.locations import fetched, push
from shoal.serving.artifact.projector import Projector
from shoal.serving.artifact.spare_rows import SpareRows
from shoal.serving.artifact.tables import RowTable
from shoal.training.evaluation import predicted

DELTAS = 64  # that may lie upon each other
GRAPHS = {"clicks": "predict", "module": "answer"}  # kinds without a catalogue, and their use
POPULARITY = "popularity.safetensors"
FOLDED = "folded query"  # the field of histories that are folded in
FOLDING = "folding_vectors"  # the table of what a history is the sum of
FOLDING_LAYERS = "folding.safetensors"  # layers behind that sum
Fields = Mapping[str, Tensor]
Items = Sequence[Any] | None  # of a history


class Artifact:
    """A model that was exported; `shoal.load` opens one."""

    def __init__(self, folder: str | Path, check: bool = True):
        """check=False skips checks that were done just now: checksums, and the graph's shapes."""
        self.folder = Path(folder)
        self.manifest = files.read_manifest(self.folder)
        if self.manifest.get("kind") == "pipeline":
            raise ArtifactError(
                f"{folder} is a pipeline; `shoal pipeline serve {folder}` serves it"
            )
        if check:
            files.verify(self.folder, self.manifest)
        self.signature = files.read_json(self.folder, files.SIGNATURE, self.manifest)
        with files.damaged(f"artifact {folder}: signature.json"):
            self._open(check)

    def _open(self, check: bool) -> None:
        signature = self.signature
        self.kept_histories: KeptHistories | None = None
        self.spare = SpareRows()  # behind rows of items that came later
        self.num_added = 0  # items that came since it was opened
        self.model = str(signature["model"])
        self.kind = signature["kind"]
        if self.kind not in ("retrieval", "scorer", *GRAPHS):
            raise ArtifactError(f"artifact {self.folder} is damaged: kind {self.kind!r}")
        if self.kind == "scorer" and signature["query"] != "items":
            raise ArtifactError(f"artifact {self.folder} is of an older version; export it anew")
        self.tables = self._tables(check)
        self.graph: ExportedGraph | None = None
        self.extending: Running | None = None  # by new events, where histories can be kept
        if signature["graph"] is not None:
            dense = files.read_tensors(self.folder, "dense.safetensors", self.manifest)
            document = files.read_json(self.folder, "graph.json", self.manifest)
            dims = {name: table.dim for name, table in self.tables.items()}
            self.graph = ExportedGraph(document, dense, dims, f"{self.folder}/graph.json")
            self.running = Running(self.graph, self.tables)
            if "extend" in signature:
                document = files.read_json(self.folder, "extend.json", self.manifest)
                graph = ExportedGraph(document, dense, dims, f"{self.folder}/extend.json")
                self.extending = Running(graph, self.tables)
            if check:
                for running in (self.running, self.extending):
                    if running is not None:
                        running.graph.check()
        queries = signature["query"] == "constant" or "query_vectors" in self.tables
        if self.graph is None and not (self.kind == "retrieval" and queries):
            raise ArtifactError(f"artifact {self.folder} is damaged: it has no graph")
        if self.kind in GRAPHS:
            return
        self.max_len = int(signature["max_len"])
        self.repeatable = bool(signature["repeatable"])
        self.user_field = str(signature["user_field"])
        self.item_field = signature["item_field"]
        if not 0 <= self.max_len <= 1 << 16:
            raise ArtifactError(f"artifact {self.folder} is damaged: max_len {self.max_len}")
        kinds = signature.get("id_types", ["str", "str"])
        self.users = files.read_words(self.folder, self.manifest, "users", kinds[0])
        self.items = files.read_words(self.folder, self.manifest, "items", kinds[1])
        if self.kind == "retrieval" and self.tables["item_vectors"].size != len(self.items):
            raise ArtifactError(f"artifact {self.folder} is damaged: vectors and words of items")
        for name in {"item_vectors", "query_vectors", FOLDING} & self.tables.keys():
            self.tables[name].needs_every_row()

    def _tables(self, check: bool) -> dict[str, RowTable]:
        facts = self.signature["tables"]
        tables = {
            name: RowTable(self.folder, self.manifest, entry.get("same_as", name), entry)
            for name, entry in facts.items()
        }
        base = self.signature["base"]
        if base is None:
            return tables
        # The base of a delta lies in the same folder, and its checksum is that in the signature.
        folder, name = self.folder, base["name"]
        if not files.is_plain_name(name) or len(list(files.chain(folder, name, DELTAS))) > DELTAS:
            raise ArtifactError(f"artifact {folder} is damaged: its base {name!r} cannot be")
        if not (folder.parent / name).is_dir():
            raise ArtifactError(
                f"artifact {folder} is a delta of {name}, which is not beside it; bring it there"
            )
        below = Artifact(folder.parent / name, check)
        if below.manifest["sha256"] != base["sha256"]:
            raise ArtifactError(f"artifact {folder} is a delta of another {name}; export it anew")
        for name, table in tables.items():
            if name in below.tables and below.tables[name].dim == table.dim:
                table.below = below.tables[name]
        return tables

    def push(self, place: str) -> str:
        """Copy it to a folder or a URL (s3://bucket/name), whole or not at all; the URL.

        >>> shoal.load("exported/first").push("memory://models/first")  # as in shoal.load
        'memory://models/first'
        """
        return push(self.folder, place)

    def __repr__(self) -> str:
        return f"Artifact({', '.join(self._facts().values())}; {self.folder})"

    def _repr_html_(self) -> str:
        """A table of facts for notebooks."""
        return look.inline(f"Artifact {self.folder}", look.table(("", ""), self._facts().items()))

    def _facts(self) -> dict[str, str]:
        facts = {"model": f"{self.model} on {self.signature.get('data')}"}
        if self.kind not in GRAPHS:
            facts["users"] = f"{len(self.users) - 1:,} users"
            facts["items"] = f"{len(self.items) - 1:,} items"
        return facts | {"rows": f"rows as {self.signature.get('rows', 'float32')}"}

    # ---- what the model is asked ----------------------------------------------------------------

    def recommend(
        self,
        user: Any = None,
        history: Sequence[Any] | None = None,
        topk: int = 10,
        exclude: Iterable[Any] = (),
        only: Iterable[Any] | None = None,
        seen: bool | None = None,
        times: Sequence[int] | None = None,
    ) -> Any:
        """The best items for a user, or for a history (oldest first): [(item, score), ...].

        Of several users (a list, an array, a column) a dict of them, made in one pass. Unknown
        users and items do not fail: `by` and `unknown` of a ranking report how they were answered.

        times: of the history's items, in seconds, for models that read them; one more is when the
        model is asked.
        seen: whether what was taken before may come again; by default as the model was trained.
        exclude, only: items that may not come; the items that alone may come.
        """
        return self.recommender.recommend(
            user,
            history=history,
            times=times,
            topk=topk,
            exclude=list(exclude),
            only=None if only is None else list(only),
            seen=seen,
        )

    @cached_property
    def recommender(self) -> Recommender:
        """Ranks the catalogue."""
        self.needs_catalogue()
        return Recommender(self)

    def score(self, user: Any, items: Sequence[Any]) -> list[float]:
        """Scores of items for one user."""
        return self.recommender.score(RankingQuestion(user), items)

    def similar_items(self, item: Any, topk: int = 10) -> RankedItems:
        """Items whose vectors point the same way: [(item, cosine), ...], without itself."""
        return self.recommender.similar_items(item, topk)

    def explain(
        self, user: Any = None, item: Any = None, history: Items = None, times: Items = None
    ) -> Explanation:
        """Why an item has its score for a user or a history: (what, share) each, and the rest."""
        return self.recommender.explain(RankingQuestion(user, history, times), item)

    def vectors(self, what: str, words: Sequence[Any]) -> Tensor:
        """Vectors of users or items: [n, dim]. Their dot product is the score."""
        self.needs_catalogue()
        vectors = self.item_vectors
        if what == "item":
            return vectors[torch.from_numpy(self.items.need(words, "item"))]
        if what != "user":
            raise ValueError(f"vectors of {what!r}; there are user and item")
        return self.queries(self.of_users(self.users.need(words, "user")))

    def needs_clicks(self, kinds: Container[str] = ("clicks",)) -> None:
        """Refuse what only a click model (or a model of these kinds) answers."""
        if self.kind not in kinds:
            raise ValueError(f"{self.model} ranks items: it predicts no clicks; use recommend")

    def needs_catalogue(self) -> None:
        """Refuse what a click model cannot answer."""
        if self.kind in GRAPHS:
            raise ValueError(
                f"{self.model} predicts clicks of samples, not items; use {GRAPHS[self.kind]}"
            )

    # ---- its catalogue, as a recommender asks for it (recommender/recommender.py) ----------------

    @property
    def reads_histories(self) -> bool:
        """True for a model that recommends for histories of anybody."""
        if self.kind in GRAPHS:
            return False
        if self.folding is not None:
            return True
        if self.graph is None:
            return self.signature["query"] == "constant"
        return not self._reads(self.user_field)

    @cached_property
    def folding(self) -> Folding | None:
        """How a model without a graph of histories answers one; None: it does not."""
        facts = self.signature.get("folding")
        if facts is None:
            return None
        with files.damaged(f"artifact {self.folder}: how histories are folded in"):
            if self.kind != "retrieval" or not isinstance(facts, dict):
                raise ValueError("it has no item vectors")
            vectors = self.tables[FOLDING].whole() if FOLDING in self.tables else None
            tensors = {}
            if FOLDING_LAYERS in self.manifest["files"]:
                tensors = files.read_tensors(self.folder, FOLDING_LAYERS, self.manifest)
            folding = folding_of(facts, vectors, tensors)
            if vectors is not None and len(vectors) != len(self.items):
                raise ValueError("vectors and words of items")
            return folding

    def need_histories(self, timed: bool) -> None:
        """Refuse histories that the model cannot read."""
        if not self.reads_histories and self.signature.get("explained_by") in ("terms", "history"):
            raise ValueError(
                f"an artifact of {self.model} holds what the users of its data took, not what "
                "makes an answer of another history; ask the run (shoal recommend RUN --history "
                "A,B), or export a model that reads histories, such as SASRec"
            )
        if not self.reads_histories:
            raise ValueError(
                f"{self.model} learned a vector for each user of its data, and a history has none; "
                "train on with these interactions (shoal train --from), or ask for similar_items"
            )
        if not timed and self._reads("history_time"):
            raise ValueError(
                f"{self.model} reads when items were taken: give times, in seconds, for each item"
            )

    def _reads(self, field: str) -> bool:
        return self.graph is not None and self.graph.inputs.get(field, {}).get("used", False)

    def of_users(self, users: np.ndarray) -> Fields:
        """The model's inputs for known users: their ids, and their histories if it reads them."""
        if not self._reads("history"):
            return {self.user_field: torch.from_numpy(users)}
        return self._query(users, [self.history_of(int(user)) for user in users])

    def of_histories(self, histories: Sequence[History], user: int = 0) -> Fields:
        """The model's inputs for histories of anybody, as if they were of this user."""
        if self.folding is not None:
            return {
                self.user_field: torch.full((len(histories),), user),
                FOLDED: self._folded(self.folding, histories),
            }
        return self._query(np.full(len(histories), user), histories)

    def _folded(self, folding: Folding, histories: Sequence[History]) -> Tensor:
        """The query vectors of histories [b, dim]."""
        different = [np.unique(history.items) for history in histories]
        offsets = torch.tensor([0, *map(len, different)]).cumsum(0)
        lists = Jagged(torch.from_numpy(np.concatenate([NO_IDS, *different])), offsets)
        with files.damaged(f"artifact {self.folder}: how histories are folded in"):
            return folding.queries(lists, self.item_vectors)

    def _query(self, users: np.ndarray, histories: Sequence[History]) -> Fields:
        fields = {self.user_field: users, **padded(histories, self.max_len)}
        return {name: torch.from_numpy(one) for name, one in fields.items()}

    def history_of(self, user: int) -> History:
        """The history of a known user, oldest first: numbers of items."""
        self._need_stored()
        return History(NO_IDS) if self._stored is None else self._stored.history_of(user)

    def seen(self, users: np.ndarray) -> Pairs:
        """All that each of these users took, as pairs: place in `users` [m], item [m]."""
        self._need_stored()
        return (NO_IDS, NO_IDS) if self._stored is None else self._stored.pairs(users)

    def _need_stored(self) -> None:
        reads = self.reads_histories and self.folding is None
        if self._stored is None and (reads or not self.repeatable):
            raise ValueError(
                f"{self.folder} was exported without histories (--no-histories): give the history"
            )

    @cached_property
    def _stored(self) -> StoredHistories | None:
        if HISTORIES not in self.manifest["files"]:
            return None
        return StoredHistories(self.folder, self.manifest, len(self.users), len(self.items))

    @cached_property
    def popularity(self) -> np.ndarray:
        """How often each item was taken: [num_items]."""
        if POPULARITY in self.manifest["files"]:
            tensors = files.read_tensors(self.folder, POPULARITY, self.manifest, ["counts"])
            counts = tensors["counts"]
            if counts.shape != (len(self.items),) or counts.dtype != torch.int64:
                raise ArtifactError(f"artifact {self.folder} is damaged: {POPULARITY}")
            return counts.numpy()
        stored = self._stored
        taken = NO_IDS if stored is None else stored.items
        return np.bincount(taken, minlength=len(self.items))

    @cached_property
    def item_vectors(self) -> Tensor:
        """The vectors of all items [num_items, dim], padding included."""
        if self.kind != "retrieval":
            raise ValueError(f"{self.model} scores pairs: its users and items have no vectors")
        return self.tables["item_vectors"].whole()

    def breakdown(self, user: int, history: History | None, item: int) -> Breakdown:
        """The score of an item as a sum."""
        way = self.signature.get("explained_by")
        if way == "history":
            return of_history(self, user, history or self.history_of(user), item, self.max_len)
        if way not in ("alike", "vectors", "terms", "solved"):
            raise ValueError(
                f"this artifact of {self.model} holds what was made of users, not how, so it "
                "cannot explain its scores; ask the run that it was exported from: "
                "shoal recommend RUN --user ID --explain"
            )
        someone = np.array([user])
        asked_by = self.of_users(someone) if history is None else self.of_histories([history])
        if way == "alike":
            score = self.recommender.scores(self.of_users(someone), 1, torch.tensor([item]))
            return of_terms(NO_IDS, np.zeros(0), float(score[0, 0]), Pop.rest_is)
        vectors = self.item_vectors
        with files.damaged(f"artifact {self.folder}: how it is explained"):
            query = self.queries(asked_by)[0]
            if way == "terms":
                return why.terms(query, vectors, item)
            if way == "vectors":
                taken = self.seen(someone)[1] if history is None else np.unique(history.items)
                return of_vectors(query, taken, vectors, item)
            learned = None if history is None else np.unique(history.items)
            if learned is None:
                self._need_stored()
                learned = None if self._stored is None else self._stored.learned_by(user)
            if learned is None:
                raise ValueError("it does not say what users learned from")
            return why.solved(query, vectors, item, learned, self.signature.get("equations"))

    @cached_property
    def projector(self) -> Projector:
        """Makes rows of new items of their vectors."""
        return Projector(self.folder, self.manifest, self.signature)

    @cached_property
    def captions(self) -> Mapping[str, Words]:
        """Titles and pictures of items, where the data had them."""
        return files.read_captions(self.folder, self.manifest, len(self.items))

    def prepare(self, batch_size: int = 0) -> None:
        """Do everything now that would otherwise be done on first use, at the cost of a request.

        batch_size: the graph is prepared for query vectors of 1 to so many users or histories.
        """
        if self.kind == "retrieval":
            _ = self.item_vectors
        if self.kind not in GRAPHS:
            _ = self._stored, self.users.find([]), self.items.values, self.captions
            _ = self.popularity, self.projector
        if self.kind == "retrieval" and self.graph is not None:
            self.running.prepare(batch_size)

    def fill(self, query: Fields, items: Tensor | None) -> Fill:
        """The function that writes the scores of a query for these items; None: for all items."""
        if self.kind == "retrieval":
            vectors = self.item_vectors
            return DotProducts(self.queries(query), vectors if items is None else vectors[items])

        def fill(a: int, b: int, first: int, last: int, out: Tensor) -> None:
            part = {name: value[a:b] for name, value in query.items()}
            item_ids = torch.arange(first, last) if items is None else items[first:last]
            scores = self.running.pairs(part, b - a, item_ids)
            out.copy_(self._checked(scores, (b - a, last - first)))

        return fill

    def keep_histories(
        self, most_bytes: int, costs: HistoryCosts | None = None
    ) -> KeptHistories | None:
        """Keep computed histories between requests, in at most `most_bytes`; None: not possible.

        costs: when histories are extended and when they are computed whole; measured by default.
        """
        longest = 0 if self.kind != "retrieval" else self.max_len - 1
        if self.extending is None or most_bytes < 1 or longest < 2 or len(self.items) < 2:
            return None
        width = int(self.signature["extend"]["width"])
        if not 0 < width <= 1 << 24:
            raise ArtifactError(f"artifact {self.folder} is damaged: states of {width} numbers")
        if costs is None:
            items = np.arange(longest) % (len(self.items) - 1) + 1
            history = History(
                items, np.arange(longest + 1) if self._reads("history_time") else None
            )
            costs = measure_costs(
                KeptHistories(self.extended, width, self.max_len, 1 << 62, ALWAYS_EXTENDED),
                self.running.samples,
                self.of_histories([history] * 16),
            )
        self.kept_histories = KeptHistories(self.extended, width, self.max_len, most_bytes, costs)
        return self.kept_histories

    def extended(self, fields: dict[str, Tensor]) -> Tensor:
        """What layers make of new places of a history, and query vectors: [new, width + dim]."""
        assert self.extending is not None
        numbers = int(self.signature["extend"]["width"]) + self.tables["item_vectors"].dim
        return self._checked(self.extending.once(fields), (len(fields["new"]), numbers))

    def queries(self, query: Fields) -> Tensor:
        """Query vectors [b, dim]; the model must have item vectors."""
        users = query[self.user_field]
        if FOLDED in query:
            vectors = query[FOLDED]
        elif self.kept_histories is not None:
            vectors = self.kept_histories.queries(query, self.running.samples)
        elif self.graph is not None:
            vectors = self.running.samples(query)
        elif self.signature["query"] == "constant":
            vectors = torch.ones(len(users), 1)
        else:
            vectors = self.tables["query_vectors"].rows(users)
        return self._checked(vectors, (len(users), self.tables["item_vectors"].dim))

    def _checked(self, answer: Tensor, shape: tuple[int, int]) -> Tensor:
        """The answer of a graph; an error where it is not floats of this shape."""
        if answer.shape != shape or not answer.is_floating_point():
            description = f"{answer.dtype} {list(answer.shape)}, not floats {list(shape)}"
            raise ArtifactError(f"artifact {self.folder} is damaged: its graph gives {description}")
        return answer

    # ---- click models ---------------------------------------------------------------------------

    def logits(self, fields: Mapping[str, Tensor | Jagged]) -> Tensor:
        """The log odds of a click of samples, by field: [b]; [b, labels] of several labels."""
        self.needs_clicks(GRAPHS)
        assert self.graph is not None
        used = {name for name, facts in self.graph.inputs.items() if facts["used"]}
        missing = used - fields.keys()
        if missing:
            word = min(missing)
            raise ValueError(f"samples have no {word!r}{did_you_mean(word, fields)}")
        return self.running.samples(fields)

    def answer(self, inputs: Mapping[str, Any]) -> Tensor:
        """The answer of a custom module for inputs by name, arrays or lists: [b, ...]."""
        return self.logits({name: torch.as_tensor(one) for name, one in inputs.items()})

    def predict(self, rows: Any) -> np.ndarray:
        """The probability of a click of each row: [n]; of several labels [n, labels].

        rows: a frame or a dict of columns as the training data had them; or tensors by field, as
        the model reads them. A label that was learned as any number (loss: squared) is given as it
        is.
        """
        self.needs_clicks()
        if isinstance(rows, Mapping) and all(isinstance(v, Tensor | Jagged) for v in rows.values()):
            return predicted(self.logits(rows), self.predictor.losses).numpy()
        return self.predictor.predict(rows)

    @cached_property
    def predictor(self) -> Predictor:
        """Predicts from raw rows."""
        losses = [loss for _, loss in self.labels]
        return Predictor(self.encoder, lambda b: self.logits({**b.ids, **b.dense}), losses)

    @cached_property
    def encoder(self) -> FeatureEncoder | LogEncoder:
        """The encoder of raw rows into the fields that the model reads."""
        facts = self.signature["layout"]
        if facts is None:
            if FEATURES not in self.manifest["files"]:
                raise ValueError(
                    f"{self.folder} has no words of features (an older version): export it again"
                )
            return read_encoder(self.folder, self.manifest)
        with files.damaged(f"artifact {self.folder}: layout"):
            return LogEncoder(
                Layout.from_entry(facts), self.signature["format"], dict(self.signature["apart"])
            )

    @property
    def labels(self) -> list[list[str]]:
        """Names of what a click model predicts, and how each was learned."""
        return self.signature["labels"]


def load(place: str | Path) -> Artifact:
    """Open an artifact of `shoal export`. Every byte is checked first.

    place: its folder, or a URL (s3://, gs://, https://, file://, ...) that `push` wrote to or a
    server shows: it is copied once to SHOAL_CACHE (else ~/.cache/shoal).

    >>> len(shoal.load("exported/first").recommend("7", topk=5))  # as shoal.export's example has it
    5
    """
    return Artifact(fetched(str(place)) if is_remote(place) else place)

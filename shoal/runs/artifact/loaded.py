"""Artifact: a trained model in use, without its config and its data.

model = shoal.load("exported/BPR")
model.recommend("196", topk=10), model.recommend(history=["50", "181"])  # [(item, score), ...]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.config.errors import did_you_mean
from shoal.data.batch import Jagged
from shoal.data.clicks import Layout
from shoal.data.encoder import FeatureEncoder, LogEncoder
from shoal.kernels.topk import DotProducts, Fill, Pairs, plain, rank
from shoal.runs.artifact import files
from shoal.runs.artifact.encoding import FILE as FEATURES
from shoal.runs.artifact.encoding import read_encoder
from shoal.runs.artifact.files import ArtifactError
from shoal.runs.artifact.graph import Graph
from shoal.runs.artifact.histories import FILE, History, Told, asked_at, padded, padded_times
from shoal.runs.artifact.running import Running
from shoal.runs.artifact.tables import RowTable
from shoal.runs.artifact.vocabulary import read_words
from shoal.runs.predictions import Predictor
from shoal.training.evaluation import predicted

DELTAS = 64  # that may lie upon each other
MOST_LEN = 1 << 16  # items of a history that a model may read
GRAPHS = {"clicks": "predict", "module": "answer"}  # kinds without a catalogue, and their use
Ranking = list[tuple[str, float]]


class Artifact:
    """A model that was exported; `shoal.load` opens one."""

    def __init__(self, folder: str | Path, check: bool = True):
        """check=False leaves out what was checked just now: checksums, and shapes of the graph."""
        self.folder = Path(folder)
        self.manifest = files.read_manifest(self.folder)
        if check:
            files.verify(self.folder, self.manifest)
        self.signature = files.read_json(self.folder, files.SIGNATURE, self.manifest)
        try:
            self._open(check)
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            raise ArtifactError(f"artifact {folder} is damaged: signature: {error}") from error

    def _open(self, check: bool) -> None:
        signature = self.signature
        self.model, self.kind = str(signature["model"]), signature["kind"]
        if self.kind not in ("retrieval", "scorer", *GRAPHS):
            raise ArtifactError(f"artifact {self.folder} is damaged: kind {self.kind!r}")
        if self.kind == "scorer" and signature["query"] != "items":
            raise ArtifactError(f"artifact {self.folder} is of an older version; export it anew")
        self.tables = self._tables(check)
        self.graph: Graph | None = None
        if signature["graph"] is not None:
            dense = files.read_tensors(self.folder, "dense.safetensors", self.manifest)
            document = files.read_json(self.folder, "graph.json", self.manifest)
            dims = {name: table.dim for name, table in self.tables.items()}
            self.graph = Graph(document, dense, dims, f"{self.folder}/graph.json")
            if check:
                self.graph.check()
            self.running = Running(self.graph, self.tables)
        queries = signature["query"] == "constant" or "query_vectors" in self.tables
        if self.graph is None and not (self.kind == "retrieval" and queries):
            raise ArtifactError(f"artifact {self.folder} is damaged: it has no graph")
        if self.kind in GRAPHS:
            return
        self.max_len, self.repeatable = int(signature["max_len"]), bool(signature["repeatable"])
        self.user_field, self.item_field = str(signature["user_field"]), signature["item_field"]
        if not 0 <= self.max_len <= MOST_LEN:
            raise ArtifactError(f"artifact {self.folder} is damaged: max_len {self.max_len}")
        kinds = signature.get("id_types", ["str", "str"])
        self.users = read_words(self.folder, self.manifest, "users", kinds[0])
        self.items = read_words(self.folder, self.manifest, "items", kinds[1])
        if self.kind == "retrieval" and self.tables["item_vectors"].size != len(self.items):
            raise ArtifactError(f"artifact {self.folder} is damaged: vectors and words of items")
        for name in {"item_vectors", "query_vectors"} & self.tables.keys():
            self.tables[name].needs_every_row()

    def _tables(self, check: bool) -> dict[str, RowTable]:
        facts = self.signature["tables"]
        own = {
            name: RowTable(self.folder, self.manifest, one.get("same_as", name), one)
            for name, one in facts.items()
        }
        base = self.signature["base"]
        if base is None:
            return own
        below = open_base(self.folder, base, check)
        for name, table in own.items():
            if name in below.tables and below.tables[name].dim == table.dim:
                table.below = below.tables[name]
        return own

    # ---- what the model is asked ----------------------------------------------------------------

    @property
    def reads_histories(self) -> bool:
        """Whether it recommends for a history, of anybody."""
        if self.kind in GRAPHS:
            return False
        if self.graph is None:
            return self.signature["query"] == "constant"
        used = {name for name, facts in self.graph.inputs.items() if facts["used"]}
        return self.user_field not in used

    @property
    def reads_times(self) -> bool:
        """Whether it reads when the items of a history were taken."""
        return self._reads("history_time")

    def recommend(
        self,
        user: object = None,
        history: Sequence[object] | None = None,
        topk: int = 10,
        exclude: Iterable[object] = (),
        only: Iterable[object] | None = None,
        seen: bool | None = None,
        times: Sequence[int] | None = None,
    ) -> Ranking:
        """The best items for a user, or for a history (oldest first): [(item, score), ...].

        times: of the history's items, in seconds, for models that read them; one more is when the
        model is asked.
        seen: whether what was taken before may come again; by default as the model was trained.
        exclude, only: items that may not come; the items that alone may come.
        """
        self.needs_catalogue()
        if (user is None) == (history is None):
            raise ValueError("give a user or a history, one of them")
        if topk < 1:
            raise ValueError(f"topk is {topk}; it must be 1 or more")
        if history is None:
            numbers = self.users.need([user], "user")
            taken = self.history_of(int(numbers[0]))
        else:
            numbers, taken = np.zeros(1, np.int64), self.typed(history, times)
        again = self.repeatable if seen is None else seen
        out = [self.items.need(list(exclude), "item"), *([] if again else [taken.items])]
        pairs = np.concatenate(out)
        allowed = None if only is None else np.unique(self.items.need(list(only), "item"))
        found, scores = self.rank(
            self.query(numbers, [taken]), topk, (np.zeros_like(pairs), pairs), allowed
        )
        return self.named(found[0], scores[0])

    def named(self, items: np.ndarray, scores: np.ndarray) -> Ranking:
        """Numbers of items and their scores, as words; places without an item are left out."""
        kept = items > 0
        return list(zip(self.items.values[items[kept]].tolist(), scores[kept].tolist()))

    def score(self, user: object, items: Sequence[object]) -> list[float]:
        """Scores of items for one user."""
        self.needs_catalogue()
        numbers, wanted = self.users.need([user], "user"), self.items.need(items, "item")
        query = self.query(numbers, [self.history_of(int(numbers[0]))])
        return self._scores(query, wanted)[0].tolist()

    def score_history(
        self,
        history: Sequence[object],
        items: Sequence[object],
        times: Sequence[int] | None = None,
    ) -> list[float]:
        """Scores of items for a history, oldest first."""
        self.needs_catalogue()
        query = self.query(np.zeros(1, np.int64), [self.typed(history, times)])
        return self._scores(query, self.items.need(items, "item"))[0].tolist()

    def vectors(self, what: str, words: Sequence[object]) -> Tensor:
        """Vectors of users or items: [n, dim]. Their dot product is the score."""
        self.needs_catalogue()
        if self.kind != "retrieval":
            raise ValueError(f"{self.model} scores pairs: its users and items have no vectors")
        if what == "item":
            return self.tables["item_vectors"].rows(
                torch.from_numpy(self.items.need(words, "item"))
            )
        if what != "user":
            raise ValueError(f"vectors of {what!r}; there are user and item")
        numbers = self.users.need(words, "user")
        return self.queries(self.query(numbers, [self.history_of(int(n)) for n in numbers]))

    def similar_items(self, item: object, topk: int = 10) -> Ranking:
        """Items whose vectors point the same way: [(item, cosine), ...], without itself."""
        own = self.vectors("item", [item])
        number = self.items.need([item], "item")
        units = self._units
        fill = DotProducts(own / own.norm(dim=1, keepdim=True).clamp(min=1e-12), units)
        without = (np.zeros(2, np.int64), np.array([0, number[0]]))
        found, scores = rank(fill, 1, len(units), topk, without)
        return self.named(*(one[0] for one in plain(found, scores, None)))

    @cached_property
    def _units(self) -> Tensor:
        vectors = self.catalogue
        return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-12)

    @cached_property
    def catalogue(self) -> Tensor:
        """The vectors of all items [num_items, dim], padding included."""
        return self.tables["item_vectors"].whole()

    @cached_property
    def _histories(self) -> Told | None:
        if FILE not in self.manifest["files"]:
            return None
        return Told(self.folder, self.manifest, len(self.users), len(self.items))

    def history_of(self, user: int) -> History:
        """What a known user took, oldest first: numbers of items."""
        if self._histories is None:
            if self.reads_histories or not self.repeatable:
                raise ValueError(
                    f"{self.folder} was exported without histories (--no-histories): give the "
                    "history yourself, or export again with them"
                )
            return History(np.zeros(0, np.int64))
        return self._histories.of(user)

    def seen_pairs(self, users: np.ndarray) -> Pairs:
        """What each of these users took, as pairs: place in `users` [m], item [m]."""
        if self._histories is None:
            self.history_of(0)
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return self._histories.pairs(users)

    def prepare(self) -> None:
        """Read now what would else be read when it is first needed."""
        _ = self.catalogue, self._histories, self.users.find([])

    def typed(self, history: Sequence[object], times: Sequence[int] | None = None) -> History:
        """Numbers of a history's items; refused by a model that does not read histories."""
        if not self.reads_histories:
            raise ValueError(
                f"{self.model} learned a vector for each user of its data, and a history has none: "
                "it cannot recommend for somebody new. Go on training with these interactions "
                "(shoal train --from), take a model that reads histories such as SASRec, or ask "
                "for similar_items"
            )
        items = self.items.need(list(history), "item")
        if times is None and self.reads_times:
            raise ValueError(
                f"{self.model} reads when items were taken: give times, in seconds, one for each "
                "item, and behind them, if you like, that of the request"
            )
        return History(items, None if times is None else asked_at(times, len(items)))

    def needs_clicks(self) -> None:
        """Refuse what only a click model answers."""
        if self.kind != "clicks":
            raise ValueError(f"{self.model} ranks items: it predicts no clicks; use recommend")

    def needs_catalogue(self) -> None:
        """Refuse what a click model cannot answer."""
        if self.kind in GRAPHS:
            raise ValueError(
                f"{self.model} predicts clicks of samples: it knows neither users nor a catalogue "
                f"of items; use {GRAPHS[self.kind]}"
            )

    # ---- by numbers, many at a time -------------------------------------------------------------

    def query(self, users: np.ndarray, histories: Sequence[History] | None) -> dict[str, Tensor]:
        """What the model is given to ask for users [b] with these histories, oldest first."""
        found = {self.user_field: torch.from_numpy(users)}
        if self._reads("history"):
            assert histories is not None
            found["history"] = torch.from_numpy(padded(histories, self.max_len))
            if self.reads_times:
                found["history_time"] = torch.from_numpy(padded_times(histories, self.max_len))
        return found

    def query_of_known(self, users: np.ndarray) -> dict[str, Tensor]:
        """The same for users that the model knows, with the histories that it has of them."""
        reads = self._reads("history")
        return self.query(users, [self.history_of(int(user)) for user in users] if reads else None)

    def _reads(self, field: str) -> bool:
        return self.graph is not None and field in self.graph.inputs

    def rank(
        self,
        query: Mapping[str, Tensor],
        topk: int,
        without: Pairs | None = None,
        allowed: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best items of each query [b, k] (0: none left) and their scores [b, k].

        allowed: the items that alone may come, ascending; `without`: pairs that may not.
        """
        size = len(query[self.user_field])
        num_items = len(self.items) if allowed is None else len(allowed)
        pads = np.zeros(size, np.int64)
        rows, banned = without if without is not None else (pads[:0], pads[:0])
        if allowed is None:
            rows = np.concatenate([rows, np.arange(size)])
            banned = np.concatenate([banned, pads])
        else:
            place = np.searchsorted(allowed, banned).clip(max=max(0, num_items - 1))
            inside = allowed[place] == banned if num_items else np.zeros(len(banned), bool)
            rows, banned = rows[inside], place[inside]
        with torch.inference_mode():
            found, scores = rank(self._fill(query, allowed), size, num_items, topk, (rows, banned))
        return plain(found, scores, allowed)

    def _fill(self, query: Mapping[str, Tensor], allowed: np.ndarray | None) -> Fill:
        ids = None if allowed is None else torch.from_numpy(allowed)
        if self.kind == "retrieval":
            vectors = self.catalogue if ids is None else self.catalogue[ids]
            return DotProducts(self.queries(query), vectors)

        def fill(a: int, b: int, first: int, last: int, out: Tensor) -> None:
            part = {name: value[a:b] for name, value in query.items()}
            wanted = torch.arange(first, last) if ids is None else ids[first:last]
            out.copy_(self._pair_scores(part, wanted))

        return fill

    def queries(self, query: Mapping[str, Tensor]) -> Tensor:
        """Query vectors [b, dim] of a model that has such."""
        users = query[self.user_field]
        if self.graph is not None:
            found = self.running.samples(query)
        elif self.signature["query"] == "constant":
            found = torch.ones(len(users), 1)
        else:
            found = self.tables["query_vectors"].rows(users)
        self._check(found, (len(users), self.tables["item_vectors"].dim))
        return found

    def _check(self, found: Tensor, shape: tuple[int, int]) -> None:
        """Whether a graph gave what is asked of it."""
        if found.shape != shape or not found.is_floating_point():
            told = f"{found.dtype} {list(found.shape)}, not floats {list(shape)}"
            raise ArtifactError(f"artifact {self.folder} is damaged: its graph gives {told}")

    def _pair_scores(self, query: Mapping[str, Tensor], items: Tensor) -> Tensor:
        """Scores of items [n] for every query: [b, n]."""
        size = len(query[self.user_field])
        found = self.running.pairs(query, size, items)
        self._check(found, (size, len(items)))
        return found

    def _scores(self, query: Mapping[str, Tensor], items: np.ndarray) -> Tensor:
        """Scores of items [n] for every query: [b, n]."""
        with torch.inference_mode():
            if self.kind == "scorer":
                return self._pair_scores(query, torch.from_numpy(items))
            vectors = self.tables["item_vectors"].rows(torch.from_numpy(items))
            return self.queries(query) @ vectors.T

    # ---- click models ---------------------------------------------------------------------------

    def logits(self, fields: Mapping[str, Tensor | Jagged]) -> Tensor:
        """The log odds of a click of samples, by field: [b]; [b, labels] of several labels."""
        if self.kind not in GRAPHS:
            raise ValueError(f"{self.model} ranks items: it predicts no clicks; use recommend")
        assert self.graph is not None
        used = {name for name, facts in self.graph.inputs.items() if facts["used"]}
        missing = used - fields.keys()
        if missing:
            word = min(missing)
            raise ValueError(f"samples have no {word!r}{did_you_mean(word, fields)}")
        return self.running.samples(fields)

    def answer(self, inputs: Mapping[str, Any]) -> Tensor:
        """What a model of one's own answers for inputs by name, arrays or lists: [b, ...]."""
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
        """What turns raw rows into the fields that the model reads."""
        facts = self.signature["layout"]
        if facts is None:
            if FEATURES not in self.manifest["files"]:
                raise ValueError(
                    f"{self.folder} was exported by an older version, which kept no words of "
                    "features: export it again"
                )
            return read_encoder(self.folder, self.manifest)
        try:
            layout = Layout(
                *(tuple(facts["slots"]), tuple(facts["dense"]), facts["label"]),
                *(facts["rows"], facts["others"]),
            )
            return LogEncoder(layout, self.signature["format"], dict(self.signature["apart"]))
        except (LookupError, TypeError, ValueError) as error:
            raise ArtifactError(f"artifact {self.folder} is damaged: layout: {error}") from error

    @property
    def labels(self) -> list[list[str]]:
        """Names of what a click model predicts, and how each was learned."""
        return self.signature["labels"]


def open_base(folder: Path, base: Mapping[str, Any], check: bool = True) -> Artifact:
    """The artifact that a delta builds upon: it lies beside it, and is the very same one."""
    name = base["name"]
    if not files.is_plain_name(name) or len(list(files.chain(folder, name, DELTAS))) > DELTAS:
        raise ArtifactError(f"artifact {folder} is damaged: its base {name!r} cannot be")
    path = folder.parent / name
    if not path.is_dir():
        raise ArtifactError(
            f"artifact {folder} is a delta of {name}, which is not beside it; bring it there, or "
            "export a whole one"
        )
    found = Artifact(path, check)
    if found.manifest["sha256"] != base["sha256"]:
        raise ArtifactError(f"artifact {folder} is a delta of another {name}; export it anew")
    return found


def load(folder: str | Path) -> Artifact:
    """Open an artifact of `shoal export`. Every byte is checked first.

    >>> len(shoal.load("exported/first").recommend("7", topk=5))  # as shoal.export's example has it
    5
    """
    return Artifact(folder)

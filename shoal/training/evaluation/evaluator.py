"""Evaluator: exact metrics, the same for every number of ranks and every batch size.

Users are cut into tiles of a fixed size, items into blocks of a fixed size. A tile's arithmetic
does not depend on who computes it nor on what else is computed, so results agree to the last bit
before they are summed. Memory holds a tile of users × a block of items, never users × items.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.config.schema import DataSection, EvalSection
from shoal.data.batch import Batch, Jagged
from shoal.data.dataset import Dataset, Split
from shoal.data.history import Histories
from shoal.distributed.world import World
from shoal.kernels.parallel import ThreadTeam
from shoal.kernels.topk import ProductTopK, TopK, takes_scores
from shoal.models.base import Model, Retrieval
from shoal.training.evaluation.cold import Cold, cold_line
from shoal.training.evaluation.groups import groups_of
from shoal.training.evaluation.pair_counts import PairCounts
from shoal.training.evaluation.popular import (
    PopularLists,
    PopularVectors,
    popular_line,
    remedy,
)
from shoal.training.evaluation.splits import EARLIER, SplitData, UserLists
from shoal.training.evaluation.user_results import UserResults, chosen_users
from shoal.training.metrics import MetricSet, Ranked, Valued, pair_counts

log = logging.getLogger("shoal")
Scorer = Callable[[Tensor, Tensor], Tensor]  # items [n], their vectors -> scores [b, n]
Progress = Callable[[Iterator[int], int], Iterator[int]]
TILE_USERS = 256
BLOCK_ITEMS = 1 << 14
MEASURED_TILES = 4  # of users, for an estimate; of evaluations with fewer pairs nothing is measured
MEASURED_PAIRS = 1 << 29


class Evaluator:
    """Evaluates a model on the valid and test splits of one data set."""

    def __init__(
        self,
        dataset: Dataset,
        section: EvalSection,
        world: World,
        seed: int,
        max_len: int,
        sequential: bool = False,
        timed: bool = False,
    ):
        self.timed = timed  # whether the model reads when things happened
        self.dataset = dataset
        self.section = section
        self.world = world
        self.seed = seed
        self.sequential, self.max_len = sequential, max_len
        popularity = np.bincount(dataset.item_ids("train"), minlength=dataset.num_items)
        self.popularity = torch.from_numpy(popularity)
        self.groups = groups_of(dataset, section.groups)
        self._splits: dict[str, tuple[SplitData, Histories | None]] = {}
        self._encoded: Tensor | None = None  # vectors of all items, where they are one block
        # Of the last evaluation: whether the model takes steps, metrics, what users got, and
        # figures of those without training.
        self.trainable = True
        self.values: dict[str, float] = {}
        self.results: UserResults | None = None
        self.cold: dict[str, Any] = {}
        self._listeners: list[Callable[[Any], None]] = []  # of blocks, in the present evaluation

    def evaluate(
        self,
        model: Model,
        split: Split,
        progress: Progress = lambda steps, total: steps,
        keep: bool = False,
    ) -> dict[str, float]:
        """Metric name -> value, equal on every rank.

        keep: `results` has what users got, of the test split.
        """
        data, histories = self._prepared(split)
        metrics = self._metrics(chosen_users(data.users, self.seed) if keep else None)
        cold = None
        if split == "test" and metrics.wants_ranked and not metrics.wants_valued:
            cold_part = Cold(self.dataset, data, self._metrics)
            cold = cold_part if cold_part.is_there else None
        self._listeners = [metrics.update, *([] if cold is None else [cold.add])]
        if metrics.wants_valued and data.mode == "full":
            raise ValueError(
                "AUC, LogLoss, MAE and RMSE need labels, and full ranking has none; "
                "use eval.mode labeled, uniN or popN, or leave those metrics out"
            )
        was_training, self.trainable = model.training, model.trainable
        model.eval()
        self._rank(model, data, histories, metrics, progress)
        model.train(was_training)
        self.cold = {} if cold is None else cold.result(self.world)
        kept_users = metrics.kept_values()
        self.results = None
        if kept_users is not None:
            positives, group = data.to_find(kept_users.users.numpy()), self.section.groups.user
            self.results = UserResults(
                self.dataset, kept_users, metrics.num_users, positives, group
            )
        self.values = metrics.compute(f"the {split} split of {self.dataset.name!r}")
        return self.values

    def measure(self, model: Model, split: Split) -> float:
        """Seconds that evaluating a split takes, from a few tiles of its users; 0: too few.

        Every rank calls it, and has the same number of tiles.
        """
        if not self.has(split):
            return 0.0
        data, histories = self._prepared(split)
        tiles = -(-len(data.users) // (TILE_USERS * self.world.size))
        is_long = len(data.users) * self.dataset.num_items >= MEASURED_PAIRS
        if data.mode != "full" or tiles < 4 * MEASURED_TILES or not is_long:
            return 0.0
        was_training = model.training
        model.eval()
        metrics, self._encoded, self._listeners = self._metrics(), None, []
        started = time.perf_counter()
        with torch.inference_mode():
            middle = len(data.users) // 2  # users in the order of a file are not all alike
            bounds = [
                (middle + k * TILE_USERS, middle + (k + 1) * TILE_USERS)
                for k in range(MEASURED_TILES)
            ]
            queries = [self.query(data.users[a:b], histories) for a, b in bounds]
            self._rank_all(model, data, metrics, bounds, queries)
        seconds = time.perf_counter() - started
        model.train(was_training)
        return seconds * tiles / MEASURED_TILES

    def _rank(
        self,
        model: Model,
        data: SplitData,
        histories: Histories | None,
        metrics: MetricSet,
        progress: Progress = lambda steps, total: steps,
    ) -> None:
        """Rank for all users of a split, this rank's here; the metrics are those of all ranks."""
        self._encoded = None  # rows may have changed
        with torch.inference_mode():
            # Tiles together share vectors of items; without such they would only take memory.
            together = self.section.batch_size if isinstance(model, Retrieval) else 1
            for bounds in self._rounds(len(data.users), progress, together):
                queries = [self.query(data.users[a:b], histories) for a, b in bounds]
                if data.mode == "full":
                    self._rank_all(model, data, metrics, bounds, queries)
                else:
                    self._rank_candidates(model, data, metrics, bounds, queries)
        metrics.reduce(self.world)

    def _popular(self) -> dict[str, float]:
        """Metrics of the most popular items for every test user; none where scores are values."""
        data, _ = self._prepared("test")
        metrics = self._metrics()
        if metrics.wants_valued:
            return {}
        self._listeners = [metrics.update]
        if data.mode == "full" and not metrics.wants_auc_pairs:
            keep = min(max(self.section.topk), self.dataset.num_items - 1)
            lists = PopularLists(self.popularity.numpy(), data.masked, keep)
            for bounds in self._rounds(len(data.users), lambda steps, total: steps, TILE_USERS):
                for tile in bounds:
                    self._add_tile(data, tile, torch.from_numpy(lists.best(*tile)))
            metrics.reduce(self.world)
        else:
            model = PopularVectors(self.popularity).to(self.world.device)
            self._rank(model, data, None, metrics)
        return metrics.compute()

    def _metrics(self, keep: Tensor | None = None) -> MetricSet:
        return MetricSet(
            self.section.metrics,
            self.section.topk,
            self.dataset.num_items,
            self.popularity,
            self.section.tail_ratio,
            keep,
            self.groups,
        )

    def _add(self, block: Ranked) -> None:
        for listener in self._listeners:
            listener(block)

    def leave(self, folder: Path, section: DataSection) -> dict[str, Any]:
        """After a test: write, log and return its extra results for result.json.

        section: of the data, for titles of items. Every rank calls it.
        """
        if self.results is not None and self.world.is_main:
            self.results.write(folder / "evaluation", section)
        result = self.extra_results()
        metric, decimals = self.section.valid_metric.lower(), self.section.decimals
        if "base" in result:
            num_users = len(self._prepared("test")[0].users)
            advice = remedy(self.trainable, self.dataset.num_items - 1, num_users)
            line = popular_line(result["base"], self.values, metric, decimals, advice)
            log.info("%s", line)
        if self.cold:
            log.info("%s", cold_line(self.cold, metric, decimals))
        return result

    def extra_results(self) -> dict[str, Any]:
        """Extra results of the last test for result.json, besides metrics. Every rank calls it."""
        result = {"base": self._popular(), "cold": self.cold}
        return {name: value for name, value in result.items() if value}

    def has(self, split: Split) -> bool:
        """Whether a split has anything to evaluate on."""
        return len(self.dataset.splits[split]) > 0

    def check(self, splits: Iterable[Split]) -> None:
        """Refuse splits that have nothing to evaluate: before an epoch is trained, not after."""
        for split in splits:
            if not self.has(split):
                later = "train.eval_every above train.epochs (the last epoch is tested), or "
                raise ValueError(
                    f"the {split} split of {self.dataset.name!r} is empty, so there is nothing to "
                    f"evaluate; change data.split or set {later * (split == 'valid')}"
                    "train.eval_every=0"
                )

    def _prepared(self, split: Split) -> tuple[SplitData, Histories | None]:
        if split not in self._splits:
            self.check([split])
            histories = self.histories(EARLIER[split], split)
            data = SplitData(self.dataset, split, self.section, self.seed)
            self._splits[split] = data, histories
        return self._splits[split]

    def _rounds(
        self, num_users: int, progress: Progress, users: int
    ) -> Iterator[list[tuple[int, int]]]:
        """This rank's tiles, those of so many users at a time. Every rank makes the same number of
        tiles and rounds (empty ones at the end), because a pull may be a collective."""
        num_tiles = -(-num_users // TILE_USERS)
        per_rank = -(-num_tiles // self.world.size)
        tiles = iter(progress(iter(range(per_rank)), per_rank))
        together = max(1, users // TILE_USERS)
        while chosen := list(islice(tiles, together)):
            bounds = []
            for k in chosen:
                first = min((k * self.world.size + self.world.rank) * TILE_USERS, num_users)
                bounds.append((first, min(first + TILE_USERS, num_users)))
            yield bounds

    def histories(
        self, splits: tuple[Split, ...], request_split: Split | None = None
    ) -> Histories | None:
        """Histories for sequential models: items of these splits; None for other models.

        request_split: the split whose first item is the request.
        """
        if not self.sequential:
            return None
        return Histories(
            self.dataset, splits, self.max_len, self.timed, request_split, with_context=True
        )

    def query(self, users: np.ndarray, histories: Histories | None) -> Batch:
        """A batch that asks for scores."""
        ids: dict[str, Tensor | Jagged] = {self.dataset.user_field: torch.from_numpy(users)}
        if histories is not None:
            ids["history"] = torch.from_numpy(histories.latest(users))
            if histories.times is not None:
                ids["history_time"] = torch.from_numpy(histories.latest_times(users))
        return Batch(len(users), ids).to(self.world.device)

    # ---- full ranking -------------------------------------------------------------------------

    def _rank_all(
        self,
        model: Model,
        data: SplitData,
        metrics: MetricSet,
        bounds: list[tuple[int, int]],
        queries: list[Batch],
    ) -> None:
        keep = min(max(self.section.topk), self.dataset.num_items - 1)
        pairs: list[PairCounts] = []
        if metrics.wants_auc_pairs:
            pairs = [PairCounts(data, a, b, self.world.device) for a, b in bounds]
        best: Sequence[TopK | ProductTopK] | None = None
        if isinstance(model, Retrieval) and not pairs:
            best = self._best_products(model, data, bounds, queries, keep)
        if best is None:
            best = self._best_scores(model, data, bounds, queries, keep, pairs)
        for number, tile in enumerate(bounds):
            if tile[0] == tile[1]:  # this rank has no users left, others do
                continue
            counts = pairs[number].result() if pairs else (None, None, None)
            self._add_tile(data, tile, best[number].items(), *counts)

    def _add_tile(
        self,
        data: SplitData,
        tile: tuple[int, int],
        items: Tensor,
        won: Tensor | None = None,
        negatives: Tensor | None = None,
        first: Tensor | None = None,
    ) -> None:
        """Add the lists [users, keep] of a tile of users to the metrics; see Ranked."""
        a, b = tile
        if a == b:
            return
        users = data.users[a:b]
        hits = torch.from_numpy(data.is_positive.contains(users[:, None], items.numpy()))
        counts = torch.from_numpy(np.diff(data.positives.offsets[a : b + 1]))
        owners = torch.from_numpy(users)
        self._add(Ranked(items, hits, counts, won, negatives, first, owners))

    def _best_products(
        self,
        model: Retrieval,
        data: SplitData,
        bounds: list[tuple[int, int]],
        queries: list[Batch],
        keep: int,
    ) -> list[ProductTopK] | None:
        """The best items of each tile, scored and kept by the native core; None: it takes none."""
        best, sparse = [], model.sparse_queries
        for query, tile in zip(queries, bounds):
            vectors = model.encode_query(query)
            if not takes_scores(vectors):
                return None
            best.append(ProductTopK(vectors, keep, data.masked.block(*tile), sparse))
        for start, _, vectors in self._blocks(model):
            add = partial(_add_block, best, ProductTopK.pieces(vectors, sparse), start)
            with ThreadTeam() as workers:
                workers.each(add, range(len(best)))
        return best

    def _best_scores(
        self,
        model: Model,
        data: SplitData,
        bounds: list[tuple[int, int]],
        queries: list[Batch],
        keep: int,
        pairs: list[PairCounts],
    ) -> list[TopK]:
        """The best items of each tile, for any model on any device; the pairs are counted, too."""
        scorers = [self._scorer(model, query) for query in queries]
        best = [TopK(keep) for _ in bounds]
        for again in range(2 if pairs else 1):
            for tile, start, scores in self._scored(model, scorers):
                mask(scores, data.masked, *bounds[tile], start)
                if again:
                    pairs[tile].count(scores)
                else:
                    best[tile].add(scores, start)
                    if pairs:
                        pairs[tile].find(scores, start)
        return best

    def _scored(self, model: Model, scorers: list[Scorer]) -> Iterator[tuple[int, int, Tensor]]:
        """Scores of all tiles, block after block of items: tile, first item, [users, items]."""
        for start, block, vectors in self._blocks(model):
            for tile, scorer in enumerate(scorers):
                yield tile, start, scorer(block, vectors)

    def _blocks(self, model: Model) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Blocks of items: the first item, all of them, and their vectors.

        One block: its vectors are made once and kept. Many: once per round, to bound memory. The
        items stand for the vectors of a model that has none.
        """
        num_items, device = self.dataset.num_items, self.world.device
        for start in range(0, num_items, BLOCK_ITEMS):
            block = torch.arange(start, min(start + BLOCK_ITEMS, num_items), device=device)
            vectors = self._encoded
            if vectors is None:
                vectors = model.encode_item(block) if isinstance(model, Retrieval) else block
                self._encoded = vectors if num_items <= BLOCK_ITEMS else None
            yield start, block, vectors

    def _scorer(self, model: Model, query: Batch) -> Scorer:
        if isinstance(model, Retrieval):
            queries = model.encode_query(query)
            return lambda block, vectors: queries @ vectors.T
        score = model.scorer(query)
        return lambda block, _: score(block)

    # ---- ranking of given candidates, and labeled rows ------------------------------------------

    def _rank_candidates(
        self,
        model: Model,
        data: SplitData,
        metrics: MetricSet,
        bounds: list[tuple[int, int]],
        queries: list[Batch],
    ) -> None:
        for (a, b), query in zip(bounds, queries):
            rows, items = data.candidates.block(a, b)
            lengths = np.diff(data.candidates.offsets[a : b + 1])
            width = int(lengths.max(initial=0))
            column = np.arange(len(items)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            grid = np.zeros((b - a, width), dtype=np.int64)
            grid[rows, column] = items
            candidate_items = torch.from_numpy(grid).to(self.world.device)
            scores = model.score(query, candidate_items).float().cpu()
            real = torch.from_numpy(np.arange(width) < lengths[:, None])
            if a == b:
                continue
            if data.mode == "labeled":
                labels = torch.zeros(b - a, width)
                first, last = data.candidates.offsets[a], data.candidates.offsets[b]
                labels[rows, column] = torch.from_numpy(data.row_labels[first:last])
            else:
                positive = data.is_positive.contains(data.users[a:b, None], grid)
                labels = torch.from_numpy(positive & real.numpy()).float()
            users = torch.from_numpy(data.users[a:b])[:, None].expand_as(real)
            if metrics.wants_valued:
                binary = bool(((labels == 0) | (labels == 1)).all())
                values = torch.sigmoid(scores[real]) if binary else scores[real]
                metrics.update(Valued(users[real], values, labels[real]))
            if metrics.wants_ranked:
                self._add_ranked(
                    metrics,
                    users=torch.from_numpy(data.users[a:b]),
                    items=torch.from_numpy(grid),
                    scores=scores,
                    positive=(labels > 0) & real,
                    real=real,
                )

    def _add_ranked(
        self,
        metrics: MetricSet,
        users: Tensor,
        items: Tensor,
        scores: Tensor,
        positive: Tensor,
        real: Tensor,
    ) -> None:
        has_positive = positive.any(1)  # a user without a positive has nothing to find
        if not bool(has_positive.any()):
            return
        items, positive, real = items[has_positive], positive[has_positive], real[has_positive]
        scores = scores[has_positive].masked_fill(~real, -torch.inf)
        keep = min(max(self.section.topk), scores.shape[1])
        value, column = torch.topk(scores, keep, dim=1)
        is_ranked = value > -torch.inf
        hits = positive.gather(1, column) & is_ranked
        ranked = torch.where(is_ranked, items.gather(1, column), 0)
        numerator = negatives = first = None
        if metrics.wants_auc_pairs:
            rows = torch.arange(len(scores))[:, None].expand_as(scores)
            numerator, _, negatives = pair_counts(rows[real], scores[real], positive[real])
            best = scores.masked_fill(~positive, -torch.inf).amax(1, keepdim=True)
            first = (scores > best).sum(1) + ((scores == best).sum(1) + 1).double() / 2
        counts, owners = positive.sum(1), users[has_positive]
        self._add(Ranked(ranked, hits, counts, numerator, negatives, first, owners))


def _add_block(
    tiles: Sequence[ProductTopK], pieces: Sequence[Tensor], start: int, number: int
) -> None:
    """A block of items for one of the tiles."""
    tiles[number].add(pieces, start)


def mask(scores: Tensor, masked: UserLists, a: int, b: int, start: int) -> None:
    """Exclude the padding item and the `masked` items of each user, in place."""
    if start == 0:
        scores[:, 0] = -torch.inf
    rows, items = masked.block(a, b)
    if start or scores.shape[1] <= int(items.max(initial=0)):
        inside = (items >= start) & (items < start + scores.shape[1])
        rows, items = rows[inside], items[inside]
    if len(rows):
        flat = torch.from_numpy(rows * scores.shape[1] + items - start).to(scores.device)
        scores.view(-1)[flat] = -torch.inf

"""Evaluator: exact metrics, the same for every number of ranks and every batch size.

Users are cut into tiles of a fixed size, items into blocks of a fixed size. A tile's arithmetic
does not depend on who computes it nor on what else is computed, so results agree to the last bit
before they are summed. Memory holds a tile of users × a block of items, never users × items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from shoal.config.schema import EvalSection
from shoal.data.batch import Batch
from shoal.data.dataset import Dataset, Phase
from shoal.data.history import Histories
from shoal.data.sampler import NegativeSampler, Seen
from shoal.metrics import MetricSet, Ranked, Valued
from shoal.models.base import Model, Retrieval
from shoal.world import World

TILE_USERS = 256
BLOCK_ITEMS = 1 << 14
EARLIER: dict[str, tuple[Phase, ...]] = {"valid": ("train",), "test": ("train", "valid")}


@dataclass
class Lists:
    """For each user of a phase a list of items, flattened (see data.history for the drawing)."""

    items: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, users: np.ndarray, items: np.ndarray, order: np.ndarray, num_users: int) -> Lists:
        """Lists of the users in `order`; the pairs are unique and ascending by item."""
        num_items = int(items.max(initial=0)) + 1
        keys = np.unique(users.astype(np.int64) * num_items + items)
        users, items = keys // num_items, keys % num_items
        starts = np.searchsorted(users, order, side="left")
        stops = np.searchsorted(users, order, side="right")
        lengths = stops - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        flat = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return cls(items[flat], offsets)

    def block(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Lists first..last-1 as pairs: row within the block [n], item [n]."""
        offsets = self.offsets[first : last + 1]
        rows = np.repeat(np.arange(last - first), np.diff(offsets))
        return rows, self.items[offsets[0] : offsets[-1]]


def parse_mode(mode: str | dict, phase: str) -> tuple[str, int]:
    """`full`, `labeled`, `uni100`, `pop100` -> kind and number of negatives."""
    text = mode if isinstance(mode, str) else mode[phase]
    if text in ("full", "labeled"):
        return text, 0
    return text[:3], int(text[3:])


class PhaseData:
    """What evaluating one phase needs, laid out once."""

    def __init__(self, dataset: Dataset, phase: Phase, section: EvalSection, seed: int):
        self.mode, self.num_negatives = parse_mode(section.mode, phase)
        users, items = dataset.user_ids(phase), dataset.item_ids(phase)
        self.users = np.unique(users)  # ascending: the tiles are a pure function of the split
        self.labels: Lists | None = None
        if self.mode == "labeled":
            self._take_labels(dataset, phase)
            return
        self.positives = Lists.of(users, items, self.users, dataset.num_users)
        self.is_positive = Seen(users, items, dataset.num_users, dataset.num_items)
        earlier = EARLIER[phase]
        seen_users = np.concatenate([dataset.user_ids(p) for p in earlier])
        seen_items = np.concatenate([dataset.item_ids(p) for p in earlier])
        if section.repeatable:
            self.masked = Lists(np.zeros(0, np.int64), np.zeros(len(self.users) + 1, np.int64))
        else:
            self.masked = Lists.of(seen_users, seen_items, self.users, dataset.num_users)
        if self.num_negatives:
            self._draw_negatives(dataset, phase, seen_users, seen_items, seed)

    def _draw_negatives(self, dataset, phase, seen_users, seen_items, seed) -> None:  # type: ignore[no-untyped-def]
        """N different negatives for each positive; candidates are their union, as lists per user."""
        users, items = dataset.user_ids(phase), dataset.item_ids(phase)
        all_users, all_items = (
            np.concatenate([seen_users, users]),
            np.concatenate([seen_items, items]),
        )
        sampler = NegativeSampler(
            Seen(all_users, all_items, dataset.num_users, dataset.num_items),
            dataset.num_items,
            distribution="popularity" if self.mode == "pop" else "uniform",
            alpha=1.0,
            popularity=np.bincount(dataset.item_ids("train"), minlength=dataset.num_items),
            seed=seed,
        )
        # Training epochs count from 0, so -1 and -2 are draws of their own.
        drawn = sampler.draw_distinct(
            users, dataset.splits[phase], -1 if phase == "valid" else -2, self.num_negatives
        ).reshape(-1)
        owners = np.repeat(users, self.num_negatives)[drawn > 0]
        self.candidates = Lists.of(
            np.concatenate([users, owners]),
            np.concatenate([items, drawn[drawn > 0]]),
            self.users,
            dataset.num_users,
        )

    def _take_labels(self, dataset: Dataset, phase: Phase) -> None:
        """Rows of the phase with their labels; a user's candidates are the rows of that user."""
        if dataset.label_field not in dataset.inter:
            raise ValueError(
                f"eval.mode labeled needs the column {dataset.label_field!r}, which data set "
                f"{dataset.name!r} does not have; load it, or make one with data.threshold"
            )
        rows = dataset.splits[phase]
        users = np.asarray(dataset.inter[dataset.user_field])[rows]
        order = np.argsort(users, kind="stable")
        offsets = np.searchsorted(users[order], np.append(self.users, dataset.num_users))
        column = np.asarray(dataset.inter[dataset.label_field], dtype=np.float32)  # type: ignore[index]
        self.candidates = Lists(np.asarray(dataset.inter[dataset.item_field])[rows][order], offsets)
        self.row_labels = column[rows][order]


class Evaluator:
    """Evaluates a model on the valid and test phases of one data set."""

    def __init__(
        self,
        dataset: Dataset,
        section: EvalSection,
        world: World,
        seed: int,
        max_len: int,
        sequential: bool = False,
    ):
        self.dataset, self.section, self.world, self.seed = dataset, section, world, seed
        self.sequential, self.max_len = sequential, max_len
        popularity = np.bincount(dataset.item_ids("train"), minlength=dataset.num_items)
        self.popularity = torch.from_numpy(popularity)
        self._phases: dict[str, tuple[PhaseData, Histories | None]] = {}

    def evaluate(
        self,
        model: Model,
        phase: Phase,
        progress: Callable[[Iterator[int], int], Iterator[int]] = lambda steps, total: steps,
    ) -> dict[str, float]:
        """Metric name -> value, equal on every rank."""
        data, histories = self._prepared(phase)
        metrics = MetricSet(
            self.section.metrics,
            self.section.topk,
            self.dataset.num_items,
            self.popularity,
            self.section.tail_ratio,
        )
        if metrics.wants_valued and data.mode == "full":
            raise ValueError(
                "AUC, LogLoss, MAE and RMSE need labels, and full ranking has none; "
                "use eval.mode labeled, uniN or popN, or leave those metrics out"
            )
        run = self._rank_all if data.mode == "full" else self._rank_candidates
        was_training = model.training
        model.eval()
        with torch.inference_mode():
            run(model, data, histories, metrics, progress)
        model.train(was_training)
        metrics.reduce(self._sum, self._gather)
        return metrics.compute()

    def _sum(self, state: Tensor) -> Tensor:
        return self.world.all_reduce(state.to(self.world.device)).cpu()

    def _gather(self, state: Tensor) -> Tensor:
        return self.world.all_gather(state.to(self.world.device)).cpu()

    def _prepared(self, phase: Phase) -> tuple[PhaseData, Histories | None]:
        if phase not in self._phases:
            histories = None
            if self.sequential:
                histories = Histories(self.dataset, EARLIER[phase], self.max_len)
            data = PhaseData(self.dataset, phase, self.section, self.seed)
            if len(data.users) == 0:
                raise ValueError(
                    f"the {phase} split of {self.dataset.name!r} is empty, so there is nothing to "
                    "evaluate; change data.split or set train.eval_every=0"
                )
            self._phases[phase] = data, histories
        return self._phases[phase]

    def _rounds(self, num_users: int, progress: Callable) -> Iterator[list[tuple[int, int]]]:
        """This rank's tiles, some at a time. Every rank makes the same number of tiles and rounds
        (empty ones at the end), because a pull may be a collective."""
        num_tiles = -(-num_users // TILE_USERS)
        per_rank = -(-num_tiles // self.world.size)
        tiles = iter(progress(iter(range(per_rank)), per_rank))
        together = max(1, self.section.batch_size // TILE_USERS)
        while chosen := list(islice(tiles, together)):
            bounds = []
            for k in chosen:
                first = min((k * self.world.size + self.world.rank) * TILE_USERS, num_users)
                bounds.append((first, min(first + TILE_USERS, num_users)))
            yield bounds

    def query(self, users: np.ndarray, histories: Histories | None) -> Batch:
        """A batch that asks for scores."""
        ids = {self.dataset.user_field: torch.from_numpy(users)}
        if histories is not None:
            ids["history"] = torch.from_numpy(histories.latest(users))
        return Batch(len(users), ids).to(self.world.device)  # type: ignore[arg-type]

    def recommend(self, model: Model, user: int, topk: int) -> list[tuple[str, float]]:
        """The best items for one user that the user has not seen: (original id, score)."""
        dataset, device = self.dataset, self.world.device
        phases: tuple[Phase, ...] = ("train", "valid", "test")
        users = np.array([user])
        histories = Histories(dataset, phases, self.max_len) if self.sequential else None
        seen_users = np.concatenate([dataset.user_ids(p) for p in phases])
        seen_items = np.concatenate([dataset.item_ids(p) for p in phases])
        own = seen_users == user
        seen = Lists.of(seen_users[own], seen_items[own], users, dataset.num_users)
        best = _TopK(min(topk, dataset.num_items - 1))
        with torch.inference_mode():
            batch = self.query(users, histories)
            for start in range(0, dataset.num_items, BLOCK_ITEMS):
                stop = min(start + BLOCK_ITEMS, dataset.num_items)
                scores = model.score(batch, torch.arange(start, stop, device=device))
                if not self.section.repeatable:
                    _mask(scores, seen, 0, 1, start)
                best.add(scores, start)
        names = dataset.vocab[dataset.item_field]
        pairs = zip(best.items()[0].tolist(), best.value[0].tolist())  # type: ignore[index]
        return [(str(names[item]), score) for item, score in pairs if item]

    # ---- full ranking -------------------------------------------------------------------------

    def _rank_all(self, model, data, histories, metrics, progress) -> None:  # type: ignore[no-untyped-def]
        device, num_items = self.world.device, self.dataset.num_items
        keep = min(max(self.section.topk), num_items - 1)
        blocks = [
            torch.arange(start, min(start + BLOCK_ITEMS, num_items), device=device)
            for start in range(0, num_items, BLOCK_ITEMS)
        ]
        encoded: dict[int, Tensor] = {}
        for bounds in self._rounds(len(data.users), progress):
            scorers = [self._scorer(model, data.users[a:b], histories) for a, b in bounds]
            best = [_TopK(keep) for _ in bounds]
            pairs = (
                [_PairCounts(data, a, b, device) for a, b in bounds]
                if metrics.wants_auc_pairs
                else []
            )
            for again in range(2 if pairs else 1):
                for number, block in enumerate(blocks):
                    # One block: encode once per evaluation. Many: once per round, to bound memory.
                    vectors = encoded.get(number)
                    if vectors is None and isinstance(model, Retrieval):
                        vectors = model.encode_item(block)
                        if len(blocks) == 1:
                            encoded[number] = vectors
                    for tile, (a, b) in enumerate(bounds):
                        scores = scorers[tile](block, vectors)
                        _mask(scores, data.masked, a, b, int(block[0]))
                        if again:
                            pairs[tile].count(scores)
                        else:
                            best[tile].add(scores, int(block[0]))
                            if pairs:
                                pairs[tile].find(scores, int(block[0]))
            for tile, (a, b) in enumerate(bounds):
                if a == b:
                    continue
                items = best[tile].items()
                users = data.users[a:b, None]
                hits = torch.from_numpy(data.is_positive.contains(users, items.numpy()))
                counts = torch.from_numpy(np.diff(data.positives.offsets[a : b + 1]))
                extra = pairs[tile].result() if pairs else (None, None)
                metrics.update(Ranked(items, hits, counts, *extra))

    def _scorer(self, model, users, histories) -> Callable[[Tensor, Tensor | None], Tensor]:  # type: ignore[no-untyped-def]
        batch = self.query(users, histories)
        if isinstance(model, Retrieval):
            queries = model.encode_query(batch)
            return lambda block, vectors: queries @ vectors.T  # type: ignore[union-attr]
        return lambda block, _: model.score(batch, block)

    # ---- ranking of given candidates, and labeled rows ------------------------------------------

    def _rank_candidates(self, model, data, histories, metrics, progress) -> None:  # type: ignore[no-untyped-def]
        device = self.world.device
        for bounds in self._rounds(len(data.users), progress):
            for a, b in bounds:
                batch = self.query(data.users[a:b], histories)
                rows, items = data.candidates.block(a, b)
                lengths = np.diff(data.candidates.offsets[a : b + 1])
                width = int(lengths.max(initial=0))
                column = np.arange(len(items)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                grid = np.zeros((b - a, width), dtype=np.int64)
                grid[rows, column] = items
                scores = model.score(batch, torch.from_numpy(grid).to(device)).float().cpu()
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
                self._update(metrics, data.users[a:b], grid, scores, labels, real)

    def _update(self, metrics, users, grid, scores, labels, real) -> None:  # type: ignore[no-untyped-def]
        if metrics.wants_valued:
            values = scores[real]
            if bool(((labels == 0) | (labels == 1)).all()):
                values = torch.sigmoid(values)
            owner = torch.from_numpy(users)[:, None].expand_as(real)[real]
            metrics.update(Valued(owner, values, labels[real]))
        if metrics.wants_ranked:
            positive = (labels > 0) & real
            some = positive.any(1)  # a user without a positive has nothing to find
            if not bool(some.any()):
                return
            scores = scores.masked_fill(~real, -torch.inf)[some]
            positive, items = positive[some], torch.from_numpy(grid)[some]
            keep = min(max(self.section.topk), scores.shape[1])
            value, column = torch.topk(scores, keep, dim=1)
            found = value > -torch.inf
            hits = positive.gather(1, column) & found
            ranked = torch.where(found, items.gather(1, column), 0)
            extra: tuple = (None, None)
            if metrics.wants_auc_pairs:
                extra = _auc_pairs(scores, positive)
            metrics.update(Ranked(ranked, hits, positive.sum(1), *extra))


class _TopK:
    """The best items of a tile, over blocks of items."""

    def __init__(self, keep: int):
        self.keep = keep
        self.value: Tensor | None = None

    def add(self, scores: Tensor, start: int) -> None:
        value, index = torch.topk(scores, min(self.keep, scores.shape[1]), dim=1)
        index = index + start if start else index
        if self.value is None:
            self.value, self.index = value, index
            return
        value, index = torch.cat([self.value, value], 1), torch.cat([self.index, index], 1)
        self.value, column = torch.topk(value, min(self.keep, value.shape[1]), dim=1)
        self.index = index.gather(1, column)

    def items(self) -> Tensor:
        """[b, keep] item ids, 0 where a user has fewer candidates."""
        assert self.value is not None
        return torch.where(self.value > -torch.inf, self.index, 0).cpu()


class _PairCounts:
    """For GAUC: how many negatives each positive of a tile beats. First pass finds the scores of
    the positives, second pass counts against every block."""

    def __init__(self, data: PhaseData, a: int, b: int, device: torch.device):
        rows, items = data.positives.block(a, b)
        self.rows, self.items = (
            torch.from_numpy(rows).to(device),
            torch.from_numpy(items).to(device),
        )
        self.size, self.device = b - a, device
        self.scores = torch.full((len(rows),), -torch.inf, device=device)
        self.below = torch.zeros(len(rows), dtype=torch.float64, device=device)
        self.candidates = torch.zeros(b - a, dtype=torch.int64, device=device)

    def find(self, scores: Tensor, start: int) -> None:
        inside = (self.items >= start) & (self.items < start + scores.shape[1])
        self.scores[inside] = scores[self.rows[inside], self.items[inside] - start]

    def count(self, scores: Tensor) -> None:
        ascending = scores.sort(dim=1).values
        excluded = (scores == -torch.inf).sum(1)
        self.candidates += scores.shape[1] - excluded
        # Positives side by side, one row of thresholds per user.
        grid, column = self._grid(self.scores)
        less = torch.searchsorted(ascending, grid, side="left")[self.rows, column]
        upto = torch.searchsorted(ascending, grid, side="right")[self.rows, column]
        self.below += (less + upto).double() / 2 - excluded[self.rows]

    def _grid(self, values: Tensor) -> tuple[Tensor, Tensor]:
        counts = torch.bincount(self.rows, minlength=self.size)
        first = counts.cumsum(0) - counts
        column = torch.arange(len(values), device=self.device) - first[self.rows]
        grid = torch.zeros(self.size, int(counts.max()) if len(counts) else 0, device=self.device)
        grid[self.rows, column] = values
        return grid, column

    def result(self) -> tuple[Tensor, Tensor]:
        """Pairs won [b] and negatives [b]. Pairs among the positives themselves are taken out."""
        grid, column = self._grid(self.scores)
        real = torch.zeros_like(grid, dtype=torch.bool)
        real[self.rows, column] = True
        reachable = real & (grid > -torch.inf)  # a positive of the history is no candidate
        counts = reachable.sum(1)
        wins = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        found = self.scores > -torch.inf
        wins.index_add_(0, self.rows[found], self.below[found])
        # m positives among themselves (each also meets itself) win m*m / 2 half-pairs altogether.
        return (wins - counts.double() ** 2 / 2).cpu(), (self.candidates - counts).cpu()


def _auc_pairs(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs won by positives over negatives [b] (ties half), negatives [b]."""
    real = scores > -torch.inf
    ascending = scores.sort(dim=1).values
    excluded = (~real).sum(1, keepdim=True)
    less = torch.searchsorted(ascending, scores, side="left")
    upto = torch.searchsorted(ascending, scores, side="right")
    below = (less + upto).double() / 2 - excluded
    counts = positive.sum(1)
    wins = (below * positive).sum(1) - counts.double() ** 2 / 2
    return wins, (real & ~positive).sum(1)


def _mask(scores: Tensor, masked: Lists, a: int, b: int, start: int) -> None:
    """Exclude the padding item and what each user has seen, in place."""
    if start == 0:
        scores[:, 0] = -torch.inf
    rows, items = masked.block(a, b)
    if start or scores.shape[1] <= int(items.max(initial=0)):
        inside = (items >= start) & (items < start + scores.shape[1])
        rows, items = rows[inside], items[inside]
    if len(rows):
        flat = torch.from_numpy(rows * scores.shape[1] + items - start).to(scores.device)
        scores.view(-1)[flat] = -torch.inf

"""Metrics beyond accuracy, by formulas that are written out here, user by user."""

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks

from shoal.config import ConfigError
from shoal.data.dataset import Ragged
from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.runs.run import resolve
from shoal.training.evaluation.cold import cold_line
from shoal.training.metrics import Groups, MetricSet, Ranked

TOPK = (3, 8)
USERS, ITEMS, GENRES = 40, 30, 5


def example() -> dict[str, Any]:
    """Lists of 40 users over 30 items; some end early, some items have no genre or no training."""
    rng = np.random.default_rng(5)
    lists = [
        rng.permutation(np.arange(1, ITEMS + 1))[: 8 if u % 7 else 1 + u % 4] for u in range(USERS)
    ]
    positives = [set(rng.choice(np.arange(1, ITEMS + 1), 4, replace=False)) for _ in range(USERS)]
    counts = rng.integers(0, 20, ITEMS + 1)
    counts[0] = 0
    genres = [
        set(rng.choice(np.arange(1, GENRES + 1), i % 4, replace=False)) for i in range(ITEMS + 1)
    ]
    genres[0] = set()
    history = [set(rng.choice(np.arange(1, ITEMS + 1), u % 6, replace=False)) for u in range(USERS)]
    return {
        "lists": lists,
        "positives": positives,
        "counts": counts,
        "genres": genres,
        "history": history,
        "group": rng.integers(0, 4, USERS),  # 0: in none
    }


def ragged(lists: list[set[int]]) -> Ragged:
    values = np.array([value for one in lists for value in sorted(one)], dtype=np.int64)
    return Ragged(values, np.cumsum([0, *map(len, lists)]))


def measured(names: list[str], blocks: int = 3) -> dict[str, float]:
    """What MetricSet finds, from the example in some blocks."""
    data = example()
    items = np.zeros((USERS, 8), np.int64)
    for row, one in enumerate(data["lists"]):
        items[row, : len(one)] = one
    hits = np.array([[i in own for i in row] for row, own in zip(items, data["positives"])])
    groups = Groups(data["group"], ragged(data["genres"]), ragged(data["history"]))
    metrics = MetricSet(names, TOPK, ITEMS + 1, torch.from_numpy(data["counts"]), groups=groups)
    users = torch.arange(USERS)
    for part in users.chunk(blocks):
        rows = part.numpy()
        given = torch.from_numpy(items[rows]), torch.from_numpy(hits[rows])
        metrics.update(Ranked(*given, torch.full((len(part),), 4), users=part))
    return metrics.compute()


def cosine(a: set[int], b: set[int]) -> float:
    return len(a & b) / math.sqrt(len(a) * len(b)) if a and b else 0.0


def shares(items: list[int], genres: list[set[int]]) -> dict[int, float]:
    """Of each genre among items: an item of several counts for each in part."""
    found: dict[int, float] = {}
    for item in items:
        for genre in genres[item]:
            found[genre] = found.get(genre, 0.0) + 1 / len(genres[item])
    return {genre: value / sum(found.values()) for genre, value in found.items()}


def by_formula(k: int) -> dict[str, float]:
    """All of them at k, in plain Python."""
    data = example()
    counts, genres = data["counts"].tolist(), data["genres"]
    lists = [[int(i) for i in one[:k]] for one in data["lists"]]
    hits = [[i in own for i in one] for one, own in zip(lists, data["positives"])]
    different = sorted({c for c in counts[1:] if c}, reverse=True)
    expected = {
        i: (ITEMS - different.index(c)) / ITEMS if c else 0.0 for i, c in enumerate(counts) if i
    }
    rbp, novelty, serendipity, diversity, calibration, ndcg = [], [], [], [], [], []
    for own, found, history in zip(lists, hits, data["history"]):
        rbp.append(0.15 * sum(0.85**rank for rank, hit in enumerate(found) if hit))
        novelty.append(np.mean([-math.log2(max(counts[i], 1) / sum(counts)) for i in own]))
        above = [max(0.0, (ITEMS - rank) / ITEMS - expected[i]) for rank, i in enumerate(own)]
        serendipity.append(np.mean([a * hit for a, hit in zip(above, found)]))
        pairs = [1 - cosine(genres[i], genres[j]) for i, j in combinations(own, 2)]
        diversity.append(np.mean(pairs) if pairs else 0.0)
        wanted, given = shares(history, genres), shares(own, genres)
        if wanted:
            mixed = {g: 0.99 * given.get(g, 0.0) + 0.01 * p for g, p in wanted.items()}
            calibration.append(sum(p * math.log(p / mixed[g]) for g, p in wanted.items()))
        gains = [1 / math.log2(rank + 2) for rank in range(k)]
        ndcg.append(sum(g for g, hit in zip(gains, found) if hit) / sum(gains[:4]))
    alike = [cosine(set(a), set(b)) for a, b in combinations(lists, 2)]
    by_group = [np.mean([v for v, g in zip(ndcg, data["group"]) if g == n]) for n in (1, 2, 3)]
    chances = []
    for genre in range(1, GENRES + 1):
        members = {i for i in range(1, ITEMS + 1) if genre in genres[i]}
        free = sum(len(members - history) for history in data["history"])
        chances.append(sum(i in members for own in lists for i in own) / free)
    assert len(calibration) < USERS  # some have no history
    return {
        "rbp": np.mean(rbp),
        "novelty": np.mean(novelty),
        "serendipity": np.mean(serendipity),
        "personalisation": 1 - np.mean(alike),
        "intralistdiversity": np.mean(diversity),
        "miscalibration": np.mean(calibration),
        "itemgap": np.std(chances) / np.mean(chances),
        "usergap": np.mean([abs(a - b) for a, b in combinations(by_group, 2)]),
    }


@pytest.mark.parametrize("blocks", [1, 3, 40])
def test_formulas(blocks: int) -> None:
    expected = {f"{name}@{k}": value for k in TOPK for name, value in by_formula(k).items()}
    names = list(dict.fromkeys(key.partition("@")[0] for key in expected))
    assert measured(names, blocks) == pytest.approx(expected, abs=1e-12)


RANKS = ["NDCG", "RBP", "MedRank", "GAUC", "UAUC", "Novelty", "Serendipity", "Personalisation"]
RANKS += ["IntraListDiversity", "Miscalibration", "UserGap", "ItemGap"]


def write_films(folder: Path) -> None:
    """Interactions of 600 users with 80 films, their ages and genres."""
    rng = np.random.default_rng(2)
    lists = [(u, t, f) for u in range(600) for t, f in enumerate(rng.permutation(80)[:12])]
    # The last users and films come late.
    late = [(u, t + 12 * (u >= 540 or f >= 75), f) for u, t, f in lists]
    rows = [f"u{u}\tf{f}\t{t}" for u, t, f in late]
    users = [f"u{u}\t{('old', 'young', '')[u % 3]}" for u in range(600)]
    films = [f"f{f}\t{' '.join(f'g{g}' for g in range(4) if f >> g & 1)}" for f in range(80)]
    tables = {
        "inter": ["user_id:token\titem_id:token\ttimestamp:float", *rows],
        "user": ["user_id:token\tage:token", *users],
        "item": ["item_id:token\tgenre:token_seq", *films],
    }
    (folder / "films").mkdir()
    for suffix, lines in tables.items():
        (folder / "films" / f"films.{suffix}").write_text("\n".join(lines) + "\n")


def of_films(folder: str, **more: Any) -> dict[str, Any]:
    values = {"data.path": folder, "data.name": "films", "data.cache": False}
    values |= {"data.load": {"user": ["*"], "item": ["*"]}, "eval.topk": [5, 10]}
    values |= {"eval.metrics": RANKS, "eval.valid_metric": "NDCG@10"}
    return {**values, "eval.groups": {"user": "age", "item": "genre"}, **more}


OWN = """
from shoal.training.metrics import PerUser


class Odd(PerUser):
    def value(self, ranking):
        return (ranking.items % 2).double() @ ranking.within
"""


def evaluated(world: World, folder: str) -> dict[str, float]:
    """Metrics of an untrained model, a custom one too, in both ways of ranking."""
    found = {}
    metrics = [*RANKS, f"{folder}/own.py:Odd"]
    for mode in ("full", "uni20"):
        values = of_films(folder, **{"eval.mode": mode, "eval.metrics": metrics})
        parts = build(resolve(values=values).config, world)
        values = parts.evaluator.evaluate(parts.model, "test")
        found |= {f"{mode} {key}": value for key, value in values.items()}
    values = of_films(folder, **{"data.split.at": [8, 10], "eval.metrics": ["NDCG"]})
    parts = build(resolve(values=values).config, world)
    found |= parts.evaluator.evaluate(parts.model, "test")
    cold = parts.evaluator.cold
    found |= {key: cold[key] for key in ("users", "items", "interactions", "found")}
    for name in ("cold_users", "warm_users"):
        found |= {f"{name} {key}": value for key, value in cold[name].items()}
    return found


def test_equal_on_one_and_three_processes(tmp_path: Path) -> None:
    write_films(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    alone = evaluated(World(), str(tmp_path))
    assert len(alone) == 2 * (2 * 10 + 3) + 2 + 4 + 4 and not any(
        math.isnan(one) for one in alone.values()
    )
    for found in run_ranks(evaluated, 3, tmp_path / "ranks", str(tmp_path)):
        assert found == pytest.approx(alone, rel=1e-12, abs=1e-12)


def test_users_and_items_without_training(tmp_path: Path) -> None:
    """Counted, and scored beside the others; the mean of both is that of all."""
    write_films(tmp_path)
    parts = build(
        resolve(values=of_films(str(tmp_path), **{"data.split.at": [8, 10]})).config, World()
    )
    found, cold = parts.evaluator.evaluate(parts.model, "test", keep=True), parts.evaluator.cold
    assert parts.evaluator.results is not None
    users = parts.evaluator.results._users()
    new = [int(user[1:]) >= 540 for user in users["user"]]
    assert cold["users"] == sum(new) == 60 and cold["items"] == 5
    late = {f"f{f}" for f in range(75, 80)}
    hits = sum(h for i, h in zip(users["items"], users["hits"]) for i, h in zip(i, h) if i in late)
    assert 0 < cold["found"] == hits < cold["interactions"]
    for key, values in cold["cold_users"].items():
        if key in ("ndcg@5", "ndcg@10", "rbp@10", "novelty@5", "uauc"):  # means over users
            each = np.array(users[key])
            assert values == pytest.approx(each[new].mean(), abs=1e-12)
            assert cold["warm_users"][key] == pytest.approx(each[~np.array(new)].mean(), abs=1e-12)
    assert found["ndcg@10"] == pytest.approx(np.mean(users["ndcg@10"]), abs=1e-12)
    log = cold_line(cold, "ndcg@10", 3)
    assert log.startswith("without a training interaction: 60 test users (ndcg@10 0.")
    assert f"5 test items ({cold['found']} of {cold['interactions']} interactions with them" in log


@pytest.mark.parametrize("mode", ["full", "uni20"])
def test_ranks_of_the_best_positive(mode: str, tmp_path: Path) -> None:
    """MedRank and UAUC from all the scores, ranked by hand."""
    write_films(tmp_path)
    parts = build(resolve(values=of_films(str(tmp_path), **{"eval.mode": mode})).config, World())
    evaluator = parts.evaluator
    found = evaluator.evaluate(parts.model, "test")
    data, _ = evaluator._prepared("test")  # type: ignore[union-attr]
    ranks, aucs = [], []
    for place, user in enumerate(data.users.tolist()):
        batch = evaluator.query(np.array([user]), None)  # type: ignore[union-attr]
        with torch.inference_mode():
            scores = parts.model.score(batch, torch.arange(81))[0].double()  # type: ignore[operator]
        good = data.positives.chosen(np.array([place])).items
        if mode == "full":
            candidates = np.setdiff1d(np.arange(1, 81), data.masked.chosen(np.array([place])).items)
        else:
            candidates = data.candidates.chosen(np.array([place])).items
        bad = np.setdiff1d(candidates, good)
        best = max(scores[i] for i in good)
        ranks.append(1 + sum(bool(scores[i] > best) for i in bad))
        aucs.append(np.mean([float(scores[i] > scores[j]) for i in good for j in bad]))
    assert found["medrank"] == np.median(ranks)
    assert found["uauc"] == pytest.approx(np.mean(aucs), abs=1e-12)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"eval.groups": {}}, "eval.groups.user: UserGap compares groups of users: name their col"),
        ({"eval.groups": {"user": "agee", "item": "genre"}}, "no column 'agee' of users.*did you"),
        ({"eval.groups": {"user": "age", "item": "film"}}, "no column 'film' of items; columns of"),
        ({"data.load": None}, r"none \(the file of users is read when data.load names it"),
        ({"model": "DeepFM", "data.threshold": {"timestamp": 5}}, "rank items for a user"),
    ],
)
def test_missing_groups_are_errors(more: dict[str, Any], told: str, tmp_path: Path) -> None:
    write_films(tmp_path)
    with pytest.raises((ValueError, ConfigError), match=told):
        build(resolve(values=of_films(str(tmp_path), **more)).config, World())

"""The other side of metrics.py, in the peers' own environment: prints [[key, peer, value], …].

python benchmarks/metrics_peer.py FACTS.json [ELLIOT]
"""

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

Facts = dict[str, Any]


def frames(facts: Facts) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Lists, test and training interactions as tables."""
    lists = [
        (user, item, rank + 1)
        for user, own in zip(facts["users"], facts["lists"])
        for rank, item in enumerate(own)
    ]
    test = [(user, item) for user, own in zip(facts["users"], facts["positives"]) for item in own]
    reco = pd.DataFrame(lists, columns=["user_id", "item_id", "rank"])
    train = pd.DataFrame({"user_id": facts["train"][0], "item_id": facts["train"][1]})
    return reco, pd.DataFrame(test, columns=["user_id", "item_id"]), train


def recommenders(facts: Facts) -> Iterator[tuple[str, str, float]]:
    from recommenders.evaluation import python_evaluation as peer

    reco, test, train = frames(facts)
    k, names = facts["k"], {"user_id": "userID", "item_id": "itemID"}
    reco, test, train = (one.rename(columns=names) for one in (reco, test, train))
    reco = reco.assign(prediction=-reco["rank"].astype(float))
    test, train = test.assign(rating=1.0), train.assign(rating=1.0)
    value = peer.map_at_k(test, reco, k=k, relevancy_method=None)
    yield f"map@{k}", "recommenders map_at_k", value
    yield f"novelty@{k}", "recommenders novelty", peer.novelty(train, reco[["userID", "itemID"]])
    used = sorted(set(reco["itemID"]))
    groups = 1 + max(max(one, default=0) for one in facts["item_groups"])
    vectors = [np.bincount(facts["item_groups"][i], minlength=groups).astype(float) for i in used]
    features = pd.DataFrame({"itemID": used, "features": vectors})
    value = peer.diversity(
        *(train, reco[["userID", "itemID"]], features),
        item_sim_measure="item_feature_vector",
        col_item_features="features",
    )
    yield f"intralistdiversity@{k}", "recommenders diversity", value


def rectools(facts: Facts) -> Iterator[tuple[str, str, float]]:
    from rectools.metrics import IntraListDiversity, Serendipity
    from rectools.metrics.distances import PairwiseDistanceCalculator

    class Cosine(PairwiseDistanceCalculator):
        """1 - cosine similarity of sets of groups."""

        def _get_distances_for_item_pairs(self, one: Any, two: Any) -> np.ndarray:
            sets = [[set(facts["item_groups"][i]) for i in items] for items in (one, two)]
            return np.array([1 - len(a & b) / math.sqrt(len(a) * len(b)) for a, b in zip(*sets)])

        def __getitem__(self, pairs: Any) -> np.ndarray:
            return self._get_distances_for_item_pairs(*pairs)

    reco, test, train = frames(facts)
    k, catalog = facts["k"], range(1, facts["num_items"] + 1)
    value = Serendipity(k=k).calc(reco, test, train, list(catalog))
    yield f"serendipity@{k}", "RecTools Serendipity", value
    value = IntraListDiversity(k=k, distance_calculator=Cosine()).calc(reco)
    yield f"intralistdiversity@{k}", "RecTools IntraListDiversity", value


class Plots(ModuleType):
    """In the place of modules that are there for plots: nobody looks at them."""

    def __getattr__(self, name: str) -> object:
        return object()


def recmetrics(facts: Facts) -> Iterator[tuple[str, str, float]]:
    for name in ("matplotlib", "matplotlib.pyplot", "recmetrics.plots"):
        sys.modules.setdefault(name, Plots(name))
    from recmetrics.metrics import personalization

    yield f"personalisation@{facts['k']}", "recmetrics", personalization(facts["lists"])


def sklearn(facts: Facts) -> Iterator[tuple[str, str, float]]:
    from sklearn.metrics import roc_auc_score

    values = []
    for candidates, scores, good in zip(facts["candidates"], facts["scores"], facts["positives"]):
        labels = np.isin(candidates, good)
        if labels.any() and not labels.all():
            values.append(roc_auc_score(labels, scores))
    yield "uauc", "sklearn roc_auc_score", float(np.mean(values))


def elliot(facts: Facts) -> Iterator[tuple[str, str, float]]:
    from elliot.evaluation.metrics.fairness.MAD.UserMADranking import UserMADranking
    from elliot.evaluation.metrics.fairness.rsp.rsp import RSP

    k = facts["k"]
    lists = {
        u: [(i, -r) for r, i in enumerate(own)] for u, own in zip(facts["users"], facts["lists"])
    }
    train: dict[int, dict[int, float]] = {user: {} for user in facts["users"]}
    for user, item in zip(*facts["train"]):
        train.setdefault(user, {})[item] = 1.0
    gains = {u: dict.fromkeys(own, 1.0) for u, own in zip(facts["users"], facts["positives"])}
    relevance = SimpleNamespace(
        get_user_rel=lambda user: list(gains[user]),
        get_user_rel_gains=lambda user: gains[user],
        get_rel=lambda user, item: gains[user].get(item, 0.0),
        logarithmic_ranking_discount=lambda rank: 1 / math.log2(rank + 2),
    )
    objects = SimpleNamespace(
        cutoff=k,
        relevance=SimpleNamespace(discounted_relevance=relevance),
        data=SimpleNamespace(train_dict=train),
    )
    with tempfile.TemporaryDirectory() as scratch:
        users, items = Path(scratch) / "users.tsv", Path(scratch) / "items.tsv"
        groups = [(user, group - 1) for user, group in enumerate(facts["user_groups"]) if group]
        users.write_text("".join(f"{user}\t{group}\n" for user, group in groups))
        known = sorted({year for one in facts["years"] for year in one})
        pairs = [(i, known.index(one[0])) for i, one in enumerate(facts["years"]) if one]
        items.write_text("".join(f"{item}\t{group}\n" for item, group in pairs))
        how = [{"clustering_name": "g", "clustering_file": str(file)} for file in (users, items)]
        value = UserMADranking(lists, None, None, objects, how[0]).eval()
        yield f"usergap@{k}", "Elliot UserMADranking", float(value)
        value = RSP(lists, None, None, objects, how[1]).get()[-1].eval()
        yield f"itemgap@{k} by year", "Elliot RSP", float(value)


def formulas(facts: Facts) -> Iterator[tuple[str, str, float]]:
    """What no peer has: the published formula, user by user."""
    k, rbp, ranks, divergence = facts["k"], [], [], []
    history: dict[int, set[int]] = {}
    for user, item in zip(*facts["train"]):
        history.setdefault(user, set()).add(item)

    def shares(items: Any) -> dict[int, float]:
        found: dict[int, float] = {}
        for item in items:
            for group in facts["item_groups"][item]:
                found[group] = found.get(group, 0.0) + 1 / len(facts["item_groups"][item])
        return {group: value / sum(found.values()) for group, value in found.items()}

    rows = zip(*(facts[name] for name in ("users", "lists", "positives", "candidates", "scores")))
    for user, own, good, candidates, scores in rows:
        rbp.append(0.15 * sum(0.85**rank for rank, item in enumerate(own[:k]) if item in good))
        value = dict(zip(candidates, scores))
        best = max(value[item] for item in good if item in value)
        ranks.append(1 + sum(score > best for score in scores))
        wanted, given = shares(history[user]), shares(own[:k])
        mixed = {group: 0.99 * given.get(group, 0.0) + 0.01 * p for group, p in wanted.items()}
        divergence.append(sum(p * math.log(p / mixed[g]) for g, p in wanted.items()))
    yield f"rbp@{k}", "Moffat and Zobel 2008", float(np.mean(rbp))
    yield "medrank", "numpy median", float(np.median(ranks))
    yield f"miscalibration@{k}", "Steck 2018", float(np.mean(divergence))


KEYS: dict[Callable[[Facts], Iterator[tuple[str, str, float]]], list[str]] = {
    recommenders: ["map@10", "novelty@10", "intralistdiversity@10"],
    rectools: ["serendipity@10", "intralistdiversity@10"],
    recmetrics: ["personalisation@10"],
    sklearn: ["uauc"],
    elliot: ["usergap@10", "itemgap@10 by year"],
    formulas: [],
}


def main() -> None:
    facts = json.loads(Path(sys.argv[1]).read_text())
    sys.path[:0] = sys.argv[2:]
    found: list[tuple[str, str, float | None]] = []
    for peer, keys in KEYS.items():
        try:
            found += [(key, name, float(value)) for key, name, value in peer(facts)]
        except ImportError as error:
            print(f"{peer.__name__}: {error}", file=sys.stderr)
            found += [(key, peer.__name__, None) for key in keys]
    print(json.dumps(found))


if __name__ == "__main__":
    main()

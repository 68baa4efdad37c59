"""Items that nobody has taken: recall on them with vectors, without, and with LightFM.

    python benchmarks/cold_start.py --data FOLDER                 the table, three seeds
    python benchmarks/cold_start.py --data FOLDER --choose        settings on another seed

FOLDER holds `beauty.txt` (a line per user: user item item ..., in order of time) and
`beauty.item_attributes.json` (item -> numbers of attributes), each also as .xz. A seed holds 10 %
of the items out of training, with all their interactions. Of the rest the last interaction of a
user is the warm test, the one before validates. Vectors are attributes as zeros and ones.

Every model ranks by products of vectors, so one function asks all of them. For held-out items the
question is what a user took in training, and the answers are what the user took of them:

    cold         recall@20 among the held-out items
    cold, all    the same among all items that the user did not take in training
    warm         recall@20 of the last other item, among all items
    warm, known  the same among items that were in training

LightFM learns from the same interactions and attributes by shoal.compat.lightfm; items that were
held out are described by their attributes alone. Settings are those that --choose found best.
"""

import argparse
import json
import lzma
import math
import statistics
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import shoal
from shoal.compat.lightfm import LightFM
from shoal.recommender.recommender import History
from shoal.runs.trained_run import Trained

TOP, SHARE, BLOCK = 20, 0.1, 512
SASREC = {
    "model.hidden_size": 256,
    "model.inner_size": 1024,
    "model.cosine": True,
    "model.temperature": 0.07,
    "train.epochs": 80,
    "train.batch_size": 256,
    "train.optimizer.lr": 0.001,
    "train.optimizer.schedule": "linear",
    "train.optimizer.warmup_steps": 200,
    "train.eval_every": 8,
    "train.patience": 8,
    "eval.valid_metric": "NDCG@10",
    "eval.valid_users": "all",
    "run.tf32": True,
}
BPR = {
    "model.embedding_size": 64,
    "train.epochs": 20,
    "train.batch_size": 1024,
    "train.optimizer.lr": 0.002,
    "train.eval_every": 5,
    "train.patience": 3,
    "eval.valid_users": 2000,
    "eval.valid_metric": "NDCG@10",
    "train.negatives": {"num": 1, "distribution": "popularity", "alpha": 0.01},
}
UNIT, ALONE = {"data.item_vectors.normalise": "unit"}, {"data.item_vectors.rows": "none"}
# name -> model, its keys, and those of vectors (None: it has none)
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "SASRec": ("SASRec", SASREC, None),
    "SASRec, rows: add": ("SASRec", SASREC, UNIT),
    "SASRec, rows: none": ("SASRec", SASREC, {**UNIT, **ALONE}),
    "BPR": ("BPR", BPR, None),
    "BPR, rows: add": ("BPR", BPR, UNIT),
    "BPR, rows: none": ("BPR", BPR, {**UNIT, **ALONE}),
}
STANDARD = {"data.item_vectors.normalise": "standard"}
CHOICES = {
    **RUNS,
    "SASRec, standard": ("SASRec", SASREC, STANDARD),
    "SASRec, as they are": ("SASRec", SASREC, {}),
    "SASRec, decay 0.01": ("SASRec", {**SASREC, "train.optimizer.weight_decay": 0.01}, UNIT),
    "BPR, standard": ("BPR", BPR, STANDARD),
    "BPR, as they are": ("BPR", BPR, {}),
}
LIGHTFM = {"own id": True, "no_components": 64, "learning_rate": 0.05, "epochs": 20}
LIGHTFM_CHOICES = [
    {**LIGHTFM, "own id": own, "learning_rate": rate, "epochs": epochs}
    for own in (True, False)
    for rate in (0.02, 0.05)
    for epochs in (10, 30)
]


@dataclass(frozen=True)
class Split:
    """Items taken by each user [users], in order: learned, validated, tested, held out."""

    learned: list[list[int]]
    valid: list[list[int]]
    warm: list[list[int]]
    cold: list[list[int]]
    held_out: np.ndarray  # bool [items]


@dataclass(frozen=True)
class Vectors:
    """What answers: products of queries [users, d] and items [items, d]."""

    queries: np.ndarray
    items: np.ndarray


# ---- the data -----------------------------------------------------------------------------------


def lines(path: Path) -> list[str]:
    """The lines of a file, or of the same packed by xz."""
    if path.is_file():
        return path.read_text().splitlines()
    return lzma.decompress(path.with_name(path.name + ".xz").read_bytes()).decode().splitlines()


def read(folder: Path) -> tuple[list[list[int]], sparse.csr_matrix]:
    """Each user's items, and the attributes of items [items, attributes], item 0 without any."""
    users = [[int(word) for word in line.split()[1:]] for line in lines(folder / "beauty.txt")]
    known = json.loads("\n".join(lines(folder / "beauty.item_attributes.json")))
    count = 1 + max(max(items) for items in users)
    pairs = [(int(item), one) for item, some in known.items() for one in some]
    rows, columns = np.array(pairs).T
    marks = sparse.csr_matrix((np.ones(len(pairs), np.float32), (rows, columns)))
    marks.resize(count, marks.shape[1])
    return users, marks


def split(users: list[list[int]], count: int, seed: int) -> Split:
    held_out = np.random.default_rng(seed).random(count) < SHARE
    parts: tuple[list[list[int]], ...] = ([], [], [], [])
    for items in users:
        rest = [item for item in items if not held_out[item]]
        tested = 1 if len(rest) > 2 else 0
        cut = len(rest) - 2 * tested
        parts[0].append(rest[:cut])
        parts[1].append(rest[cut : cut + tested])
        parts[2].append(rest[cut + tested :])
        parts[3].append([item for item in items if held_out[item]])
    return Split(*parts, held_out)


# ---- the question -------------------------------------------------------------------------------


def recall(vectors: Vectors, known: list[list[int]], wanted: list[list[int]], among: Any) -> float:
    """The mean share of a user's wanted items in the first 20 of `among` [items], but for known."""
    who = np.array([k for k, items in enumerate(wanted) if items])
    shares = []
    for block in np.split(who, range(BLOCK, len(who), BLOCK)):
        scores = vectors.queries[block] @ vectors.items.T
        scores[:, ~among] = -np.inf
        for row, user in zip(scores, block):
            row[known[user]] = -np.inf
        best = np.argpartition(-scores, TOP, axis=1)[:, :TOP]
        for row, user in zip(best, block):
            shares.append(len(set(row.tolist()) & set(wanted[user])) / len(set(wanted[user])))
    return float(np.mean(shares))


def figures(part: Split, asked: Vectors, later: Vectors) -> dict[str, float]:
    """asked: of what was learned; later: with the validated item, for those that read histories."""
    every = np.ones(len(part.held_out), bool)
    every[0] = False
    known = [learned + valid for learned, valid in zip(part.learned, part.valid)]
    return {
        "cold": recall(asked, part.learned, part.cold, part.held_out & every),
        "cold, all": recall(asked, part.learned, part.cold, every),
        "warm": recall(later, known, part.warm, every),
        "warm, known": recall(later, known, part.warm, every & ~part.held_out),
        "validation": recall(asked, part.learned, part.valid, every),
    }


# ---- the answers --------------------------------------------------------------------------------


def write(path: Path, parts: Iterable[list[list[int]]]) -> None:
    with open(path, "w") as file:
        file.write("user_id,item_id,timestamp\n")
        for number, part in enumerate(parts):
            for user, items in enumerate(part, 1):
                for place, item in enumerate(items):
                    file.write(f"{user},{item},{1000 * (number + 1) + place}\n")


def shoal_run(
    name: str, keys: dict[str, Any], part: Split, marks: sparse.csr_matrix | None, seed: int
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(folder / "train.csv", [part.learned])
        write(folder / "valid.csv", [part.valid])
        write(folder / "test.csv", [part.warm, part.cold])
        given = {
            **keys,
            "data.files": {one: str(folder / f"{one}.csv") for one in ("train", "valid", "test")},
            "data.separator": ",",
            "run.seed": seed,
            "run.output": str(folder / "run"),
            "run.log_level": "warning",
            "run.progress": False,
            "run.trackers": [],
            "eval.metrics": ["Recall", "NDCG"],
            "eval.topk": [10, 20],
            "eval.repeatable": False,
            "checkpoint.keep": 1,
        }
        if marks is not None:
            numbers = np.flatnonzero(np.diff(marks.indptr))
            np.save(folder / "marks.npy", marks[numbers].toarray().astype(np.float16))
            (folder / "marks.txt").write_text("\n".join(map(str, numbers)))
            given["data.item_vectors.file"] = str(folder / "marks.npy")
        shoal.run(model=name, config_dict=given)
        return figures(part, *asked(Trained(folder / "run"), part))


def asked(trained: Trained, part: Split) -> tuple[Vectors, Vectors]:
    """Queries of what was learned, and of that with the validated item."""
    catalogue: Any = trained.recommender.catalogue
    width = catalogue.item_vectors.shape[1]
    place = catalogue.items.find(range(len(part.held_out)))
    items = catalogue.item_vectors.numpy()[place]
    if trained.model.kind != "sequential":
        queries = np.zeros((len(part.learned), width), np.float32)
        users = catalogue.users.find(range(1, len(queries) + 1))
        queries[users > 0] = catalogue.of_users(users[users > 0]).numpy()
        return Vectors(queries, items), Vectors(queries, items)
    found = []
    for with_valid in (False, True):
        texts = [a + b if with_valid else a for a, b in zip(part.learned, part.valid)]
        histories = [History(place[text]) for text in texts]
        found.append(Vectors(catalogue.of_histories(histories).numpy(), items))
    return found[0], found[1]


def lightfm_run(
    part: Split, marks: sparse.csr_matrix, seed: int, settings: dict[str, Any]
) -> dict[str, float]:
    count, options = len(part.held_out), dict(settings)
    own, epochs = options.pop("own id"), options.pop("epochs")
    rows = np.repeat(np.arange(len(part.learned)), [len(items) for items in part.learned])
    columns = np.concatenate([np.array(items, np.int64) for items in part.learned])
    taken = sparse.csr_matrix(
        (np.ones(len(rows), np.float32), (rows, columns)), (len(part.learned), count)
    )
    identity = sparse.diags((~part.held_out).astype(np.float32))
    features = sparse.hstack([identity, marks]).tocsr() if own else marks
    features.eliminate_zeros()
    model = LightFM(loss="warp", random_state=seed, **options)
    model.fit(taken, item_features=features, epochs=epochs)
    _, users = model.get_user_representations()
    biases, items = model.get_item_representations(features)
    vectors = Vectors(
        np.column_stack([users, np.ones(len(users), np.float32)]), np.column_stack([items, biases])
    )
    return figures(part, vectors, vectors)


# ---- tables -------------------------------------------------------------------------------------


def row(name: str, found: list[dict[str, float]]) -> str:
    """The mean of each figure over seeds, and half its 95 % interval (Student's t)."""
    cells = []
    for key in found[0]:
        values = [one[key] for one in found]
        text = f"{statistics.mean(values):.4f}"
        if len(values) > 1:
            t = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}.get(len(values), 2.0)
            text += f" ± {t * statistics.stdev(values) / math.sqrt(len(values)):.4f}"
        cells.append(text)
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", default=[], help="beginnings of names")
    parser.add_argument("--choose", action="store_true")
    given = parser.parse_args()
    users, marks = read(given.data)
    seeds = [100] if given.choose else given.seeds
    parts = {seed: split(users, marks.shape[0], seed) for seed in seeds}
    print("| | cold | cold, all | warm | warm, known | validation |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    wanted = [one.lower() for one in given.only]
    for name, (model, keys, vectors) in (CHOICES if given.choose else RUNS).items():
        if wanted and not name.lower().startswith(tuple(wanted)):
            continue
        known = None if vectors is None else marks
        found = [
            shoal_run(model, keys | (vectors or {}), part, known, seed)
            for seed, part in parts.items()
        ]
        print(row(name, found), flush=True)
    for settings in LIGHTFM_CHOICES if given.choose else [LIGHTFM]:
        if wanted and not "lightfm".startswith(tuple(wanted)):
            continue
        found = [lightfm_run(part, marks, seed, settings) for seed, part in parts.items()]
        shown = ", ".join(f"{key} {value}" for key, value in settings.items())
        print(row(f"LightFM ({shown})", found), flush=True)


if __name__ == "__main__":
    main()

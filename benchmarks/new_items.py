"""`POST /items` of a running service: how long until a list holds the new item.

    python benchmarks/new_items.py [--prepared FOLDER] [--items 500000] [--posts 11]

SASRec is trained for one epoch on generated data, with a vector of 64 numbers for each item, and
exported. Served by a process of its own, it is posted items whose vectors point where a person's
query does, so that the best ten of the whole catalogue, ranked exactly, must hold them. Times are
from sending the post to having read the list. The first post is shown apart: it copies the items'
rows. Beside it stand the ways without a post: to write another artifact by `shoal artifact
add-items`, or to export the run anew, until the service answers with the newer one; training is not
counted. With --prepared the trained folder is kept and used again.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from shoal.serving.artifact import files
from shoal.serving.load.measurement import MeasuredService

USERS, TAKEN, WIDTH = 25_000, 24, 64
TOKEN = "a token of the benchmark"


def main() -> None:
    """Prepare, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--prepared")
    parser.add_argument("--items", type=int, default=500_000)
    parser.add_argument("--posts", type=int, default=11)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="new-items-") as scratch:
        root = Path(options.prepared or scratch)
        if not (root / "artifact").exists():
            prepare(root, options.items)
        print(f"$ python {' '.join(sys.argv)}")
        print(f"{platform.machine()}, {os.cpu_count()} cores, the client included")
        print("| way | items of a post | first, s | median, s | slowest, s |")
        print("| --- " * 5 + "|")
        for processes in (1, 2):
            for count in (1, 100):
                with Service(root, Path(scratch) / f"{processes}-{count}", processes) as service:
                    seconds = [service.post_and_ask(count) for _ in range(options.posts)]
                first, others = seconds[0], seconds[1:]
                name = f"`POST /items`, {processes} process{'es' * (processes > 1)}"
                print(
                    f"| {name} | {count} | {first:.3f} | {statistics.median(others):.3f} | "
                    f"{max(others):.3f} |",
                    flush=True,
                )
        for way in (add_items, export):
            with Service(root, Path(scratch) / way.__name__, 1) as service:
                begun = time.perf_counter()
                way(root, service)
                service.wait_for("day-1")
                seconds = [time.perf_counter() - begun]
            print(f"| {way.__doc__} | {100 if way is add_items else 0} | {seconds[0]:.1f} | | |")


class Service:
    """A service of a folder of artifacts, and a client of it."""

    def __init__(self, root: Path, scratch: Path, processes: int):
        self.days = scratch / "days"
        self.days.mkdir(parents=True)
        shutil.copytree(root / "artifact", self.days / "day-0")
        (self.days / "day-0" / "README.md").write_text("what is exported again is another one\n")
        files.write_manifest(self.days / "day-0")
        token = scratch / "token"
        token.touch(0o600)
        token.write_text(TOKEN)
        words = ["serve", str(self.days), f"--items={scratch / 'added'}"]
        words += [f"--items-token-file={token}", f"--processes={processes}", "--refresh=0.2"]
        self.process = MeasuredService(words)
        asked = np.load(root / "asked.npz")
        self.vector = asked["vector"]
        self.history = asked["history"].tolist()
        self.random = np.random.default_rng(1)
        self.posted = 0

    def __enter__(self) -> Service:
        self.process.__enter__()
        place = self.process.address.rpartition("/")[2]
        self.client = http.client.HTTPConnection(place, timeout=600)
        self.call("/v1/recommend", {"history": self.history})
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self.process.__exit__(*error)

    def call(self, path: str, body: Any = None) -> Any:
        headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
        data = None if body is None else json.dumps(body)
        self.client.request("GET" if body is None else "POST", path, data, headers)
        answer = self.client.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return json.loads(text)

    def post_and_ask(self, count: int) -> float:
        """Seconds from a post of so many items to a list that holds the first of them."""
        vectors = self.random.normal(size=(count, WIDTH))
        self.posted += 1
        vectors[0] = self.vector * (1 + 0.01 * self.posted)  # above those that were posted before
        names = [f"new-{self.posted}-{number}" for number in range(count)]
        items = [{"item": name, "vector": v.tolist()} for name, v in zip(names, vectors)]
        begun = time.perf_counter()
        self.call("/items", {"items": items})
        best = self.call("/v1/recommend", {"history": self.history, "topk": 10})["items"]
        seconds = time.perf_counter() - begun
        assert best[0]["item"] == names[0], best
        return seconds

    def wait_for(self, artifact: str) -> None:
        """Until the service answers with this artifact."""
        self.client.close()  # an idle connection may have ended
        while self.call("/ready")["artifact"] != artifact:
            time.sleep(0.05)


def add_items(root: Path, service: Service) -> None:
    """`shoal artifact add-items` beside it, and reload"""
    vectors = service.random.normal(size=(100, WIDTH)).astype(np.float32)
    file = service.days.parent / "new.npz"
    np.savez(file, ids=np.array([f"new-{number}" for number in range(100)]), vectors=vectors)
    shoal("artifact", "add-items", service.days / "day-0", file, "--to", service.days / "day-1")


def export(root: Path, service: Service) -> None:
    """`shoal export` of the run beside it, and reload"""
    shoal("export", root / "run", "--to", service.days / "day-1")


def shoal(*words: object) -> None:
    """Run a command of Shoal."""
    command = [sys.executable, "-m", "shoal", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def prepare(root: Path, count: int) -> None:
    """Train on generated data with vectors of items, export, and find what is asked."""
    import polars as pl
    import torch

    import shoal
    from shoal.recommender.recommender import History

    draw, taken = np.random.default_rng(7), USERS * TAKEN
    items = draw.permutation(np.resize(np.arange(count), max(taken, count)))[:taken]
    interactions = pl.DataFrame(
        {
            "user": np.repeat(np.arange(USERS), TAKEN),
            "item": items,
            "time": 1_700_000_000 + np.tile(np.arange(TAKEN) * 3600, USERS),
        }
    ).with_columns(pl.format("item-{}", "item").alias("item"))
    np.save(root / "vectors.npy", draw.normal(size=(count, WIDTH)).astype(np.float32))
    (root / "vectors.txt").write_text("\n".join(f"item-{k}" for k in range(count)))
    keys: dict[str, Any] = {
        "data.item_vectors.file": str(root / "vectors.npy"),
        "data.max_len": TAKEN,
        "model.hidden_size": 64,
        "model.loss_type": "BPR",
        "train.negatives.num": 1,
        "train.batch_size": 256,
        "train.epochs": 1,
        "train.eval_every": 0,
        "run.output": str(root / "run"),
        "run.progress": False,
        "run.trackers": [],
    }
    shoal.fit("SASRec", interactions, user="user", item="item", time="time", **keys)
    shoal.export(root / "run", root / "artifact")
    artifact = shoal.load(root / "artifact")
    history = [artifact.items.values[number] for number in (1, 2, 3)]
    query = artifact.queries(artifact.of_histories([History(artifact.items.find(history))]))[0]
    # A vector of which W makes the query, far longer than those of other items.
    weight = artifact.projector.rows(torch.eye(WIDTH), torch.ones(WIDTH))["item"].T
    vector = torch.linalg.lstsq(weight, query[:, None]).solution[:, 0]
    vector *= 100 * float(artifact.item_vectors.norm(dim=1).max()) / float(query.norm())
    np.savez(root / "asked.npz", vector=vector.numpy(), history=np.array(history))


if __name__ == "__main__":
    main()

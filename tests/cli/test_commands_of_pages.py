"""Every command that a page of the documentation shows in a block, run as it stands.

Those of docs/reference/commands.md are run by test_examples_of_commands.py, and those of tutorials
by the tutorials. A page's commands run one after the other in a folder that has the files they
name; they are made short by the words of `SHORT`.
"""

from __future__ import annotations

import glob
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars
import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("commands.md", "every_model.md", "every_key.md")
# What cannot be run in one folder of one machine, and the tests that run the like.
ELSEWHERE = {
    r"10\.0\.0\.|192\.0\.2\.|=…": "tests/cluster/test_joining.py",
    "--ray=": "tests/cluster/test_ray.py",
    "data fetch": "tests/data/test_fetch.py",
    "--join": "tests/cluster/test_ps_leases.py",
    r"models/rank|train_reader_path": "tests/cluster/test_pages.py",
}
LARGE = ("torchrec", "mlflow")  # extras, which `make test-all` installs
SHORT = {
    "train": ["--train.epochs=1"],
    "launch": ["-o", "train.epochs=1"],
    "tune": ["--trials", "2", "--train.epochs=1"],
    "sweep": ["--train.epochs=1"],
    "backtest": ["--train.epochs=1"],
}
CLICKS = """
model: {name: LR}
data: {clicks: {train: train.csv, test: test.csv, slots: [site, device], dense: [age]}}
"""
ITEMS = "model: {name: BPR}\ndata: {name: ml-100k}\n"
# What a page's config.yaml is where it is not ITEMS, and commands that come before its own.
CONFIGS = {"servers": CLICKS, "elastic": CLICKS, "codes": ITEMS.replace("BPR", "TIGER")}
TRAIN = "shoal train config.yaml --output RUN"
BEFORE = {
    "bert4rec": ["shoal train --model=BERT4Rec --data.name=ml-100k --output RUN"],
    "own_models": [
        "shoal new model Tower",
        "shoal train --model=tower.py:Tower --data.name=ml-100k --output RUN",
    ],
    "export": [
        "shoal train --model=SASRec --data.name=ml-100k --output RUN",
        "shoal train clicks.yaml --output runs/clicks",
        "shoal export runs/clicks --to exported/clicks",
    ],
    "report": [TRAIN, *(f"shoal train config.yaml --output {one}" for one in ("OTHER", "THIRD"))],
    "explain": ["shoal train --model=EASE --data.name=ml-100k --output RUN"],
    "board": ["shoal train config.yaml --output runs/first"],
    "plan": ["shoal train config.yaml --output runs/first"],
    "serving": [TRAIN, "shoal export RUN --to exported/monday"],
    "pipeline": [
        *(
            f"shoal {verb}"
            for model in ("SASRec", "BPR", "Pop", "DeepFM")
            for verb in (
                f"train --model={model} --dataset=ml-100k --output runs/{model}",
                f"export runs/{model} --to exported/{model.lower()}",
            )
        )
    ],
    "failure": [TRAIN],
    "distributed": [TRAIN],
    "five_minutes": [TRAIN, "shoal export RUN --to model"],
    "tune": [
        f"shoal tune --model={name} --data.name=ml-100k --output studies/{name.lower()}"
        for name in ("BPR", "LightGCN")
    ],
}


def commands_of(text: str) -> list[str]:
    blocks = re.findall(r"^```[^`\n]*\n(.*?)^```", text.replace("\\\n", " "), re.M | re.S)
    return [
        line for block in blocks for line in re.findall(r"^(?:\$ )?(shoal [a-z].*)$", block, re.M)
    ]


PAGES = {
    str(page.relative_to(ROOT)): page
    for folder in ("start", "from", "reference", "understand")
    for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    if page.name not in GENERATED and commands_of(page.read_text())
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that pages name."""
    stage = tmp_path_factory.mktemp("stage")
    draw = np.random.default_rng(1)
    users, items = draw.integers(1, 201, 6000), draw.zipf(1.4, 6000) % 240 + 1
    days = np.datetime64("2000-04-25", "s").astype(int) + draw.integers(0, 400 * 86400, 6000)
    frame = polars.DataFrame(
        {"user_id": users, "item_id": items, "rating": draw.integers(1, 6, 6000), "timestamp": days}
    ).unique(["user_id", "item_id"], keep="first", maintain_order=True)
    frame.write_csv(stage / "ratings.csv")
    frame.write_csv(stage / "interactions.csv")
    people = polars.DataFrame({"user_id": range(1, 201), "gender": ["f", "m"] * 100})
    people = people.with_columns(age=polars.lit(30), occupation=polars.lit("baker"))
    films = polars.DataFrame({"item_id": range(1, 241), "class": ["a", "b", "c"] * 80})
    films = films.with_columns(release_year=polars.lit(1994))
    goods = polars.DataFrame({"id": range(1, 241), "in_stock": ["yes", "yes", "no"] * 80})
    goods = goods.with_columns(since=polars.lit("2000-05-01"), category=goods["id"] % 7)
    goods.write_csv(stage / "items.csv")
    frame.tail(300).select("user_id", "item_id").write_csv(stage / "later.csv")
    write_requests(stage, draw)
    write_vectors(stage, draw)
    for name in ("ml-100k", "ml-1m", "shop"):
        folder = stage if name == "shop" else stage / "dataset" / name
        folder.mkdir(parents=True, exist_ok=True)
        rated = frame.with_columns(label=polars.col("rating") > 3) if name == "shop" else frame
        atomic(rated.cast({polars.Boolean: polars.Int64}), folder / f"{name}.inter")
        atomic(people, folder / f"{name}.user")
        atomic(films, folder / f"{name}.item")
    for day in range(2):
        with (stage / f"day-{day}.txt").open("w") as lines:
            for _ in range(400):
                words = [draw.integers(0, 2), *draw.integers(0, 50, 13)]
                codes = [f"{one:08x}" for one in draw.integers(0, 90, 26)]
                lines.write("\t".join([*map(str, words), *codes]) + "\n")
    for name in ("train", "test", "samples"):
        columns = {"label": draw.integers(0, 2, 500), "site": draw.integers(0, 9, 500)}
        columns |= {"device": draw.integers(0, 4, 500), "age": draw.random(500)}
        polars.DataFrame(columns).write_csv(stage / f"{name}.csv")
    (stage / "clicks.yaml").write_text(CLICKS)
    for name, model in (("day", "SASRec"), ("test", "BPR"), ("sasrec", "SASRec")):
        (stage / f"{name}.yaml").write_text(ITEMS.replace("BPR", model))
    (stage / "grid.yaml").write_text("models: [BPR, Pop]\ndata: [ml-100k]\nseeds: 2\n")
    keys = "keys: {train.epochs: 1}\n"
    (stage / "arena.yaml").write_text(f"models: [Pop, BPR]\ndata: [ml-100k]\nseeds: 2\n{keys}")
    for folder in ("data/tuesday", "data/new"):
        (stage / folder).mkdir(parents=True)
        atomic(frame.tail(600), stage / folder / "tuesday.inter")
    (stage / "recipes").symlink_to(ROOT / "recipes")
    return stage


def write_requests(stage: Path, draw: np.random.Generator) -> None:
    """A request log in the folder `requests`, its outcomes, and a pipeline to compare with it."""
    (stage / "requests").mkdir()
    lines, clicked = [], []
    for number in range(300):
        name, items = f"r{number}", draw.permutation(20)[:4] + 1
        entry = {"request": name, "time": 1e9 + number, "user": int(draw.integers(1, 201))}
        entry |= {"items": items.tolist(), "propensity": [0.1, 0.2, 0.1, 0.1]}
        lines.append(json.dumps({**entry, "place_propensity": [0.1] * 4}))
        clicked += [(name, int(item), 1) for item in items[draw.random(4) < 0.3]]
    (stage / "requests/requests-20261119-120000-1.jsonl").write_text("\n".join(lines) + "\n")
    outcomes = polars.DataFrame(clicked, schema=["request", "item", "label"], orient="row")
    outcomes.write_csv(stage / "outcomes.csv")
    (stage / "new.yaml").write_text("retrieve: [{artifact: exported/bpr, number: 50}]\n")


def write_vectors(stage: Path, draw: np.random.Generator) -> None:
    """Vectors of the items of ratings.csv, and of two that come later."""
    np.save(stage / "texts.npy", draw.normal(size=(240, 8)).astype(np.float32))
    (stage / "texts.txt").write_text("".join(f"{item}\n" for item in range(1, 241)))
    later = draw.normal(size=(2, 8)).astype(np.float32)
    np.savez(stage / "new.npz", vectors=later, ids=np.array(["901", "902"]))


def atomic(frame: polars.DataFrame, to: Path) -> None:
    kinds = dict.fromkeys(("rating", "timestamp", "label", "age"), "float")
    named = frame.rename({name: f"{name}:{kinds.get(name, 'token')}" for name in frame.columns})
    named.write_csv(to, separator="\t")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page(page: str, stage: Path, tmp_path: Path) -> None:
    text, name = PAGES[page].read_text(), PAGES[page].stem
    commands = commands_of(text)
    folder = tmp_path / "here"
    shutil.copytree(stage, folder, symlinks=True)
    (folder / "config.yaml").write_text(CONFIGS.get(name, ITEMS))
    shutil.copy(folder / "config.yaml", folder / "CONFIG.yaml")
    for file, code in re.findall(
        r"^```(?:python|yaml)\n# (\w+\.\w+)\n(.*?)^```", text, re.M | re.S
    ):
        (folder / file).write_text(code)
    for command in [*BEFORE.get(name, ()), *commands]:
        elsewhere = next((one for key, one in ELSEWHERE.items() if re.search(key, command)), None)
        if elsewhere is not None:
            assert (ROOT / elsewhere).exists(), f"{command}: {elsewhere} is not there"
        elif all(find_spec(one) for one in LARGE if one in command):
            run(command, folder)


def run(command: str, folder: Path) -> None:
    words = shlex.split(command, comments=True)[1:]
    found = [glob.glob(word, root_dir=folder) if "*" in word else [] for word in words]
    words = [one for word, files in zip(words, found) for one in (sorted(files) or [word])]
    words += [] if "epochs=" in command else SHORT.get(words[0], [])
    words += ["--bench-seconds=0.2"] if "--bench" in words else []
    if (
        ("serve" in words[:2] and "--bench" not in words)
        or words[0] == "board"
        or "--follow" in words
    ):
        return serve(words, folder)
    command_line = [sys.executable, "-m", "shoal", *words]
    done = subprocess.run(command_line, cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def serve(words: list[str], folder: Path) -> None:
    """Until it announces its address, or has trained on what is there."""
    follows = "--follow" in words
    words = [word.replace("/data/runs", "runs") for word in words if not word.startswith("--port")]
    words += [] if follows else ["--port=0", "--announce=address"]
    awaited = folder / ("exported/current" if follows else "address")
    with subprocess.Popen([sys.executable, "-m", "shoal", *words], cwd=folder) as process:
        deadline = time.monotonic() + 180
        while not (awaited.exists() or (follows and list((folder / "exported").glob("*")))):
            assert process.poll() is None and time.monotonic() < deadline, words
            time.sleep(0.1)
        process.terminate()
    awaited.unlink(missing_ok=True)

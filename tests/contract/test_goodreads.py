"""Goodreads by tdfo's config.toml: one file, single, ddp and sharded, the same numbers."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ranks import run_ranks

from shoal.config.errors import ConfigError
from shoal.data.batch import Batch
from shoal.data.prepared.folder import PrepareJob
from shoal.data.prepared.preparation import prepare
from shoal.distributed.world import World
from shoal.models.sequential.bert4rec import BERT4Rec
from shoal.runs.build import build
from shoal.runs.run import resolve

pytest.importorskip("polars")
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "pages" / "tdfo"
STEPS = 12


def write_books(path: Path, users: int = 60) -> None:
    """A file of Goodreads' format: some users have too few books, one has too many."""
    draw = np.random.default_rng(3)
    lines = ["user_id,book_id,is_read,rating,is_reviewed"]
    for user in range(users):
        count = 230 if user == 7 else int(draw.integers(15, 60))
        books = (draw.zipf(1.4, 400) * 7 + user) % 400
        lines += [f"{user},{b},1,{b % 6},0" for b in dict.fromkeys(books.tolist())][: count + 1]
    path.write_text("\n".join(lines) + "\n")


def prepared(folder: Path, csv: Path | None = None) -> Path:
    """The page's config.toml, verbatim but for data_dir, and its data."""
    folder.mkdir(parents=True, exist_ok=True)
    if csv is None:
        csv = folder / "goodreads_interactions.csv"
        write_books(csv)
    text = (EXAMPLES / "config.toml").read_text().replace('"/data"', f'"{folder}"')
    (folder / "config.toml").write_text(text)
    config = resolve([folder / "config.toml"]).config
    to = Path(config.data.path) / config.data.name
    prepare(PrepareJob([str(csv)], to, config.data, config.run.seed))
    return folder / "config.toml"


def curve(world: World, toml: str, *words: str) -> dict[str, Any]:
    """Losses of some steps, and the metrics after them."""
    config = resolve([toml], ["--run.progress=false", *words]).config
    parts = build(config, world)
    parts.model.train()
    losses: list[float] = []
    epoch = 0
    while len(losses) < STEPS:
        for batch in parts.reader.batches(epoch, world.rank, world.size):
            losses.append(float(parts.strategy.train_step(batch)))
        epoch += 1
    metrics = parts.evaluator.evaluate(parts.model, "test")
    parts.strategy.close()
    return {"batch": parts.config.train.samples, "losses": losses[:STEPS], "metrics": metrics}


def both(world: World, toml: str) -> dict[str, Any]:
    """Starting processes is what costs."""
    return {
        "sharded": curve(world, toml, "--strategy.replicate_below=0"),
        "ddp": curve(world, toml, "--model_parallel=false"),
    }


def check_curves(toml: Path, scratch: Path) -> None:
    whole = ["--per_device_train_batch_size=32", "--strategy.name=single"]
    alone = curve(World(), str(toml), *whole)
    for rank in run_ranks(both, 2, scratch, str(toml)):
        for name, found in rank.items():
            assert found["batch"] == alone["batch"] == 32, "multiplied by the processes, once"
            assert found["losses"] == pytest.approx(alone["losses"], rel=2e-5), name
            assert found["metrics"] == pytest.approx(alone["metrics"], abs=1e-6), name
    names = {f"{metric}@{k}" for metric in ("recall", "ndcg") for k in (10, 20, 50)}
    assert set(alone["metrics"]) == names
    assert alone["losses"][-1] < alone["losses"][0]


@pytest.mark.slow  # processes
def test_the_pages_toml_gives_the_same_losses_everywhere(tmp_path: Path) -> None:
    check_curves(prepared(tmp_path / "data"), tmp_path / "ranks")


@pytest.mark.slow
def test_the_pages_toml_gives_the_same_losses_on_the_real_sample(tmp_path: Path) -> None:
    csv = Path(os.environ.get("SHOAL_TEST_DATA", "")) / "goodreads" / "goodreads_interactions.csv"
    if not csv.is_file():
        pytest.skip("SHOAL_TEST_DATA names no folder with goodreads")
    check_curves(prepared(tmp_path / "data", csv), tmp_path / "ranks")


def test_windows_and_candidates_are_those_of_the_page(tmp_path: Path) -> None:
    toml = prepared(tmp_path / "data")
    config = resolve([toml], ["--strategy.name=single"]).config
    parts = build(config, World())
    dataset, reader = parts.dataset, parts.reader
    counts = np.bincount(dataset.inter["user_id"])[1:]
    assert counts.min() >= 20 and counts.max() <= 200
    lines = (tmp_path / "data" / "goodreads_interactions.csv").read_text().splitlines()[1:]
    pairs = [line.split(",")[:2] for line in lines]
    user, books = dataset.vocab["user_id"][3], dataset.vocab["item_id"]
    own = [book for one, book in pairs if one == user]
    history, offsets = dataset.history(("train",))
    mine = [books[int(i)] for i in history[offsets[3] : offsets[4]]]
    assert mine == own[:-2], "the order of the file, without the last two"
    numbers = np.arange(len(reader.windows))
    users, starts, _ = reader.windows.find(numbers)
    assert (starts[users == 3] - offsets[3]).tolist() == list(range(0, len(mine), 10))
    data, _ = parts.evaluator._prepared("test")
    assert (np.diff(data.candidates.offsets) == 101).all()


def test_smoothed_labels_are_those_of_torch(tmp_path: Path) -> None:
    toml = prepared(tmp_path / "data")
    words = ["--strategy.name=single", "--model.hidden_dropout_prob=0"]
    config = resolve([toml], [*words, "--model.attn_dropout_prob=0"]).config
    parts = build(config, World())
    model = parts.model.train()
    assert isinstance(model, BERT4Rec)
    batch: Batch = next(iter(parts.reader.batches(0)))
    found = model(batch)
    wanted = batch.ids["masked"].values
    states = model.encode(batch.tensor("history"), wanted).detach()
    rows, bias = (model.embed.whole(name).detach() for name in ("output", "output_bias"))
    logits = (states @ rows.T + bias.T)[:, 1 : model.mask_token]
    targets = batch.tensor("target").view(-1)[wanted] - 1
    right = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)
    plain = F.cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(found.loss.detach(), right)
    assert abs(float(right - plain)) > 1e-3


def test_settings_that_the_toml_may_not_have(tmp_path: Path) -> None:
    text = (EXAMPLES / "config.toml").read_text()
    for line, wrong, said in [
        ("sliding_step = 10", "sliding_step = 30", "at most max_len"),
        ('train_data = "train_part_*.parquet"', 'train_data = "train_part_1.parquet"', "all parts"),
        ("model_parallel = true", 'model_parallel = "yes"', "true .sharded tables. or false"),
        ("n_heads = 2", "n_head = 2", "did you mean n_heads"),
        ("seed = 42", "seed = = 42", r"config.toml:18: not valid TOML"),
    ]:
        assert line in text
        (tmp_path / "config.toml").write_text(text.replace(line, wrong))
        with pytest.raises(ConfigError, match=said):
            resolve([tmp_path / "config.toml"])

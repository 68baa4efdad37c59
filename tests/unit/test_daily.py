"""Going on from a run with new data: known ids keep their rows, new ones begin, nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import NO_DROPOUT
from typer.testing import CliRunner

import shoal
from shoal.command import cli
from shoal.config.schema import Config
from shoal.runs.build import Parts, build
from shoal.runs.daily.growth import FILE, grow, read_vocabularies
from shoal.runs.daily.start import begin
from shoal.runs.run import resolve
from shoal.runs.trained import Trained
from shoal.world.world import World

QUIET = {"run.progress": False, "run.tensorboard": False, "run.log_level": "warning"}


def write_day(root: Path, name: str, users: range, items: range, seed: int) -> Path:
    """Interactions in an order of their own, so that ids are numbered otherwise every day."""
    random = np.random.default_rng(seed)
    pairs = [(u, i) for u in users for i in random.permutation(list(items))[:8]]
    lines = ["user_id:token\titem_id:token\ttimestamp:float"]
    for when, k in enumerate(random.permutation(len(pairs))):
        lines.append(f"u{pairs[k][0]}\ti{pairs[k][1]}\t{when}")
    (root / name).mkdir()
    (root / name / f"{name}.inter").write_text("\n".join(lines) + "\n")
    return root / name


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("days")
    write_day(root, "day-1", range(30), range(25), 1)
    write_day(root, "day-2", range(10, 40), range(5, 32), 2)
    return root


def values_of(model: str, root: Path, day: str, **more: Any) -> dict[str, Any]:
    values = {"model": model, **NO_DROPOUT[model], **QUIET, "data.path": str(root)}
    values |= {"data.name": day, "data.max_len": 6, "train.batch_size": 32, "train.epochs": 1}
    if model == "BERT4Rec":
        values["model.window_stride"] = 3
    return values | {key.replace("__", "."): value for key, value in more.items()}


def parts_of(values: dict[str, Any]) -> tuple[Config, Parts]:
    config = resolve(values=values).config
    return config, build(config, World())


def rows_by_word(parts: Parts, table: str) -> dict[str, tuple[np.ndarray, ...]]:
    """Word -> its row and the optimizer's state of it."""
    dataset, found = parts.dataset, {}
    field = dataset.user_field if "user" in table else dataset.item_field  # type: ignore[union-attr]
    words = [*dataset.vocab[field], "[MASK]"]  # type: ignore[union-attr]
    for chunk in parts.strategy.stores[table].export():
        for k, id_ in enumerate(chunk.ids.tolist()):
            state = [chunk.state[name][k].numpy() for name in sorted(chunk.state)]
            found[words[id_]] = (chunk.values[k].numpy(), *state)
    return found


@pytest.mark.parametrize("model", ["BPR", pytest.param("BERT4Rec", marks=pytest.mark.slow)])
def test_known_ids_keep_rows_and_state(model: str, root: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    shoal.run(config_dict=values_of(model, root, "day-1", run__output=str(first)))
    old = Trained(first)
    more = {"start__run": str(first), "start__words": str(first)}
    config, parts = parts_of(values_of(model, root, "day-2", **more))
    fresh = {name: rows_by_word(parts, name) for name in parts.strategy.stores}
    begin(config, parts.strategy, parts.dataset, World())
    for name in parts.strategy.stores:
        before, now = rows_by_word(old.parts, name), rows_by_word(parts, name)
        assert before.keys() - now.keys() == set() and now.keys() - before.keys()
        for word, row in now.items():
            expected = before.get(word) or fresh[name][word]
            for one, other in zip(row, expected, strict=True):
                np.testing.assert_array_equal(one, other)
    for one, other in zip(old.model.parameters(), parts.model.parameters()):
        assert torch.equal(one, other)
    assert parts.strategy.rows.steps == old.parts.strategy.rows.steps


def test_a_second_day_from_the_command_line(root: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    values = values_of("BPR", root, "day-1", run__output=str(first), train__epochs=3)
    shoal.run(config_dict=values)
    words = ["train", "--from", str(first), "--data", str(root / "day-2"), "--output", str(second)]
    done = CliRunner().invoke(cli.app, [*words, "--train.epochs=2"], catch_exceptions=False)
    assert done.exit_code == 0
    trained = Trained(second)
    known, grown = read_vocabularies(first / FILE), read_vocabularies(second / FILE)
    for field in ("user_id", "item_id"):
        assert grown[field][: len(known[field])] == known[field]
        assert trained.parts.dataset.vocab[field].tolist() == grown[field]  # type: ignore[union-attr]
    assert trained.evaluate()["test"] == pytest.approx(
        json.loads((second / "result.json").read_text())["test"]
    )
    assert len(trained.recommend("u39", 5)) == 5  # new today
    assert len(trained.recommend("u3", 5)) == 5  # not seen today


def test_vectors_to_begin_with(root: Path, tmp_path: Path) -> None:
    vectors = np.arange(3 * 16, dtype=np.float32).reshape(3, 16)
    np.save(tmp_path / "items.npy", vectors)
    (tmp_path / "items.txt").write_text("i3\nunknown\ni7\n")
    more = {"start__pretrained": {"item": str(tmp_path / "items.npy")}}
    config, parts = parts_of(values_of("BPR", root, "day-1", **more))
    before = rows_by_word(parts, "item")
    begin(config, parts.strategy, parts.dataset, World())
    now = rows_by_word(parts, "item")
    np.testing.assert_array_equal(now["i3"][0], vectors[0])
    np.testing.assert_array_equal(now["i7"][0], vectors[2])
    np.testing.assert_array_equal(now["i4"][0], before["i4"][0])
    (tmp_path / "items.txt").unlink()
    with pytest.raises(ValueError, match=r"has 3 rows and table 'item' 26"):
        begin(config, parts.strategy, parts.dataset, World())


def test_side_columns_grow_with_their_ids(root: Path) -> None:
    dataset = parts_of(values_of("BPR", root, "day-1"))[1].dataset
    assert not isinstance(dataset, dict)
    known = {"item_id": ["[PAD]", "i99", "i3"]}
    grown = grow(dataset, known)  # type: ignore[arg-type]
    assert grown.vocab["item_id"][:3].tolist() == known["item_id"]
    before = dataset.vocab["item_id"][dataset.inter["item_id"]]  # type: ignore[union-attr,index]
    assert (grown.vocab["item_id"][grown.inter["item_id"]] == before).all()  # type: ignore[index]
    assert grown.vocab["user_id"].tolist() == dataset.vocab["user_id"].tolist()  # type: ignore[union-attr]

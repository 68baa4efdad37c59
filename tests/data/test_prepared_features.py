"""Features, labels and weights in prepared folders: what the files give, mapped and added to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import feature_data
import numpy as np
import pytest
import torch
from test_exactly_once import count

from shoal.clicks.layout import Layout
from shoal.clicks.samples import InMemory
from shoal.config.schema import Config
from shoal.data.batch import Jagged
from shoal.data.dataset import Dataset, Ragged
from shoal.data.encode import encode
from shoal.data.features import features_of, labels_of
from shoal.data.joined import JoinedSamples
from shoal.data.loading.load import load_dataset, with_side_files
from shoal.data.prepared.folder import PrepareJob, check
from shoal.data.prepared.preparation import prepare
from shoal.planning.data_summary import describe_run
from shoal.runs.fingerprint import fingerprint
from shoal.runs.run import resolve, train_here

pl = pytest.importorskip("polars")

SIDES = (".inter", ".user", ".item")
LABELS = {"click": {}, "spent": {"loss": "squared", "weight": 0.1}}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return feature_data.write(tmp_path_factory.mktemp("raw"))


def config_of(folder: Path, **more: Any) -> Config:
    return feature_data.config(folder, data__features=feature_data.FEATURES, **more)


def files_of(raw: Path, *suffixes: str) -> list[str]:
    return [str(raw / "shop" / f"shop{suffix}") for suffix in suffixes or SIDES]


def opened(config: Config, to: Path) -> Dataset:
    data = config.data.model_copy(update={"path": str(to)})
    return load_dataset(with_side_files(data), 5)


def assert_same(here: Dataset, there: Dataset) -> None:
    """Words, columns of all tables, missing values; ids may be of fewer bits."""
    assert {n: list(w) for n, w in here.vocab.items()} == {
        n: w.tolist() for n, w in there.vocab.items()
    }
    for part in ("inter", "users", "items"):
        ours, theirs = getattr(here, part), getattr(there, part)
        assert set(ours) == set(theirs)
        for name, column in theirs.items():
            if isinstance(column, Ragged):
                np.testing.assert_array_equal(ours[name].offsets, column.offsets)
                np.testing.assert_array_equal(ours[name].values, column.values)
            else:
                np.testing.assert_array_equal(ours[name], column, err_msg=name)
    assert here.types == there.types
    assert here.missing["inter"] == there.missing["inter"]
    for side in ("user", "item"):
        told = {n: c for n, c in there.missing[side].items() if n != f"{side}_id"}
        assert here.missing[side] == told
    for phase, rows in there.splits.items():
        np.testing.assert_array_equal(here.splits[phase], rows)


FILTERS = [
    {},
    {"data__filter__user_inter_num": "[28,inf)", "data__filter__values": {"age": "[20,60]"}},
    {"data__filter__item_inter_num": "[38,inf)", "data__filter__by_user_or_item": False},
]


@pytest.mark.parametrize("filters", FILTERS, ids=["all", "users", "items"])
def test_side_tables_are_those_of_the_files(raw, filters, tmp_path) -> None:
    config = config_of(raw, **filters)
    there = load_dataset(config.data, 5)
    prepare(PrepareJob(files_of(raw), tmp_path / "to", config.data, 5))
    here = opened(config, tmp_path / "to")
    assert_same(here, there)
    assert check(tmp_path / "to") > 20
    found = [encode(one, features_of(one, config.data)) for one in (here, there)]
    assert fingerprint(config, here, found[0]) == fingerprint(config, there, found[1])
    labels = labels_of(there, config.data)
    ours, theirs = (
        JoinedSamples(one, "train", table, labels, "weight").batch_of(np.arange(50)[::-1])
        for one, table in zip((here, there), found)
    )
    assert torch.equal(ours.labels, theirs.labels) and torch.equal(ours.weights, theirs.weights)
    for part in ("ids", "dense"):
        assert set(getattr(ours, part)) == set(getattr(theirs, part))
        for name, one in getattr(theirs, part).items():
            other = getattr(ours, part)[name]
            if isinstance(one, Jagged):
                assert torch.equal(one.offsets, other.offsets), name
                one, other = one.values, other.values
            assert one.dtype == other.dtype and torch.equal(one, other), name


def test_tables_and_csv_give_the_same_columns(raw, tmp_path) -> None:
    """Interactions of csv or Parquet with columns of every kind, side files as data.files says."""
    lists = {"liked": " ", "genre": " ", "size": " "}
    frames = {}
    for suffix in ("inter", "user", "item"):
        frame = pl.read_csv(raw / "shop" / f"shop.{suffix}", separator="\t", infer_schema=False)
        frames[suffix] = frame.rename({name: name.partition(":")[0] for name in frame.columns})
    for name in ("user", "item"):
        frames[name].write_csv(tmp_path / f"{name}s.csv", separator=";")
    frames["inter"].write_csv(tmp_path / "a.csv")
    inter = frames["inter"].with_columns(pl.col("click", "spent", "weight").cast(pl.Float64))
    inter.write_parquet(tmp_path / "b.parquet")
    features = {**feature_data.FEATURES, "liked": {"kind": "sequence"}}
    values = {"data__labels": LABELS, "data__sample_weight": "weight", "data__load": None}
    there = load_dataset(feature_data.config(raw).data, 5)
    for number, name in enumerate(("a.csv", "b.parquet")):
        config = feature_data.config(tmp_path, data__features=features, **values)
        sides = {suffix: f"{suffix}s.csv" for suffix in ("user", "item")}
        data = config.data.model_copy(update={"files": sides, "path": str(tmp_path)})
        prepare(PrepareJob([str(tmp_path / name)], tmp_path / f"to-{number}", data, 5))
        here = opened(config, tmp_path / f"to-{number}")
        assert set(here.inter) == set(there.inter) and set(here.items) == set(there.items)
        for column in ("device", "spent", "weight", "item_id"):
            np.testing.assert_allclose(here.inter[column], there.inter[column])
        assert all(isinstance((here.users | here.items)[one], Ragged) for one in lists)
        np.testing.assert_array_equal(here.items["genre"].values, there.items["genre"].values)


def test_lists_of_single_interactions_and_an_append(tmp_path) -> None:
    """Lists in interactions; days one after the other; ids that are known keep their number."""
    head = "user_id:token\titem_id:token\ttags:token_seq\tclick:float"
    draw = np.random.default_rng(3)
    lines = [
        f"u{u}\ti{i}\t{' '.join(f't{t}' for t in range(u % 4))}\t{u % 2}"
        for u, i in zip(draw.integers(0, 30, 300), draw.integers(0, 20, 300))
    ]
    for name, some in (("all", lines), ("one", lines[:200]), ("two", lines[200:])):
        (tmp_path / f"{name}.inter").write_text("\n".join([head, *some]) + "\n")
    rows = [f"i{i}\t{i % 3}\t{i / 4 if i % 5 else ''}" for i in range(24)]
    item_head = "item_id:token\tgroup:token\tprice:float"
    (tmp_path / "one.item").write_text("\n".join([item_head, *rows[:12]]) + "\n")
    (tmp_path / "two.item").write_text("\n".join([item_head, *rows]) + "\n")
    config = feature_data.config(tmp_path, data__filter__by_user_or_item=False)
    data = config.data.model_copy(update={"load": None})

    def do(to: str, *names: str, **how: Any) -> dict[str, Any]:
        return prepare(
            PrepareJob([str(tmp_path / n) for n in names], tmp_path / to, data, 5, **how)
        )

    do("whole", "all.inter", "two.item")
    do("grown", "one.inter", "one.item")
    first = load_dataset(data.model_copy(update={"path": str(tmp_path / "grown")}), 5)
    words = list(first.vocab["item_id"])
    # What an append that was killed leaves: files that no manifest names.
    (tmp_path / "grown" / "side-item-1-0.bin").write_bytes(b"half of it")
    made = do("grown", "two.inter", "two.item", append=True)
    assert do("grown", "two.inter", "two.item", append=True) == made
    assert do("grown", "one.inter", "one.item") == made  # the same again do nothing
    whole, grown = (
        load_dataset(data.model_copy(update={"path": str(tmp_path / to)}), 5)
        for to in ("whole", "grown")
    )
    assert list(grown.vocab["item_id"])[: len(words)] == words and check(tmp_path / "grown")
    assert not list((tmp_path / "grown").glob("side-item-0-*"))
    for one in (whole, grown):
        tags = one.inter["tags"]
        assert len(tags) == 300 and tags.offsets[-1] == len(tags.values)
    np.testing.assert_array_equal(grown.inter["tags"].values, whole.inter["tags"].values)
    order = [list(grown.vocab["item_id"]).index(word) for word in whole.vocab["item_id"]]
    np.testing.assert_array_equal(grown.items["price"][order], whole.items["price"])
    groups = [grown.vocab["group"][int(k)] for k in grown.items["group"][order]]
    assert groups == [whole.vocab["group"][int(k)] for k in whole.items["group"]]
    assert grown.missing == whole.missing
    assert grown.missing["item"] == {"group": 0, "price": 5} and grown.missing["inter"]["tags"]
    (tmp_path / "two.user").write_text("user_id:token\tage:float\nu1\t3\n")
    (tmp_path / "three.inter").write_text("\n".join([head, lines[0]]) + "\n")
    with pytest.raises(ValueError, match=r"prepared without user files.*prepare all files again"):
        do("grown", "three.inter", "two.user", append=True)
    with pytest.raises(ValueError, match=r"side file.* interactions too"):
        do("grown", "two.user", append=True)


def test_every_sample_counts_once_over_kills_and_changes_of_processes(raw, tmp_path) -> None:
    config = config_of(raw)
    prepare(PrepareJob(files_of(raw), tmp_path / "to", config.data, 5))
    dataset = opened(config, tmp_path / "to")
    table = encode(dataset, features_of(dataset, config.data))
    dataset.inter["number"] = np.arange(dataset.num_inter, dtype=np.float32)
    dataset.types["number"] = "float"  # a weight tells which sample it is
    samples = JoinedSamples(dataset, "train", table, labels_of(dataset, config.data), "number")
    reader = InMemory(samples, Layout((), (), "click"), 23, 3, shuffle=True)
    reader.prefetch, reader.chunk_samples = True, 120
    assert reader.num_samples > 14 * 23
    found = count(reader, lambda batch: batch.weights.int().tolist())
    assert found == Counter(dataset.splits["train"].tolist())


@pytest.mark.slow
def test_losses_equal_those_of_the_raw_files(raw, tmp_path) -> None:
    more: dict[str, Any] = {"data__features": feature_data.FEATURES, "data__labels": LABELS}
    more |= {"data__sample_weight": "weight", "train__epochs": 2, "train__eval_every": 2}
    more |= {"eval__metrics": ["AUC"]}
    config = feature_data.config(raw, **more)
    prepare(PrepareJob(files_of(raw), tmp_path / "shop", config.data, config.run.seed))
    losses = []
    for number, path in enumerate((raw, tmp_path)):
        values = feature_data.values(path, **more)
        values["run.output"] = str(tmp_path / f"run-{number}")
        result = train_here(resolve(values=values))
        lines = (Path(result["folder"]) / "train.log").read_text().splitlines()
        losses.append(
            ([x.split("train loss")[-1] for x in lines if "train loss" in x], result["test"])
        )
    assert len(losses[0][0]) == 2 and losses[0] == losses[1]


def test_describe_prints_what_a_folder_holds(raw, tmp_path) -> None:
    config = config_of(raw)
    prepare(PrepareJob(files_of(raw), tmp_path / "shop", config.data, config.run.seed))
    told = describe_run(config_of(tmp_path))
    wanted = describe_run(config)
    assert told.text == wanted.text and told.yaml == wanted.yaml and told.page is not None
    assert "<svg" in told.page()


def test_other_columns_are_refused(raw, tmp_path) -> None:
    few = config_of(raw, data__load={"inter": ["user_id", "item_id", "click"]})
    prepare(PrepareJob(files_of(raw, ".inter"), tmp_path / "to", few.data, 5))
    with pytest.raises(ValueError, match=r"data\.load is .* was prepared with"):
        prepare(PrepareJob(files_of(raw, ".inter"), tmp_path / "to", config_of(raw).data, 5))
    with pytest.raises(ValueError, match=r"data\.files names inter"):
        data = few.data.model_copy(update={"files": {"inter": "x"}})
        prepare(PrepareJob(files_of(raw, ".inter"), tmp_path / "new", data, 5))
    dataset = load_dataset(few.data.model_copy(update={"path": str(tmp_path / "to")}), 5)
    with pytest.raises(ValueError, match=r"no column 'liked'"):
        features_of(dataset, config_of(raw).data)

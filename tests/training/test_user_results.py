"""What an evaluation leaves of each user and item: users.parquet and items.parquet."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ranks import run_ranks
from small import DATA, NO_DROPOUT, small_config

import shoal
from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.runs.run import resolve
from shoal.training.evaluation import user_results
from shoal.training.evaluation.user_results import UserResults

METRICS = {"eval.metrics": ["Recall", "NDCG", "GAUC", "ItemCoverage"], "eval.topk": [5, 20]}
SHORT = {**DATA, **NO_DROPOUT["BPR"], **METRICS, "eval.valid_metric": "NDCG@5", "train.epochs": 1}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("runs") / "run"
    values = {**SHORT, "run.output": str(folder)}
    return shoal.run("BPR", config_dict=values)


def test_a_run_writes_lists_and_values_of_its_users(result: dict[str, Any]) -> None:
    folder = Path(result["folder"]) / "evaluation"
    users, items = (pl.read_parquet(folder / f"{one}.parquet") for one in ("users", "items"))
    values = ["recall@5", "recall@20", "ndcg@5", "ndcg@20", "gauc"]
    assert users.columns == ["user", "train", "positives", *values, "items", "hits"]
    for name in values[:4]:  # means over users are what the result holds
        assert users[name].mean() == pytest.approx(result["test"][name], abs=1e-12)
    weighted = (users["gauc"] * users["positives"]).sum() / users["positives"].sum()
    assert weighted == pytest.approx(result["test"]["gauc"], abs=1e-12)
    found = users["hits"].list.head(5).list.sum() / users["positives"]
    assert found.to_list() == pytest.approx(users["recall@5"].to_list(), abs=1e-12)
    assert users["items"].list.len().unique().to_list() == [10]
    assert pl.read_parquet_metadata(folder / "users.parquet")["shoal.users"] == str(len(users))
    lists = users["items"].explode().value_counts()
    expected = dict(zip(*(lists[one].to_list() for one in ("items", "count"))))
    assert {i: n for i, n in zip(items["item"], items["recommended"]) if n} == expected
    assert items.columns == ["item", "train", "recommended", "positives", "title"]
    assert items["positives"].sum() == users["positives"].sum()
    hits = users.select("items", "hits").explode("items", "hits").filter("hits")["items"]
    found = hits.value_counts().join(items, left_on="items", right_on="item")
    assert len(found) and (found["count"] <= found["positives"]).all()
    assert items["title"].null_count() == len(items) == 97
    assert items["train"].sum() == users["train"].sum() > 2000  # each user is tested


def test_no_user_results_are_written_where_they_are_switched_off(tmp_path: Path) -> None:
    shoal.run("BPR", config_dict={**SHORT, "eval.per_user": False, "run.output": str(tmp_path)})
    assert not (tmp_path / "evaluation").exists()


def test_evaluate_writes_to_a_name(result: dict[str, Any], tmp_path: Path) -> None:
    shoal.evaluate(result["folder"], per_user=tmp_path / "out.parquet")
    first = pl.read_parquet(Path(result["folder"]) / "evaluation" / "users.parquet")
    assert pl.read_parquet(tmp_path / "out.parquet").equals(first)
    for name, told in (("out.csv", "ends in .parquet"), ("no/out.parquet", "there is no folder")):
        with pytest.raises(ValueError, match=told):
            shoal.evaluate(result["folder"], per_user=tmp_path / name)
    values = {"eval.mode": "uni50", "eval.metrics": ["AUC"], "eval.valid_metric": "AUC"}
    with pytest.raises(ValueError, match="no metric that ranks"):
        shoal.evaluate(result["folder"], values=values, per_user=tmp_path / "out.parquet")


def written(world: World, folder: str) -> list[int]:
    """Write what an untrained model's users got; more than one tile for each of three ranks."""
    values = {key.replace(".", "__"): value for key, value in METRICS.items()}
    values |= {"data__synthetic__users": 900, "data__synthetic__items": 300, **values}
    values |= {"eval__valid_metric": "NDCG@5", "data__synthetic__interactions": 20_000}
    counts = []
    for mode in ("full", "uni20"):
        parts = build(small_config("BPR", **values, eval__mode=mode), world)
        parts.evaluator.evaluate(parts.model, "test", keep=True)
        results = parts.evaluator.results
        assert isinstance(results, UserResults)
        if world.is_main:
            results.write(Path(folder, mode), parts.config.data)
        counts += [results.evaluated, len(results.kept.users)]
    return counts


def test_files_are_equal_on_one_and_three_processes(tmp_path: Path) -> None:
    one, three = tmp_path / "one", tmp_path / "three"
    one.mkdir()
    three.mkdir()
    assert run_ranks(written, 3, tmp_path, str(three)) == [written(World(), str(one))] * 3
    for name in ("full/users", "full/items", "uni20/users", "uni20/items"):
        files = [folder / f"{name}.parquet" for folder in (one, three)]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_a_sample_of_many_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ones whatever is drawn or evaluated besides; the metadata has the whole number."""
    monkeypatch.setattr(user_results, "MOST_USERS", 40)
    monkeypatch.setattr(user_results, "MOST_ITEMS", 90)
    config = small_config("BPR")
    parts = build(config, World())
    parts.evaluator.evaluate(parts.model, "test", keep=True)
    assert parts.evaluator.results is not None
    parts.evaluator.results.write(tmp_path, config.data)
    users = pl.read_parquet(tmp_path / "users.parquet")
    assert len(users) == 40 and users["user"].n_unique() == 40
    assert pl.read_parquet_metadata(tmp_path / "users.parquet")["shoal.users"] == "131"
    assert not (tmp_path / "items.parquet").exists()


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("kind", ["token", "token_seq"])
def test_titles_of_items(kind: str, loaded: bool, tmp_path: Path) -> None:
    """Text as the item file has it, whether or not training reads that file; null where empty."""
    rows = [f"u{u}\tm{1 + (u + k) % 3}\t{k}" for u in range(6) for k in range(3)]
    films = ["m1\tThe <b>First</b>", "m2\t", 'm3\tThird, "2"']
    heads = ("user_id:token\titem_id:token\ttimestamp:float", f"item_id:token\tmovie_title:{kind}")
    (tmp_path / "films").mkdir()
    for suffix, head, lines in (("inter", heads[0], rows), ("item", heads[1], films)):
        text = "\n".join([head, *lines]) + "\n"
        (tmp_path / "films" / f"films.{suffix}").write_text(text)
    data: dict[str, Any] = {"data.path": str(tmp_path), "data.name": "films"}
    config = resolve(values=data | ({"data.load": {"item": ["*"]}} if loaded else {})).config
    parts = build(config, World())
    parts.evaluator.evaluate(parts.model, "test", keep=True)
    assert parts.evaluator.results is not None
    parts.evaluator.results.write(tmp_path / "evaluation", config.data)
    items = pl.read_parquet(tmp_path / "evaluation" / "items.parquet").sort("item")
    assert items["title"].to_list() == ["The <b>First</b>", None, 'Third, "2"']
    users = pl.read_parquet(tmp_path / "evaluation" / "users.parquet")
    assert users["items"].list.len().to_list() == [1] * 6  # of three, two are left out


def test_a_report_shows_titles_of_a_file_that_training_did_not_read(tmp_path: Path) -> None:
    """Models that read ids alone do not load NAME.item; its titles stand in the report."""
    rows = [f"u{u}\tm{1 + (u + k) % 4}\t{k}" for u in range(8) for k in range(4)]
    films = [f"m{k}\tFilm number {k}" for k in range(1, 5)]
    folder = tmp_path / "films"
    folder.mkdir()
    heads = (
        "user_id:token\titem_id:token\ttimestamp:float",
        "item_id:token\tmovie_title:token_seq",
    )
    for suffix, head, lines in (("inter", heads[0], rows), ("item", heads[1], films)):
        (folder / f"films.{suffix}").write_text("\n".join([head, *lines]) + "\n")
    run = tmp_path / "run"
    quiet = {"run.log_level": "error", "run.progress": False, "run.output": str(run)}
    values = {"eval.topk": [2], "eval.valid_metric": "recall@2", **quiet}
    shoal.run("Pop", "films", data={"path": str(tmp_path)}, **values)
    page = shoal.report(run).read_text()
    assert "Film number 1" in page and "<li>m1" not in page

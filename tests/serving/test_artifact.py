"""Artifacts: models answer as they were trained, from any strategy; what is damaged is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import check_here, exported, rewrite, train
from safetensors.torch import load_file, save_file

import shoal
from shoal.kernels import topk as ranking
from shoal.kernels.topk import DotProducts, rank
from shoal.recommender.recommender import NO_IDS, Recommender
from shoal.runs.trained_run import Trained
from shoal.serving.artifact import export, files
from shoal.serving.artifact.files import ArtifactError
from shoal.serving.bulk import Approximate, predict_file, recommend_many
from shoal.serving.service.questions import Recommend, answer_recommend


@pytest.fixture(scope="module")
def artifacts() -> dict[str, Path]:
    return exported()


@pytest.fixture(scope="module")
def runs(artifacts: dict[str, Path]) -> dict[str, Path]:
    return {model: path.with_name(f"{model}-run") for model, path in artifacts.items()}


def test_a_fresh_process_answers_as_the_trained_model(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    found = shoal.export(runs["BPR"], tmp_path / "artifact")
    assert found["largest_difference"] <= found["allowed"] and found["lists"] > 0
    assert not list(tmp_path.glob(".*"))
    card = (tmp_path / "artifact" / "README.md").read_text()
    assert "ndcg@10" in card and "fresh process" in card
    noted = json.loads((runs["BPR"] / "exports.json").read_text())
    assert noted[-1]["to"] == str(tmp_path / "artifact")
    with pytest.raises(ValueError, match="is there already"):
        shoal.export(runs["BPR"], tmp_path / "artifact")


def test_an_artifact_that_answers_otherwise_is_not_left(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(hidden: Path, tolerance: float | None) -> dict[str, Any]:
        file = hidden / "rows-item_vectors.safetensors"
        values = load_file(file)["values"]
        values[5] += 0.01
        save_file({"values": values}, file)
        return check_here(hidden, tolerance)

    monkeypatch.setattr(export, "check_apart", spoil)
    with pytest.raises(ValueError, match="differ"):
        shoal.export(runs["BPR"], tmp_path / "artifact")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model", ["SASRec", "BPR"])
def test_known_users_are_recommended_what_the_run_recommends(
    model: str, runs: dict[str, Path], artifacts: dict[str, Path]
) -> None:
    trained, loaded = Trained(runs[model]), shoal.load(artifacts[model])
    for user in [loaded.users.words[k] for k in (1, 7, 40)]:
        expected, found = trained.recommend(user, 10), loaded.recommend(user, topk=10)
        assert [item for item, _ in found] == [item for item, _ in expected]
        np.testing.assert_allclose([s for _, s in found], [s for _, s in expected], rtol=1e-5)
        scores = loaded.score(user, [item for item, _ in found])
        np.testing.assert_allclose(scores, [s for _, s in found], rtol=1e-4, atol=1e-6)


def test_a_history_typed_by_hand_is_one_of_the_data(
    artifacts: dict[str, Path], tmp_path: Path
) -> None:
    loaded = shoal.load(artifacts["SASRec"])
    for user in (3, 12, 60):
        history = loaded.items.words[loaded.history_of(user).items].tolist()
        assert loaded.recommend(history=history) == loaded.recommend(loaded.users.words[user])
    assert len(loaded.recommend(history=["1"], topk=5)) == 5
    file = shutil.copytree(artifacts["BPR"], tmp_path / "old")
    rewrite(file, files.SIGNATURE, lambda document: document.pop("folding"))
    with pytest.raises(ValueError, match="a history has none"):
        shoal.load(file).recommend(history=["1"])


def test_filters(artifacts: dict[str, Path]) -> None:
    loaded = shoal.load(artifacts["BPR"])
    user = loaded.users.words[5]
    best = [item for item, _ in loaded.recommend(user, topk=10)]
    taken = set(loaded.items.words[loaded.history_of(5).items])
    assert not taken & set(best)
    assert taken & {item for item, _ in loaded.recommend(user, topk=90, seen=True)}
    assert best[0] not in [item for item, _ in loaded.recommend(user, exclude=best[:1])]
    assert [item for item, _ in loaded.recommend(user, only=best[2:5])] == best[2:5]
    similar = loaded.similar_items(best[0], topk=3)
    assert len(similar) == 3 and best[0] not in dict(similar)
    vectors = loaded.vectors("item", best[:2]) @ loaded.vectors("user", [user])[0]
    np.testing.assert_allclose(vectors, loaded.score(user, best[:2]), rtol=1e-5)
    with pytest.raises(ValueError, match="'nobody' is not known"):
        loaded.score("nobody", best)


def test_many_allowed_items(artifacts: dict[str, Path]) -> None:
    """Of many the others are left out of a pass over all; of few, or for many users, copied."""
    loaded = shoal.load(artifacts["BPR"])
    recommender, users = loaded.recommender, np.arange(1, 6)
    all_best, all_scores = recommender.rank(loaded.of_users(users), 5, len(loaded.items) - 1)
    for step in (2, 50):  # every second item, and few
        allowed = np.arange(1, len(loaded.items), step)
        for repeats in (1, 40):
            many = np.tile(users, repeats)
            best, scores = recommender.rank(
                loaded.of_users(many), len(many), len(allowed), (NO_IDS, NO_IDS), allowed
            )
            for row in range(5):
                may_come = np.isin(all_best[row], allowed)
                assert best[row].tolist() == all_best[row][may_come].tolist()
                np.testing.assert_allclose(scores[row], all_scores[row][may_come], rtol=1e-5)
            assert (best[-5:] == best[:5]).all()


def test_many_users_are_one_pass_and_unknown_ones_are_reported(
    artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = shoal.load(artifacts["SASRec"])
    passes: list[int] = []
    ranked = Recommender.rank
    monkeypatch.setattr(
        Recommender, "rank", lambda *given: passes.append(given[2]) or ranked(*given)
    )
    users = loaded.users.words[1:40].tolist()
    with caplog.at_level("WARNING", logger="shoal"):
        found = loaded.recommend([*users, "nobody"], topk=4)
    assert "1 of 40 users are not known, as 'nobody'" in caplog.text
    assert passes == [39] and list(found) == [*users, "nobody"]
    for user in users[:3]:
        alone = loaded.recommend(user, topk=4)
        assert [item for item, _ in found[user]] == [item for item, _ in alone]
    nobody = found["nobody"]
    assert (nobody.by, nobody.unknown) == ("popularity", ("nobody",))
    assert [count for _, count in nobody] == sorted(loaded.popularity.tolist())[:-5:-1]
    assert loaded.recommend(float(users[2]), topk=4) == loaded.recommend(users[2], topk=4)
    items = loaded.items.words[1:3].tolist()
    some = loaded.recommend(history=[items[0], "x", float(items[1])], topk=4)
    assert (some.by, some.unknown) == ("model", ("x",))
    assert some == loaded.recommend(history=items, topk=4)
    banned = [item for item, _ in nobody[:2]]
    without = loaded.recommend("nobody", topk=2, exclude=banned, only=[*banned, *items, "x"])
    assert {item for item, _ in without} <= {*items} - {*banned}


def test_ids_of_an_artifact_have_the_type_of_the_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import polars as pl

    monkeypatch.setattr(export, "check_apart", check_here)
    frame = {"uid": [k % 20 + 1 for k in range(300)], "iid": [k % 17 for k in range(300)]}
    quiet = {"run.output": str(tmp_path / "run"), "run.progress": False, "train.epochs": 1}
    shoal.fit("Pop", frame, user="uid", item="iid", **quiet, **{"eval.repeatable": True})
    shoal.export(tmp_path / "run", tmp_path / "artifact")
    loaded = shoal.load(tmp_path / "artifact")
    best = loaded.recommend(3.0, topk=2)
    assert best.by == "model" and all(type(item) is int for item, _ in best)
    assert shoal.recommend(tmp_path / "run", "3", 2) == best
    (answer,) = answer_recommend(loaded, [Recommend(users=["3", "x"], topk=2)])
    assert [one["by"] for one in answer["users"]] == ["model", "popularity"]
    assert answer["users"][0]["items"] == [{"item": item, "score": s} for item, s in best]
    (tmp_path / "users.txt").write_text("3\n4.0\nnobody\n")
    top = tmp_path / "top.parquet"
    recommend_many(tmp_path / "artifact", top, 2)
    assert pl.read_parquet(top).dtypes[:3:2] == [pl.Int64, pl.Int64]
    assert recommend_many(tmp_path / "artifact", top, 2, users=tmp_path / "users.txt") == 3
    users = pl.read_parquet(top)["user"].to_list()
    assert users == ["3", "3", "4.0", "4.0", "nobody", "nobody"]


def test_one_byte_changed_is_refused(artifacts: dict[str, Path], tmp_path: Path) -> None:
    for name in sorted(path.name for path in artifacts["SASRec"].iterdir()):
        folder = tmp_path / "copy"
        shutil.copytree(artifacts["SASRec"], folder)
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)
        with pytest.raises(ArtifactError):
            shoal.load(folder)
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("graph.json", lambda d: d["nodes"][0].update(op="aten.from_file.default"), "no operator"),
        ("graph.json", lambda d: d["nodes"][0].update(op="os.system"), "no operator"),
        ("graph.json", lambda d: d["nodes"][0].update(op="aten.__class__.x"), "no operator"),
        (
            "graph.json",
            lambda d: d["nodes"].insert(
                0, {"name": "x", "op": "aten.zeros.default", "args": [[1 << 40]], "kwargs": {}}
            ),
            "numbers at a time",
        ),
        ("graph.json", lambda d: d.update(output="nowhere"), "no node"),
        ("signature.json", lambda d: d["tables"]["item"].update(dim=3), "not of its shape"),
        ("signature.json", lambda d: d.update(base={"name": "../x", "sha256": ""}), "cannot be"),
        ("signature.json", lambda d: d.pop("tables"), "damaged"),
        ("signature.json", lambda d: d.update(graph=None), "it has no graph"),
    ],
)
def test_an_author_cannot_do_harm(
    name: str, change: Any, why: str, artifacts: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(artifacts["SASRec"], folder)
    rewrite(folder, name, change)
    with pytest.raises(ArtifactError, match=why):
        shoal.load(folder)


@pytest.mark.parametrize(
    ("operator", "why"), [("layer_norm", "its graph gives"), ("sym_size", "answers with")]
)
def test_a_graph_with_another_answer(
    operator: str, why: str, artifacts: dict[str, Path], tmp_path: Path
) -> None:
    def change(document: dict[str, Any]) -> None:
        found = [node["name"] for node in document["nodes"] if operator in node["op"]]
        document["output"] = found[0]

    folder = tmp_path / "copy"
    shutil.copytree(artifacts["SASRec"], folder)
    rewrite(folder, "graph.json", change)
    with pytest.raises(ArtifactError, match=why):
        shoal.load(folder).recommend("1", topk=3)


def test_a_link_or_a_path_is_no_file_of_an_artifact(
    artifacts: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(artifacts["BPR"], folder)
    (folder / "README.md").rename(tmp_path / "README.md")
    (folder / "README.md").symlink_to(tmp_path / "README.md")
    with pytest.raises(ArtifactError, match=r"README.md"):
        shoal.load(folder)
    manifest = json.loads((folder / files.MANIFEST).read_text())
    manifest.pop("sha256")
    manifest["files"]["../README.md"] = manifest["files"].pop("README.md")
    manifest["sha256"] = files.digest(manifest)
    (folder / files.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="no plain name"):
        shoal.load(folder)


def test_a_delta_holds_what_changed(
    artifacts: dict[str, Path], runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "check_apart", check_here)
    base, delta = artifacts["BPR"], artifacts["BPR"].with_name("delta")
    changed = base.with_name("BPR-changed")  # as if two rows had been other the day before
    shutil.copytree(base, changed)
    file = changed / "rows-item_vectors.safetensors"
    values = load_file(file)["values"].clone()
    values[[4, 9]] += 1.0
    save_file({"values": values}, file)
    files.write_manifest(changed)
    shoal.export(runs["BPR"], delta, delta=changed)
    assert load_file(delta / "ids-item_vectors.safetensors")["ids"].tolist() == [4, 9]
    whole, loaded = shoal.load(base), shoal.load(delta)
    assert torch.equal(whole.item_vectors, loaded.item_vectors)
    assert whole.recommend("1") == loaded.recommend("1")
    shutil.rmtree(changed)
    with pytest.raises(ArtifactError, match="not beside it"):
        shoal.load(delta)


def test_all_users_into_a_file(artifacts: dict[str, Path], tmp_path: Path) -> None:
    import polars as pl

    loaded = shoal.load(artifacts["BPR"])
    (tmp_path / "banned.txt").write_text("3\n5\nunknown\n")
    items = pl.DataFrame({"item": loaded.items.words[1:], "genre": ["a", "b"] * 48 + ["a"]})
    items.write_csv(tmp_path / "items.csv")
    for suffix, read in ((".parquet", pl.read_parquet), (".csv", pl.read_csv)):
        count = recommend_many(artifacts["BPR"], tmp_path / f"top{suffix}", topk=7)
        assert count == len(loaded.users) - 1
        table = read(tmp_path / f"top{suffix}")
        for user in [loaded.users.words[k] for k in (2, 77)]:
            mine = table.filter(pl.col("user").cast(pl.String) == user)
            assert mine["item"].cast(pl.String).to_list() == [
                item for item, _ in loaded.recommend(user, topk=7)
            ]
    filters = {"exclude": f"{tmp_path}/banned.txt", "category": f"{tmp_path}/items.csv:genre=b"}
    recommend_many(artifacts["BPR"], tmp_path / "some.jsonl", topk=5, **filters)
    found = set(pl.read_ndjson(tmp_path / "some.jsonl")["item"].to_list())
    allowed = set(items.filter(pl.col("genre") == "b")["item"]) - {"3", "5"}
    assert found and found <= allowed


def test_an_index_finds_most_of_it(artifacts: dict[str, Path], tmp_path: Path) -> None:
    reason = "--approximate needs the extra `index`"
    pytest.importorskip("usearch.index", reason=reason, exc_type=ImportError)
    loaded = shoal.load(artifacts["BPR"])
    index = Approximate(loaded)
    assert index.recall(10) > 0.9
    users = np.arange(1, 60)
    exact, scores = loaded.recommender.rank_users(users, 10)
    found, near = loaded.recommender.rank_users(users, 10, by=index.rank)
    for row in range(len(users)):
        assert not set(found[row]) & set(loaded.history_of(int(users[row])).items)
    assert (exact == found).mean() > 0.9
    np.testing.assert_allclose(near[exact == found], scores[exact == found], rtol=1e-4)


def test_clicks_of_a_file(artifacts: dict[str, Path], tmp_path: Path) -> None:
    import polars as pl

    lines = ["1:3 2:4 3:5 4:6 5:7", "1:1 2:2 3:3 4:4 5:5", "1:3 1:9 2:4 3:5 4:6 5:7"]
    layout = shoal.load(artifacts["DNN"]).signature["layout"]
    names = layout["slots"]
    lines = [" ".join(f"{names[int(t[0]) - 1]}{t[1:]}" for t in line.split()) for line in lines]
    dense = " ".join(f"{name}:0.5" for name in layout["dense"])
    lines = [f"{line} {dense}".strip() for line in lines]
    (tmp_path / "samples.txt").write_text("\n".join(lines) + "\n")
    assert predict_file(artifacts["DNN"], tmp_path / "samples.txt", tmp_path / "out.csv") == 3
    chances = pl.read_csv(tmp_path / "out.csv")["click"].to_list()
    assert all(0 < one < 1 for one in chances) and len(set(chances)) == 3
    labelled = "\n".join(f"{layout['label']}:1 {line}" for line in lines)
    (tmp_path / "labelled.txt").write_text(labelled + "\n")
    predict_file(artifacts["DNN"], tmp_path / "labelled.txt", tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "out.csv").read_text()


@pytest.mark.parametrize("core", ["products", "scores", None])
def test_ranking_is_exact(core: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "MANY", 1 if core == "products" else 1 << 30)
    if core is None:
        monkeypatch.setattr(ranking, "_core", None)
    elif ranking._core is None:  # no compiler: torch's path, another value of `core`, is tested
        pytest.skip("the native core is not built")
    monkeypatch.setattr(ranking, "CACHED", 1 << 14)  # several blocks
    torch.manual_seed(1)
    queries, vectors = torch.randn(300, 8), torch.randn(4001, 8)
    without = np.repeat(np.arange(300), 4), np.tile(np.array([0, 31, 32, 4000]), 300)
    scores = queries @ vectors.T
    scores[without[0], without[1]] = -torch.inf
    for topk in (1, 10, 50, 4001):
        places, values = rank(DotProducts(queries, vectors), 300, 4001, topk, without)
        expected = torch.topk(scores, topk, dim=1)
        torch.testing.assert_close(values, expected.values)
        torch.testing.assert_close(scores.gather(1, places), expected.values)


def test_of_equal_scores_the_first_items_come(monkeypatch: pytest.MonkeyPatch) -> None:
    if ranking._core is None:  # no compiler: torch promises no order of equal scores
        pytest.skip("the native core is not built")
    monkeypatch.setattr(ranking, "CACHED", 1 << 10)
    scores = torch.randint(0, 3, (5, 2000), generator=torch.Generator().manual_seed(1)).float()
    scores[4, 7:] = torch.nan  # a row with few scores; the rest of its list is empty

    def fill(a: int, b: int, first: int, last: int, out: torch.Tensor) -> None:
        out.copy_(scores[a:b, first:last])

    places, values = rank(fill, 5, 2000, 20)
    for row in range(4):
        expected = np.argsort(-scores[row].numpy(), kind="stable")[:20]
        assert places[row].tolist() == expected.tolist()
    assert values[4, :7].isfinite().all() and values[4, 7:].isneginf().all()


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["float16", "int8"])
@pytest.mark.parametrize("model", ["BPR", "NeuMF", "SASRec", "DeepFM"])
def test_rows_of_fewer_bits(
    model: str, rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every model is exported in tests/contract/test_export.py."""
    monkeypatch.setattr(export, "check_apart", check_here)
    run = train(model, tmp_path / "run")
    found = shoal.export(run, tmp_path / "artifact", rows)  # type: ignore[arg-type]
    assert found["largest_difference"] <= found["allowed"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "sharded", "ps"])
@pytest.mark.parametrize("model", ["BPR", "NeuMF", "SASRec", "DeepFM"])
def test_every_strategy(
    model: str, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "check_apart", check_here)
    more: dict[str, Any] = {"launch__join_timeout": 180.0}
    if strategy == "ps":
        more["launch__servers"] = 2
    nproc = 2 if strategy == "ps" else 3
    run = train(model, tmp_path / "run", strategy__name=strategy, launch__nproc=nproc, **more)
    assert json.loads((run / "result.json").read_text())["world_size"] == nproc
    found = shoal.export(run, tmp_path / "artifact")
    assert found["largest_difference"] <= found["allowed"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["BPR", "SASRec", "DNN"])
def test_onnx_answers_alike(model: str, runs: dict[str, Path], tmp_path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="--onnx needs the extra `onnx`")
    import onnxruntime

    folder = tmp_path / "artifact"
    found = shoal.export(runs[model], folder, onnx=True)
    assert found["onnx_largest_difference"] < 1e-4
    loaded = shoal.load(folder)
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    names = {one.name for one in session.get_inputs()}
    if model == "DNN":
        return
    users = np.array([3, 7, 12, 30, 31])  # another size than it was traced with
    query = loaded.of_users(users)
    (scores,) = session.run(None, {k: v.numpy() for k, v in query.items() if k in names})
    expected = loaded.recommender.scores(query, len(users), torch.arange(len(loaded.items)))
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_onnx_says_what_it_cannot(artifacts: dict[str, Path]) -> None:
    from shoal.serving.artifact.onnx import _tables

    loaded = shoal.load(artifacts["BPR"])
    loaded.signature["rows"] = "int8"
    with pytest.raises(ValueError, match="leave out --rows and --delta"):
        _tables(loaded)

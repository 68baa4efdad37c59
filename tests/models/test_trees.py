"""LightGBM and XGBoost: trees trained once from all samples, kept as their library's text."""

import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from feature_data import FEATURES, values, write
from ranks import run_ranks
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from shoal.clicks.synthetic import synthetic_clicks
from shoal.config.schema import SyntheticClicksSection
from shoal.data.batch import Batch, Jagged
from shoal.data.features import Label
from shoal.distributed.world import World
from shoal.models import find
from shoal.models.base import Facts, WholeData
from shoal.models.clicks.trees import Trees
from shoal.ps.server.server import Server
from shoal.runs.build import build
from shoal.runs.run import resolve
from shoal.runs.trained_run import Trained
from shoal.training import steps
from shoal.training.steps import solve_from_samples
from shoal.trees import columns as tree_columns
from shoal.trees.checks import TreeTextError
from shoal.trees.columns import IdCounts, TreeColumns

PACKAGES = {"LightGBM": "lightgbm", "XGBoost": "xgboost"}
LOG: dict[str, Any] = {"samples": 30_000, "slots": 6, "ids_per_slot": 10, "dense": 3}
SMALL: dict[str, Any] = {"samples": 3000, "slots": 4, "ids_per_slot": 8, "dense": 2}


@pytest.fixture(params=PACKAGES)
def name(request: pytest.FixtureRequest) -> str:
    """A model whose package is installed."""
    pytest.importorskip(PACKAGES[request.param], reason="the extra trees is not installed")
    return request.param


def keys(model: str, log: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A config of a synthetic click log; keyword a__b stands for the key a.b."""
    return {
        "model": model,
        "data.name": "synthetic_clicks",
        "data.clicks.synthetic": log,
        "run.progress": False,
        "run.trackers": [],
        "run.log_level": "warning",
        **{key.replace("__", "."): value for key, value in more.items()},
    }


def trained(model: str, folder: Path, log: dict[str, Any], **more: Any) -> dict[str, Any]:
    return shoal.run(config_dict=keys(model, log, run__output=str(folder), **more))


def test_it_learns_a_synthetic_log(name: str, tmp_path: Path) -> None:
    best = synthetic_clicks(SyntheticClicksSection(**LOG), "test").best_auc()
    figures = trained(name, tmp_path / "run", LOG)["test"]
    linear = trained("LR", tmp_path / "linear", LOG, train__epochs=30)["test"]
    assert best - 0.015 < figures["auc"] <= best + 0.005
    assert figures["auc"] > linear["auc"] and figures["logloss"] < linear["logloss"]


def test_a_run_is_evaluated_and_resumed_from_its_text(name: str, tmp_path: Path) -> None:
    figures = trained(name, tmp_path / "run", SMALL, model__rounds=30)
    again = shoal.evaluate(tmp_path / "run")
    assert again["test"] == figures["test"] and again["best_valid"] == figures["best_valid"]
    text = opened(tmp_path / "run").booster_text()
    command = ["train", "--resume", str(tmp_path / "run")]
    assert CliRunner().invoke(app, command).exit_code == 0
    resumed = json.loads((tmp_path / "run" / "result.json").read_text())
    assert resumed["test"] == figures["test"] and resumed["best_valid"] == figures["best_valid"]
    assert opened(tmp_path / "run").booster_text() == text


def opened(folder: Path) -> Trees:
    model = Trained(folder).model
    assert isinstance(model, Trees)
    return model


def test_a_text_that_was_checked_predicts_as_the_library_does(name: str, tmp_path: Path) -> None:
    trained(name, tmp_path / "run", SMALL, model__rounds=30)
    model = opened(tmp_path / "run")
    columns, _ = model.ready
    assert columns.kinds == ("category",) * 4 and columns.num_dense == 2
    samples = synthetic_clicks(SyntheticClicksSection(**SMALL), "test").samples
    values = np.empty((len(samples), columns.width), np.float32)
    model.sample_reader.fill(columns, values, samples.batch())
    if name == "LightGBM":
        booster = model.library.Booster(model_str=model.booster_text().decode())
        expected = booster.predict(values, raw_score=True)
    else:
        booster = model.library.Booster()
        booster.load_model(bytearray(model.booster_text()))
        expected = booster.inplace_predict(values, predict_type="margin")
    found = model.logits(samples.batch()).numpy()
    assert np.array_equal(found, expected.astype(np.float32))
    assert len(np.unique(found)) > 100


def test_rounds_end_where_validation_gets_no_better(name: str, tmp_path: Path) -> None:
    options = {"model__learning_rate": 0.5, "model__rounds": 200, "model__stopping_rounds": 5}
    figures = trained(name, tmp_path / "run", SMALL, **options)
    model = opened(tmp_path / "run")
    assert 1 <= model.num_trees < 100
    options.pop("model__stopping_rounds")
    overfitted = trained(name, tmp_path / "all", SMALL, **options)
    assert opened(tmp_path / "all").num_trees == 200
    assert figures["test"]["logloss"] < overfitted["test"]["logloss"]


# ---- several processes ---------------------------------------------------------------------------


def solution(world: World, model: str, addresses: dict[str, str]) -> dict[str, str]:
    """The SHA-256 of all buffers of a model, by strategy, as this process has them."""
    steps.SIGN_SECONDS = 0.0  # every round sends the others a sign
    found = {}
    for strategy, address in {"ddp": "", "sharded": "", **addresses}.items():
        more: dict[str, Any] = {"strategy__name": strategy, "model__rounds": 15}
        if address:
            more["strategy__ps__addresses"] = [address]
        resolved = resolve(values=keys(model, SMALL, **more))
        parts = build(resolved.config, world)
        valid = parts.evaluator.readers["valid"]  # type: ignore[union-attr]
        solve_from_samples(parts.model, parts.reader, valid, world, seed=7)
        found[strategy] = digest(parts.model)
        parts.strategy.close()
    return found


def digest(model: torch.nn.Module) -> str:
    state = model.state_dict()
    assert state and all(len(tensor) for tensor in state.values())
    return hashlib.sha256(b"".join(one.numpy().tobytes() for one in state.values())).hexdigest()


def test_two_processes_have_the_model_of_one(name: str, tmp_path: Path) -> None:
    server = Server(index=0)
    threading.Thread(target=server.serve, daemon=True).start()
    ranks = run_ranks(solution, 2, tmp_path / "out", name, {"ps": server.address})
    parts = build(resolve(values=keys(name, SMALL, model__rounds=15)).config, World())
    solve_from_samples(parts.model, parts.reader, None, World(), seed=7)
    alone = digest(parts.model)
    assert ranks == [dict.fromkeys(("ddp", "sharded", "ps"), alone)] * 2


# ---- features ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("features"))


def test_features_of_every_kind_are_read(name: str, shop: Path, tmp_path: Path) -> None:
    features = {key: {k: v for k, v in one.items() if k != "dim"} for key, one in FEATURES.items()}
    given = values(shop, name, data__features=features, run__output=str(tmp_path / "run"))
    figures = shoal.run(config_dict=given)
    assert figures["test"]["auc"] > 0.6
    model = opened(tmp_path / "run")
    kinds = dict(zip((one.name for one in model.facts.sparse), model.ready[0].kinds))
    lists = {"liked", "genre", "title"}
    assert {key for key, kind in kinds.items() if kind == "list"} == lists
    assert {key for key, kind in kinds.items() if kind == "category"} == kinds.keys() - lists
    ranking = shoal.recommend(tmp_path / "run", user="u3", topk=5)
    scores = [score for _, score in ranking]
    assert len(scores) == 5 and scores == sorted(scores, reverse=True) and len(set(scores)) > 1


def test_a_frame_is_predicted(name: str, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    frame = pl.DataFrame(
        {"user": random.integers(0, 30, 2000), "item": random.integers(0, 9, 2000)}
    )
    frame = frame.with_columns(liked=(pl.col("item") % 2).cast(pl.Float64))
    fitted = shoal.fit(
        name,
        frame,
        "user",
        "item",
        label="liked",
        **{"run.output": str(tmp_path / "run"), "run.progress": False, "model.rounds": 60},
    )
    odd, even = fitted.predict({"user": [1, 2], "item": [3, 4]})
    assert odd > 0.9 and even < 0.1


def test_columns_are_what_ids_and_values_are() -> None:
    single = torch.tensor([5, 0, 9, 7])
    lists = Jagged.from_lists([[3, 3, 8], [], [8], [4]])
    counts = [IdCounts(), IdCounts(), IdCounts()]
    for one, ids in zip(counts, (single, lists, single)):
        one.add(ids)
    columns = TreeColumns.of_counts(counts[:2], 1, True, max_categories=4, list_columns=2)
    assert columns.kinds == ("category", "list") and columns.width == 1 + 3 + 1
    assert columns.are_categories == [True, False, False, False, False]
    matrix = np.empty((4, 5), np.float32)
    unseen = torch.tensor([5, 0, 9, 6])
    columns.fill(matrix, [unseen, lists], np.array([[0.5], [1.5], [2.5], [np.nan]]))
    nan = np.nan
    expected = [[1, 2, 1, 3, 0.5], [0, 0, 0, 0, 1.5], [3, 0, 1, 1, 2.5], [nan, 0, 0, 1, nan]]
    assert np.array_equal(matrix, np.array(expected, np.float32), equal_nan=True)
    # More categories than are asked for: numbers, and large ones are folded.
    numbers = TreeColumns.of_counts(counts[2:], 0, True, max_categories=2, list_columns=2)
    assert numbers.kinds == ("number",)
    matrix = np.empty((3, 1), np.float32)
    numbers.fill(matrix, [Jagged.from_lists([[7], [], [(1 << 24) + 3]])], np.empty((3, 0)))
    assert np.array_equal(matrix[:, 0], np.array([7, nan, 3], np.float32), equal_nan=True)


def test_the_most_frequent_ids_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_columns, "MOST_COUNTED", 8)
    counts = IdCounts()
    for number in range(40):  # two frequent ids among as many as there are batches
        counts.add(torch.tensor([1000 + number, 2, 1, 2]))
        counts.merge()
    assert counts.most_frequent(2).tolist() == [1, 2] and len(counts.ids) == 2


def solved(name: str, batch: Batch, facts: Facts, **options: Any) -> Trees:
    """A model of the samples of one batch."""
    found = find(name)
    model = found(found.Options(**options), facts)
    assert isinstance(model, Trees)
    torch.manual_seed(3)
    model.solve_from(WholeData(lambda: iter([batch])))
    return model


def samples(size: int = 400) -> Batch:
    """Samples with a slot of ids 1 and 2 and labels that are drawn."""
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 3, (size, 1), generator=random)
    labels = torch.randint(0, 2, (size,), generator=random).float()
    return Batch(size, {"slots": ids}, {}, labels)


def test_samples_count_as_much_as_their_weights(name: str) -> None:
    batch = samples()
    assert batch.labels is not None
    agrees = batch.labels == (batch.ids["slots"][:, 0] == 1)  # type: ignore[index]
    weighted = replace(batch, weights=torch.where(agrees, 1.0, 0.0))
    facts = Facts(num_slots=1, rows=3)
    scores = solved(name, weighted, facts, rounds=50).logits(batch)
    assert ((scores > 0) == (batch.ids["slots"][:, 0] == 1)).all()  # type: ignore[index]
    plain = solved(name, batch, facts, rounds=50).logits(batch)
    assert plain.abs().max() < scores.abs().min()


def test_a_label_of_any_number_is_predicted(name: str) -> None:
    batch = samples()
    numbers = batch.ids["slots"][:, 0] * 10.0  # type: ignore[index]
    facts = Facts(num_slots=1, rows=3, labels=(Label("spent", loss="squared"),))
    scores = solved(name, replace(batch, labels=numbers), facts, rounds=200).logits(batch)
    assert torch.allclose(scores, numbers, atol=0.1)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", PACKAGES)
def test_a_missing_package_names_the_extra(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[model], None)
    found = find(model)
    message = f"{model} needs the package {PACKAGES[model]}.*(EXTRAS=trees|shoal-rec.trees)"
    with pytest.raises(ValueError, match=message):
        found(found.Options(), Facts(num_slots=1, rows=3))


def test_what_it_cannot_do_is_refused(name: str, tmp_path: Path) -> None:
    found, facts = find(name), Facts(num_slots=1, rows=3)
    two = replace(facts, labels=(Label("click"), Label("purchase")))
    with pytest.raises(ValueError, match=f"{name} predicts one label, and data.labels names click"):
        found(found.Options(), two)
    wrong = {"LightGBM": "regression", "XGBoost": "reg:squarederror"}[name]
    with pytest.raises(ValueError, match=f"model.params.objective is {wrong}"):
        found(found.Options(params={"objective": wrong}), facts)
    with pytest.raises(ValueError, match="stopping_rounds needs samples to validate on"):
        solved(name, samples(), facts, stopping_rounds=3)
    with pytest.raises(ValueError, match="a label is neither 0 nor 1"):
        solved(name, replace(samples(), labels=torch.full((400,), 0.5)), facts)
    with pytest.raises(ValueError, match="has no trees yet"):
        found(found.Options(), facts).logits(samples())
    with pytest.raises(ValueError, match=r"unknown key model\.params\.input_model"):
        resolve(values=keys(name, SMALL) | {"model.params": {"input_model": "/etc/passwd"}})


def test_files_that_are_divided_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "day").write_text("click:1 1:7\nclick:0 1:8\n" * 8)
    given = keys(name, SMALL, data__clicks__split_files=True, run__output=str(tmp_path / "run"))
    del given["data.clicks.synthetic"], given["data.name"]
    given |= {f"data.clicks.{split}": str(tmp_path / "day") for split in ("train", "test")}
    given |= {"data.clicks.slots": ["1"], "data.clicks.dense": 0}
    with pytest.raises(ValueError, match=f"split_files: {name} is computed from all samples"):
        shoal.run(config_dict=given)


def test_an_export_says_what_to_do(name: str, tmp_path: Path) -> None:
    trained(name, tmp_path / "run", SMALL, model__rounds=3)
    with pytest.raises(ValueError, match=f"{name} cannot be exported: .*booster_text"):
        shoal.export(tmp_path / "run", to=tmp_path / "artifact")
    assert not (tmp_path / "artifact").exists()


# ---- a text that somebody else wrote -------------------------------------------------------------


@pytest.fixture(scope="module")
def models() -> dict[str, Trees]:
    """A small model of each package that is installed, with splits of categories and of numbers."""
    found = {}
    random = torch.Generator().manual_seed(4)
    ids = torch.randint(1, 9, (600, 1), generator=random)
    dense = torch.rand(600, 1, generator=random)
    labels = ((ids[:, 0] % 3 == 1) ^ (dense[:, 0] > 0.5)).float()
    batch = Batch(600, {"slots": ids}, {"dense": dense}, labels)
    for name, package in PACKAGES.items():
        try:
            __import__(package)
        except ImportError:
            continue
        found[name] = solved(name, batch, Facts(num_slots=1, num_dense=1, rows=9), rounds=3)
    return found


def with_text(model: Trees, text: str) -> Trees:
    """The model of a checkpoint with another text."""
    other = type(model)(model.options, model.facts)
    state = model.state_dict()
    state["booster"] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    other.load_state_dict(state)
    return other


LINES = [  # of LightGBM: a line of its first tree, what stands there instead, why it is refused
    (r"\nleft_child=\S+", "\nleft_child=99", "children must lie in"),
    (r"\nleft_child=\S+", "\nleft_child=0", "children of a tree must lie in|child of two"),
    (r"\nright_child=(\S+)", "\nright_child=-1", "child of two others|children of a tree"),
    (r"\nright_child=\S+ ", "\nright_child=", "right_child has"),
    (r"\nsplit_feature=\S+", "\nsplit_feature=2", "split_feature must lie in 0 .. 1"),
    (r"\nsplit_feature=\S+", "\nsplit_feature=-1", "split_feature must lie in 0 .. 1"),
    (r"\ndecision_type=\S+", "\ndecision_type=77", "decision_type must lie in"),
    (r"\nthreshold=\S+", "\nthreshold=nan", "threshold must have .* finite"),
    (r"\nleaf_value=\S+", "\nleaf_value=inf", "leaf_value must have .* finite"),
    (r"\nleaf_value=", "\nleaf_valve=", "it has no 'leaf_value'"),
    (r"\nnum_leaves=\d+", "\nnum_leaves=70000", "tree 0 has 70000 leaves"),
    (r"\nnum_leaves=\d+", "\nnum_leaves=1000000000000000000000", "not a text of LightGBM"),
    (r"\ncat_boundaries=0 \d+", "\ncat_boundaries=0 -5", "cat_|must rise"),
    (r"\ncat_boundaries=0", "\ncat_boundaries=1", "must rise"),
    (r"\ncat_threshold=\d+", "\ncat_threshold=-1", "cat_threshold must lie in"),
    (r"\nis_linear=0", "\nis_linear=1", "tree 0 has"),
    (r"\nmax_feature_idx=\d+", "\nmax_feature_idx=9", "max_feature_idx is '9'"),
    (r"\nobjective=.*", "\nobjective=custom", "objective is 'custom'"),
    (r"\nnum_tree_per_iteration=1", "\nnum_tree_per_iteration=2", "num_tree_per_iteration"),
    (r"\nend of trees\n", "\n", "it has no end"),
    (r"\nsplit_feature=", "\nsplit_feature=0\nsplit_feature=", "repeats split_feature"),
]


@pytest.mark.parametrize("pattern, instead, why", LINES)
def test_lines_that_lightgbm_would_follow_astray(
    pattern: str, instead: str, why: str, models: dict[str, Trees]
) -> None:
    pytest.importorskip("lightgbm", reason="the extra trees is not installed")
    text = models["LightGBM"].booster_text().decode()
    changed = re.sub(pattern, instead, text, count=1)
    assert changed != text
    with pytest.raises(TreeTextError, match=why):
        with_text(models["LightGBM"], changed)


VALUES: list[tuple[str, Any, str]] = [  # of XGBoost: a value of its first tree, and why
    ("left_children", [9999], "children of a tree must lie in"),
    ("left_children", [0], "children of a tree must lie in"),
    ("left_children", [-2], "children of a tree must lie in"),
    ("right_children", [-1], "two children or none"),
    ("right_children", [1], "child of two others"),
    ("split_indices", [2], "split_indices must lie in 0 .. 1"),
    ("split_indices", [1.5], "not one of whole numbers"),
    ("split_indices", [2**80], "not a text of XGBoost"),
    ("split_type", [5], "split_type must lie in"),
    ("categories", [1 << 30], "categories must lie in"),
    ("categories_nodes", [500], "categories_nodes are not"),
    ("categories_segments", [7], "categories_segments do not follow"),
    ("categories_sizes", [-3], "categories_segments do not follow|do not add up"),
    ("split_conditions", ["x"], "not one of finite numbers"),
    ("split_conditions", [1e300], "not one of finite numbers"),
    ("base_weights", None, "must have .* numbers"),
]


@pytest.mark.parametrize("key, instead, why", VALUES)
def test_values_that_xgboost_would_follow_astray(
    key: str, instead: Any, why: str, models: dict[str, Trees]
) -> None:
    pytest.importorskip("xgboost", reason="the extra trees is not installed")
    document = json.loads(models["XGBoost"].booster_text())
    tree = document["learner"]["gradient_booster"]["model"]["trees"][0]
    changed = [] if instead is None else [*instead, *tree[key][1:]]
    assert tree[key] != changed
    tree[key] = changed
    with pytest.raises(TreeTextError, match=why):
        with_text(models["XGBoost"], json.dumps(document))


@pytest.mark.parametrize(
    "path, value, why",
    [
        (("objective", "name"), "rank:pairwise", "must be gbtree of binary:logistic"),
        (("gradient_booster", "name"), "dart", "must be gbtree of binary:logistic"),
        (("learner_model_param", "base_score"), "[0.5,0.5,0.5]", "base_score is"),
        (("gradient_booster", "model", "tree_info"), [1, 0, 0], "several outputs"),
        (("gradient_booster", "model", "trees"), 7, "not a text of XGBoost"),
    ],
)
def test_a_document_of_another_model(
    path: tuple[str, ...], value: Any, why: str, models: dict[str, Trees]
) -> None:
    pytest.importorskip("xgboost", reason="the extra trees is not installed")
    document = json.loads(models["XGBoost"].booster_text())
    place = document["learner"]
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(TreeTextError, match=why):
        with_text(models["XGBoost"], json.dumps(document))


def damaged(text: str, number: int) -> Iterator[str]:
    """Texts with a few characters changed, in the same ways every time."""
    random = np.random.default_rng(9)
    for _ in range(number):
        characters = list(text)
        for place in random.integers(0, len(text), random.integers(1, 4)):
            characters[place] = str(random.choice(list('0123456789-., =\n[]{}"e')))
        yield "".join(characters)


def test_damaged_texts_are_refused_or_predict(name: str, models: dict[str, Trees]) -> None:
    model, refused = models[name], 0
    batch = Batch(5, {"slots": torch.arange(5)[:, None]}, {"dense": torch.rand(5, 1)})
    for text in damaged(model.booster_text().decode(), 150):
        try:
            assert with_text(model, text).logits(batch).shape == (5,)
        except ValueError as error:
            assert str(error)
            refused += 1
    assert 20 < refused < 150


@pytest.mark.parametrize("part", ["column_kinds", "vocabulary_sizes", "vocabularies"])
def test_columns_of_other_data_are_refused(name: str, part: str, models: dict[str, Trees]) -> None:
    model = models[name]
    state = model.state_dict()
    state[part] = torch.cat([state[part], state[part][-1:]])
    other = type(model)(model.options, model.facts)
    with pytest.raises(ValueError, match="not those of this data"):
        other.load_state_dict(state)


def test_a_text_is_bounded(
    name: str, models: dict[str, Trees], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.trees.checks.MOST_BYTES", 100)
    with pytest.raises(TreeTextError, match="set fewer rounds"):
        with_text(models[name], models[name].booster_text().decode())
    monkeypatch.undo()
    monkeypatch.setattr("shoal.trees.checks.MOST_TREES", 2)
    with pytest.raises(TreeTextError, match="there are 3 trees"):
        with_text(models[name], models[name].booster_text().decode())
    monkeypatch.undo()
    monkeypatch.setattr("shoal.trees.checks.MOST_DEPTH", 1)
    with pytest.raises(TreeTextError, match="deeper than 1"):
        with_text(models[name], models[name].booster_text().decode())

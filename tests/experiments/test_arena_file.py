"""The file of an arena, as careless people write it, and the runs that are planned from it."""

import re
from pathlib import Path
from typing import Any

import pytest

from shoal.config import ConfigError
from shoal.config.yaml_io import inline
from shoal.experiments.arena.arena_file import ArenaEntry, read_arena
from shoal.experiments.arena.cells import ArenaPlan, plan_arena

ROOT = Path(__file__).resolve().parents[2]
DATA = "data: [{name: synthetic, data.synthetic: {users: 60, items: 40, interactions: 1200}}]\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "arena.yaml"


def problems(file: Path, text: str) -> list[str]:
    """What is wrong with a file, without its place."""
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        plan_arena(read_arena(file))
    return [re.sub(r"^\S+arena\.yaml(:\d+)?: ", "", error) for error in caught.value.errors]


def planned(file: Path, text: str) -> ArenaPlan:
    file.write_text(text)
    return plan_arena(read_arena(file))


def test_a_file_of_every_key(file: Path) -> None:
    file.write_text(
        "models: [BPR, {name: BPR, title: wide, embedding_size: 128}]\n" + DATA + "seeds: [7, 8]\n"
        "keys: {train: {epochs: 2}}\ntune: 5\njobs: 2\nprice_per_hour: 3.5\n"
        "published: {model: SASRec, data: synthetic, source: a paper, NDCG@10: 0.1}\n"
    )
    arena = read_arena(file)
    assert arena.models == [ArenaEntry("BPR"), ArenaEntry("BPR", "wide", {"embedding_size": 128})]
    assert (arena.seeds, arena.trials, arena.jobs, arena.price_per_hour) == ([7, 8], 5, 2, 3.5)
    assert arena.keys == {"train.epochs": 2}
    assert arena.published[0].metrics == {"ndcg@10": 0.1}
    plan = plan_arena(arena)
    assert [(one.model, one.seed) for one in plan.cells] == [
        ("BPR", 7),
        ("wide", 7),
        ("BPR", 8),
        ("wide", 8),
    ]
    configs = [one.resolved.config for one in plan.cells]
    assert [one.model.options["embedding_size"] for one in configs] == [64, 128, 64, 128]
    assert {one.train.epochs for one in configs} == {2}
    assert {one.data.split.seed for one in configs} == {2020}  # seeds vary training alone
    assert [one.run.seed for one in configs] == [7, 7, 8, 8]


def test_three_seeds_are_the_default_and_one_entry_needs_no_list(file: Path) -> None:
    file.write_text("models: BPR\n" + DATA.replace("[", "").replace("]", ""))
    arena = read_arena(file)
    assert arena.seeds == [2020, 2021, 2022] and len(arena.data) == 1


def test_the_example_of_the_page_is_read(file: Path) -> None:
    page = (ROOT / "docs" / "reference" / "arena.md").read_text()
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    file.write_text(block)
    arena = read_arena(file)
    assert len(arena.models) * len(arena.data) * len(arena.seeds) == 18
    assert "18 of 18 runs" in page


@pytest.mark.parametrize("text", ["", "# models: [BPR]\n", "{}\n"])
def test_an_empty_file(file: Path, text: str) -> None:
    (problem,) = problems(file, text)
    assert problem.startswith("is empty; an arena needs at least `models: [BPR, LightGCN]` and")


CARELESS: list[tuple[str, str]] = [
    ("models: [BPR]\nmodles: []\n" + DATA, "unknown key modles; allowed: .*; did you mean model"),
    (DATA, "models: there are none; write a list of names"),
    ("models: [BPR]\n", "data: there are none; write a list of names"),
    ("models: []\n" + DATA, r"models: given \[\]; write a list of names"),
    ("models: [3]\n" + DATA, "models: given 3; allowed: a name, or {name: NAME, KEYS}"),
    ("models: [{nam: BPR}]\n" + DATA, r"models: {nam: BPR} has no name$"),
    ("models: [{name: 5}]\n" + DATA, "models: name is 5; allowed: a text"),
    ("models: [BPR, BPR]\n" + DATA, "models: BPR stands there twice; leave one out, or tell"),
    ("models: [BPR, bpr]\n" + DATA, "two models or two data sets have the same name; give one"),
    ("models: [BRP]\n" + DATA, "no model is named 'BRP'.*did you mean BPR"),
    ("models: [BPR]\nseeds: [1, 1]\n" + DATA, "seeds: 1 stands there twice"),
    ("models: [BPR]\nseeds: three\n" + DATA, "seeds: given three; write how many"),
    ("models: [BPR]\nseeds: true\n" + DATA, r"seeds: given \[true\]; write how many"),
    ("models: [BPR]\njobs: 0\n" + DATA, "jobs: given 0; allowed: 1 or more"),
    ("models: [BPR]\ntune: many\n" + DATA, "tune: given many; allowed: 0 or more"),
    ("models: [BPR]\nprice_per_hour: 0\n" + DATA, "price_per_hour: given 0; allowed: a number"),
    ("models: [BPR]\nkeys: 3\n" + DATA, "keys: given 3; allowed: a mapping of config keys"),
    ("models: [BPR]\nkeys: {train.epoch: 3}\n" + DATA, "unknown key train.epoch; did you mean tra"),
    ("models: [BPR]\nkeys: {run.seed: 3}\n" + DATA, "keys: run.seed is decided by seeds; leave"),
    ("models: [{name: BPR, data.name: x}]\n" + DATA, "models: data.name is decided by data"),
    ("models: [BPR]\npublished: [x]\n" + DATA, "published: given x; write {model: SASRec"),
    (
        "models: [BPR]\npublished: {model: A, data: synthetic, ndcg@10: 1}\n" + DATA,
        "published: .* has no source; write",
    ),
    (
        "models: [BPR]\npublished: {model: A, data: synthetic, source: b}\n" + DATA,
        "published: .*: names no metric; write",
    ),
    (
        "models: [BPR]\npublished: {model: A, data: sinthetic, source: b, ndcg@10: 1}\n" + DATA,
        "published: no data set sinthetic; there is synthetic; did you mean synthetic",
    ),
    (
        "models: [BPR]\npublished: {model: A, data: synthetic, source: b, ndgc@10: 1}\n" + DATA,
        "published: synthetic is not tested by ndgc@10; its metrics: .*; did you mean ndcg@10",
    ),
]


@pytest.mark.parametrize("text, message", CARELESS, ids=lambda value: value[:40])
def test_careless_files(file: Path, text: str, message: str) -> None:
    (problem,) = problems(file, text)
    assert re.match(message, problem), problem


def test_all_that_is_wrong_is_named_with_its_line(file: Path) -> None:
    file.write_text("models: [BPR]\n" + DATA + "jobs: 0\nsedes: 3\n")
    with pytest.raises(ConfigError) as caught:
        read_arena(file)
    assert [error.split(": ")[0] for error in caught.value.errors] == [f"{file}:4", f"{file}:3"]


@pytest.mark.parametrize(
    "name, message",
    [
        ("ml-100kk", "no data set 'ml-100kk' in dataset"),
        ("shop.csv", "there is no file or folder shop.csv to read data from"),
        ("nothing/here", "there is no file or folder nothing/here to read data from"),
    ],
)
def test_data_that_is_not_there(file: Path, name: str, message: str) -> None:
    file.write_text(f"models: [BPR, EASE]\ndata: [{name}]\n")
    with pytest.raises(ValueError, match=message):
        plan_arena(read_arena(file))


@pytest.mark.parametrize(
    "key, values",
    [
        ("eval.topk", ([10], [5])),
        ("data.split.ratio", (None, [1, 1, 1])),
        ("data.filter.duplicates", (None, "first")),
        ("eval.mode", ("full", "uni20")),
        ("eval.metrics", (None, ["NDCG", "MRR"])),
    ],
)
def test_settings_that_must_not_differ_between_models(
    file: Path, key: str, values: tuple[Any, Any]
) -> None:
    text = f"models: [BPR, {{name: EASE, {key}: {inline(values[1])}}}]\n{DATA}"
    (problem,) = problems(file, text)
    assert problem.startswith("synthetic: figures of BPR and EASE could not be compared: ")
    assert key in problem and "set this once, under `keys` or with the data set" in problem


def test_a_model_that_cannot_learn_from_a_data_set_is_named(file: Path) -> None:
    clicks = "{name: synthetic_clicks, data.clicks.synthetic.samples: 3000}"
    plan = planned(file, f"models: [LR, BPR]\ndata: [{clicks}]\nseeds: 2\n")
    assert [(one.model, one.seed) for one in plan.cells] == [("LR", 2020), ("LR", 2021)]
    (refusal,) = plan.refused
    assert (refusal.model, refusal.data) == ("BPR", "synthetic_clicks")
    assert "is a click log, and this model learns from interactions" in refusal.reason
    assert plan.models == ["LR", "BPR"]


def test_a_config_file_gives_way_to_the_keys_of_the_arena(file: Path) -> None:
    (file.parent / "tuned.yaml").write_text("model: {name: BPR, embedding_size: 8}\nepochs: 90\n")
    data = DATA.replace("}}]", "}, train.batch_size: 32}]")
    plan = planned(file, f"models: [tuned.yaml]\n{data}keys: {{train.epochs: 2}}\nseeds: 1\n")
    (cell,) = plan.cells
    config = cell.resolved.config
    assert (cell.model, cell.data) == ("tuned", "synthetic")
    assert config.model.options["embedding_size"] == 8
    assert (config.train.epochs, config.train.batch_size) == (2, 32)


def test_config_files_of_one_name_are_called_by_their_folders(file: Path) -> None:
    for folder in ("bpr", "gcn"):
        (file.parent / folder).mkdir()
        (file.parent / folder / "best.yaml").write_text("model: BPR\n")
    names = "[bpr/best.yaml, gcn/best.yaml, {name: BPR, title: plain}]"
    plan = planned(file, f"models: {names}\n{DATA}seeds: 1\n")
    assert plan.models == ["bpr/best", "gcn/best", "plain"]


def test_two_forms_of_one_data_set(file: Path) -> None:
    data = "data: [{name: synthetic, title: T, data.synthetic.users: 900}, synthetic]\n"
    plan = planned(file, f"models: [BPR]\n{data}seeds: 1\n")
    assert plan.data == ["T", "synthetic"]
    assert [one.resolved.config.data.synthetic.users for one in plan.cells] == [900, 943]


def test_a_config_of_somebody_else_runs_no_code(file: Path) -> None:
    run = file.parent / "run"
    (run / "checkpoints").mkdir(parents=True)
    code = file.parent / "own.py"
    code.write_text("open('witness', 'w').close()\n")
    (run / "config.yaml").write_text(f"model: {{name: '{code}:Planted'}}\n")
    file.write_text(f"models: [{run}/config.yaml]\n{DATA}")
    with pytest.raises(ValueError, match=r"model\.name.*--trust"):
        plan_arena(read_arena(file))
    assert not (file.parent / "witness").exists()

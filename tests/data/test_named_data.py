"""Which data a config names: own data is read, or refused; generated data is asked for by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.data.dataset import Dataset
from shoal.data.loading.location import data_values, named_data
from shoal.data.prepared.folder import PrepareJob
from shoal.data.prepared.preparation import prepare
from shoal.distributed.world import World
from shoal.models import find
from shoal.planning.data_summary import describe_run
from shoal.runs.build import build
from shoal.runs.run import label, resolve

ROWS = "".join(f"u{n % 9},i{n * n % 17},{n % 2}\n" for n in range(90))
LOG = "".join(f"click:{n % 2} dense_feature:0.5 1:{n % 7} 2:{n % 5}\n" for n in range(60))
SPLIT = {"data.split.order": "file"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same interactions in every form, and a click log."""
    root = tmp_path_factory.mktemp("named")
    (root / "own.csv").write_text("user_id,item_id,label\n" + ROWS)
    (root / "log.txt").write_text(LOG)
    for name, file in (("shop", "shop.inter"), ("tables", "inter.csv")):
        (root / name).mkdir()
        head = "user_id:token\titem_id:token\tlabel:float\n"
        text = (root / "own.csv").read_text()
        (root / name / file).write_text(
            head + ROWS.replace(",", "\t") if file == "shop.inter" else text
        )
    prepare(PrepareJob([str(root / "own.csv")], root / "made", resolve(values=SPLIT).config.data))
    return root


LOG_KEYS = {"data.clicks.slots": 2, "data.clicks.dense": 1, "data.clicks.valid": "log.txt"}
# How data is given, with {} for its folder -> source and title, of interactions.
GIVEN: list[tuple[dict[str, Any], str, str]] = [
    ({"data.files": {"inter": "own.csv"}}, "tables", "own"),
    ({"data.files": {"inter": "own.csv"}, "data.format": "csv"}, "tables", "own"),
    ({"data.files": {"inter": "own.csv"}, "data.name": "synthetic"}, "tables", "own"),
    ({"data.files": {"inter": "{}/o*.csv"}, "data.path": "dataset"}, "tables", "o"),
    ({"data.files": {p: "own.csv" for p in ("train", "valid", "test")}}, "tables", "own"),
    ({"data.name": "shop"}, "atomic", "shop"),
    ({"data.path": "{}/shop"}, "atomic", "shop"),
    ({"data.name": "tables"}, "tables", "tables"),
    ({"data.path": "{}/tables"}, "tables", "tables"),
    ({"data.path": "{}/made"}, "prepared", "made"),
    ({"data.path": "{}/made", "data.name": "synthetic"}, "prepared", "made"),
    ({"data.name": "made", "data.format": "prepared"}, "prepared", "made"),
    ({"data.clicks.train": "log.txt", **LOG_KEYS}, "log", "log"),
    ({"data.clicks.train": "log.txt", "data.name": "synthetic", **LOG_KEYS}, "log", "log"),
    ({"data.name": "synthetic"}, "synthetic", "synthetic"),
    ({"data.name": "random"}, "random", "random"),
    ({"data.format": "synthetic", "data.name": "mine"}, "synthetic", "mine"),
]


def given(folder: Path, model: str, values: dict[str, Any]) -> Any:
    def place(value: Any) -> Any:
        return (
            {k: place(v) for k, v in value.items()}
            if isinstance(value, dict)
            else value.replace("{}", str(folder))
            if isinstance(value, str)
            else value
        )

    paths = {"data.path": str(folder), **place(values)}
    return resolve(values={"model": model, **paths, **SPLIT, "data.cache": False}).config


@pytest.mark.parametrize("model", ["BPR", "SASRec", "LR", "DeepFM"])
@pytest.mark.parametrize(("values", "source", "title"), GIVEN)
def test_own_data_is_read_by_every_kind_of_model(
    folder: Path, model: str, values: dict[str, Any], source: str, title: str
) -> None:
    config = given(folder, model, values)
    clicks = find(model).kind == "clicks"
    if source == "log" and not clicks:
        with pytest.raises(ValueError, match="names a click log, and this model learns from"):
            named_data(config.data, clicks)
        return
    if clicks and values == {"data.name": "synthetic"}:
        source = "synthetic_clicks"
    assert named_data(config.data, clicks).source == source
    assert config.data.title == title and label(config.model, config.data) == f"{model}-{title}"


@pytest.mark.parametrize("values", [one[0] for one in GIVEN[:13]])
def test_a_click_model_builds_own_data(folder: Path, values: dict[str, Any]) -> None:
    config = given(folder, "LR", values)
    parts = build(config, World())
    rows = 3 * 90 if "train" in (config.data.files or {}) else 90
    found = parts.dataset.num_inter if isinstance(parts.dataset, Dataset) else 60
    assert found == (60 if "data.clicks.train" in values else rows)
    assert "synthetic" not in describe_run(config).text


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "BPR",
        {},
        r"no data is named, and there is none in data\.path=.*data\.name=synthetic is gene",
    ),
    ("LR", {}, r"no data is named"),
    ("LR", {"data.name": "clicks"}, "no data set 'clicks'"),
    ("LR", {"data.name": "shoop"}, "no data set 'shoop'.*did you mean shop"),
    ("LR", {"data.path": "{}/own.csv"}, r"a file, .*data\.files\.inter=.*own\.csv"),
    ("LR", {"data.path": "{}/nowhere"}, "no data is named"),
    ("LR", {"data.clicks.valid": "log.txt"}, r"data\.clicks\.train must name"),
    ("LR", {"data.format": "criteo"}, r"data\.clicks\.train must name"),
    ("LR", {"data.format": "csv"}, r"needs data\.files"),
    ("BPR", {"data.name": "synthetic_clicks"}, r"is a click log.*use data\.name=synthetic"),
    (
        "LR",
        {"data.clicks.train": "log.txt", "data.files": {"inter": "own.csv"}},
        r"data\.files and data\.clicks\.train both name data",
    ),
    ("LR", {"data.clicks.train": "log.txt", "data.fields.label": "y"}, r"data\.fields is .*for"),
    (
        "LR",
        {"data.files": {"inter": "own.csv"}, "data.clicks.slots": ["user_id"]},
        r"data\.clicks\.slots is .*for a click log, and own is none",
    ),
    ("LR", {"data.files": {"inter": "own.csv"}, "data.format": "synthetic"}, "names tables, and"),
]


@pytest.mark.parametrize(("model", "values", "said"), REFUSED)
def test_what_names_no_data_is_refused(
    folder: Path, model: str, values: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        build(given(folder, model, values), World())


def test_the_command_refuses_before_it_makes_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, ["train", "--model=LR", "--nproc=2"])
    assert "no data is named" in str(ran.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", ["BPR", "LR"])
@pytest.mark.parametrize("values", [one[0] for one in GIVEN])
@pytest.mark.parametrize("name", ["own.csv", "shop", "made", "log.txt"])
def test_new_data_takes_the_place_of_what_a_config_names(
    folder: Path, model: str, values: dict[str, Any], name: str
) -> None:
    """Of a run that goes on (--from RUN --data PATH) whatever it was trained on before."""
    config, clicks = given(folder, model, values), find(model).kind == "clicks"
    if ("data.clicks.train" in values or values == {"data.name": "synthetic"}) != (
        name == "log.txt"
    ):
        return  # a model that goes on reads the same kind of data
    if not clicks and name == "log.txt":
        return
    resolved = resolve(values={"model": model, **SPLIT})
    resolved = type(resolved)(config, resolved.origins, [])
    new = resolved.with_values(data_values(folder / name, config.data, clicks), "--data").config
    assert new.data.title == name.partition(".")[0]
    source = {"own.csv": "tables", "shop": "atomic", "made": "prepared", "log.txt": "log"}
    assert named_data(new.data, clicks).source == source[name]

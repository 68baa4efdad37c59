"""The folder of a search or a sweep may be somebody else's: what it names is not run without trust,
and a database that is damaged or has no room gives one error.
"""

import errno
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shoal import config as config_room
from shoal.cli import main as cli
from shoal.cli.machine import explain
from shoal.experiments.tuning import study_folder
from shoal.experiments.tuning.space import read_space
from shoal.experiments.tuning.study import Study, reporting_database
from shoal.experiments.tuning.study_folder import StudyFolder, StudyLimits
from shoal.experiments.tuning.sweep import plan_run
from shoal.experiments.tuning.sweep_grid import make_grid, plan_cells
from shoal.runs.run import resolve
from tests.helpers.commands import finish

SPACE = "model.embedding_size: [4, 8]\n"
SMALL: dict[str, Any] = {
    "model": "BPR",
    "data.name": "synthetic",
    "data.synthetic": {"users": 40, "items": 30, "interactions": 500},
    "train.epochs": 1,
    "run.progress": False,
    "run.trackers": [],
}
Call = Callable[..., tuple[int, str]]


class Foreign:
    """A search that somebody else began: one trial that is to be continued."""

    def __init__(self, root: Path):
        self.root, self.folder, self.witness = root, root / "study", root / "witness"
        self.trial = self.folder / "trials" / "0000"
        self.trial.mkdir(parents=True)
        self.resolved = resolve(values=SMALL)
        self.config = config_room.dump(self.resolved.config)
        (self.folder / "config.yaml").write_text(self.config)
        (self.folder / "space.yaml").write_text(SPACE)
        study = Study(
            folder=self.folder,
            metric="mrr@10",
            seed=2020,
            sampler=None,
            prune=None,
            space=read_space(self.folder / "space.yaml"),
        )
        study.propose({"model.embedding_size": 8})
        study.decide_num_trials(1)
        values = {"run.output": str(self.trial)}
        self.trial_config = config_room.dump(self.resolved.with_values(values, "here").config)
        (self.trial / "config.yaml").write_text(self.trial_config)

    def code(self, text: str) -> str:
        """A file of code, which leaves a witness when it is run."""
        file = self.root / "planted.py"
        file.write_text(f"open({str(self.witness)!r}, 'w').close()\n{text}")
        return str(file)


MODEL = "from shoal.models.general.bpr import BPR\nclass Planted(BPR):\n    pass\n"
TRACKER = (
    "class Planted:\n"
    "    def begin(self, config, folder): pass\n"
    "    def epoch(self, line): pass\n"
    "    def end(self, result): pass\n"
)


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Foreign:
    monkeypatch.chdir(tmp_path)
    return Foreign(tmp_path)


@pytest.fixture
def idle_crew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that would train are not started: everything before them is real."""

    class Idle:
        def __init__(self, *_: Any):
            pass

        def __enter__(self) -> "Idle":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def train(self, *_: Any) -> bool:
            return False

    monkeypatch.setattr(study_folder, "WorkerPool", Idle)


@pytest.fixture
def call(idle_crew: None) -> Call:
    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli.app, words)
        return result.exit_code, f"{result.output}\n{result.exception}"

    return run


IN_SPACE = {
    "model.name": "model.name: ['CODE:Planted']",
    "eval.metrics": "eval.metrics: [['CODE:Planted', NDCG]]",
    "run.plugins": "run.plugins: [[CODE]]",
    "run.trackers": "run.trackers: [['CODE:Planted'], []]",
    "data.clicks.pipe_command": "data.clicks.pipe_command: [python3 CODE, cat]",
    "data.clicks.custom": "data.clicks.custom: [CODE]",
    "checkpoint.copy_to": "checkpoint.copy_to: ['file://CODE']",
}


@pytest.mark.parametrize("key", IN_SPACE)
def test_a_space_names_no_code_without_trust(foreign: Foreign, call: Call, key: str) -> None:
    line = IN_SPACE[key].replace("CODE", foreign.code(MODEL))
    (foreign.folder / "space.yaml").write_text(f"{SPACE}{line}\n")
    new = ("--model=BPR", "--data.name=synthetic", "--output", "new")
    for words in (
        ("tune", "--resume", str(foreign.folder)),
        ("tune", "--resume", "--output", str(foreign.folder)),
        ("tune", *new, "--space", str(foreign.folder / "space.yaml")),
    ):
        status, said = call(*words)
        assert status and key in said and "--trust" in said, said
    assert not foreign.witness.exists()


def test_with_trust_the_space_is_used(foreign: Foreign, call: Call) -> None:
    line = IN_SPACE["model.name"].replace("CODE", foreign.code(MODEL))
    (foreign.folder / "space.yaml").write_text(f"{line}\n")
    (foreign.folder / "study.db").unlink()
    status, said = call("tune", "--resume", str(foreign.folder), "--trust")
    assert not status and foreign.witness.exists(), said


IN_TRIAL = {
    "model.name": ("name: BPR", "name: CODE:Planted"),
    "run.trackers": ("trackers: []", "trackers: ['CODE:Planted']"),
    "data.clicks.pipe_command": ("pipe_command: null", "pipe_command: python3 CODE"),
    "checkpoint.copy_to": ("copy_to: null", "copy_to: file://CODE"),
}


@pytest.mark.parametrize("key", IN_TRIAL)
@pytest.mark.parametrize("place", ["trials/0000", "finalists/0000-2021"])
def test_a_trial_names_no_code_without_trust(
    foreign: Foreign, call: Call, key: str, place: str
) -> None:
    code = foreign.code(TRACKER if key == "run.trackers" else MODEL)
    before, after = IN_TRIAL[key]
    assert foreign.trial_config.count(before) == 1
    run = foreign.folder / place
    run.mkdir(parents=True, exist_ok=True)
    text = foreign.trial_config.replace(before, after.replace("CODE", code))
    (run / "config.yaml").write_text(text)
    (foreign.root / "own.yaml").write_text(foreign.config)
    for words in (
        ("tune", "--resume", str(foreign.folder)),
        ("tune", "own.yaml", "--resume", "--output", str(foreign.folder)),
    ):
        status, said = call(*words)
        assert status and key in said and "--trust" in said, said
    assert not foreign.witness.exists()
    status, said = call("tune", "--resume", str(foreign.folder), "--trust")
    assert not status, said


def test_a_trial_may_name_the_code_of_the_users_own_config(foreign: Foreign, call: Call) -> None:
    """But not keep another text of it."""
    own = foreign.root / "own.py"
    own.write_text(MODEL)
    for file in (foreign.trial / "config.yaml", foreign.root / "own.yaml"):
        text = foreign.trial_config if file.parent == foreign.trial else foreign.config
        file.write_text(text.replace("name: BPR", f"name: {own}:Planted"))
    (foreign.folder / "config.yaml").write_text((foreign.root / "own.yaml").read_text())
    words = ("tune", "own.yaml", "--resume", "--output", str(foreign.folder))
    status, said = call(*words)
    assert not status, said
    kept = foreign.trial / "model" / "own.py"
    kept.parent.mkdir()
    kept.write_text(MODEL)
    assert not call(*words)[0]
    kept.write_text(Path(foreign.code(MODEL)).read_text())
    status, said = call(*words)
    assert status and "model.name" in said and "--trust" in said and "own.py" in said, said
    assert not foreign.witness.exists()


def test_a_database_brings_no_values_that_the_space_does_not_have(
    foreign: Foreign, call: Call
) -> None:
    code = foreign.code(MODEL)
    (foreign.trial / "config.yaml").unlink()
    choices = {"name": "CategoricalDistribution", "attributes": {"choices": [f"{code}:Planted"]}}
    change = "UPDATE trial_params SET param_name = ?, param_value = 0, distribution_json = ?"
    for key in ("model.embedding_size", "model.name"):
        with sqlite3.connect(foreign.folder / "study.db") as database:
            database.execute(change, (key, json.dumps(choices)))
        status, said = call("tune", "--resume", str(foreign.folder))
        assert status and "study.db" in said and "space.yaml" in said, said
    assert not foreign.witness.exists()


def test_a_space_without_end_takes_no_memory(foreign: Foreign, call: Call) -> None:
    (foreign.folder / "study.db").unlink()
    (foreign.folder / "trials" / "0000" / "config.yaml").unlink()
    (foreign.folder / "space.yaml").write_text("train.batch_size: {low: 1, high: 1000000000000}\n")
    status, said = call("tune", "--resume", str(foreign.folder), "--trials", "1")
    assert "Memory" not in said and ("batch_size" in said or not status), said


def test_code_named_by_the_best_config_of_a_search_needs_trust(
    foreign: Foreign, call: Call
) -> None:
    text = foreign.config.replace("name: BPR", f"name: {foreign.code(MODEL)}:Planted")
    (foreign.folder / "best.yaml").write_text(text)
    for words in (
        ("train", str(foreign.folder / "best.yaml")),
        ("sweep", "--models", str(foreign.folder / "best.yaml"), "--output", "new"),
        ("config", "show", str(foreign.folder / "best.yaml")),
    ):
        status, said = call(*words)
        assert status and "model.name" in said and "--trust" in said, said
    assert not foreign.witness.exists()
    assert not call("config", "show", str(foreign.folder / "best.yaml"), "--trust")[0]


def test_a_sweep_runs_no_copy_that_its_folder_keeps(foreign: Foreign, call: Call) -> None:
    """The config of a run that was begun is the user's; the copy of its model is another."""
    (foreign.root / "own.py").write_text(MODEL)
    (foreign.root / "own.yaml").write_text(
        foreign.config.replace("name: BPR", f"name: {foreign.root}/own.py:Planted")
    )
    words = ("sweep", "own.yaml", "--seeds", "1", "--output", "table")
    (cell,) = plan_cells(make_grid(seeds="1"), ["own.yaml"], [])
    run = plan_run(Path("table"), cell)
    StudyFolder(Path("table"), StudyLimits(), print).write_config(run.folder, cell.resolved, True)
    kept = foreign.root / run.folder / "model" / "own.py"
    kept.parent.mkdir(parents=True)
    kept.write_text(Path(foreign.code(MODEL)).read_text())
    status, said = call(*words)
    assert status and "model.name" in said and "--trust" in said, said
    assert not foreign.witness.exists()


# ---- the database -------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["text", "state", "cut", "json", "kind"])
def test_a_damaged_database_is_one_error(foreign: Foreign, call: Call, damage: str) -> None:
    file = foreign.folder / "study.db"
    if damage == "text":
        file.write_bytes(b"no database at all " * 100)
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    else:
        changes = {
            "state": "UPDATE trials SET state = 'NO SUCH'",
            "json": "UPDATE trial_params SET distribution_json = '{]'",
            "kind": "UPDATE study_user_attributes SET value_json = '[1]'",
        }
        with sqlite3.connect(file) as database:
            database.execute(changes[damage])
    result = CliRunner().invoke(cli.app, ["tune", "--resume", str(foreign.folder)])
    assert isinstance(result.exception, ValueError), result.exception
    said = str(result.exception)
    assert "study.db" in said and "--output" in said and "\n" not in said


def test_a_database_that_is_a_link_is_not_opened(foreign: Foreign, call: Call) -> None:
    file, other = foreign.folder / "study.db", foreign.root / "other.db"
    file.rename(other)
    file.symlink_to(other)
    before = other.read_bytes()
    status, said = call("tune", "--resume", str(foreign.folder))
    assert status and "study.db" in said and "is a link" in said
    assert other.read_bytes() == before


def test_a_full_disk_is_one_error(foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite may use no more pages than it has: it answers as on a disk that is full."""
    real = sqlite3.connect

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        database = real(*arguments, **options)
        database.execute("PRAGMA max_page_count = 1")
        return database

    monkeypatch.setattr(sqlite3, "connect", connect)
    space = read_space({"train.optimizer.lr": {"low": 1e-4, "high": 0.1}})
    (foreign.folder / "study.db").unlink()
    with pytest.raises(OSError) as told:
        Study(foreign.folder, "mrr@10", 2020, None, None, space)
    assert told.value.errno == errno.ENOSPC
    monkeypatch.setattr(sqlite3, "connect", real)
    Study(foreign.folder, "mrr@10", 2020, "random", None, space)
    monkeypatch.setattr(sqlite3, "connect", connect)
    study = Study(foreign.folder, "mrr@10", 2020, "random", None, space)
    with pytest.raises(OSError) as told, reporting_database(foreign.folder):
        for _ in range(2_000):
            study.propose({})
    line = explain(told.value)
    assert line is not None and "study.db" in line and "name a place on another disk" in line


@pytest.mark.slow
def test_with_trust_a_foreign_trial_is_resumed(foreign: Foreign) -> None:
    before, after = IN_TRIAL["run.trackers"]
    text = foreign.trial_config.replace(before, after.replace("CODE", foreign.code(TRACKER)))
    (foreign.trial / "config.yaml").write_text(text)
    refused = finish("tune", "--resume", "study", cwd=foreign.root, status=2)
    assert "run.trackers" in refused and "--trust" in refused and "Traceback" not in refused
    assert not foreign.witness.exists()
    finish("tune", "--resume", "study", "--trust", cwd=foreign.root)
    assert foreign.witness.exists()

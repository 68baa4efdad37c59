"""Folders inside a folder that somebody else made may be links to folders of the user.

Every command that writes or deletes in one of them refuses it with one error; what the link leads
to stays as it was, whatever the command does. INNER lists the folders of each kind of place; a
command that writes into a folder (test_trust_of_commands.py lists all of them) has a line here.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli import main as cli
from shoal.files.folders import inner_folder, opened_folder, remove_folder
from shoal.training.run_folder import INNER_FOLDERS, start_logging

SMALL: dict[str, Any] = {
    "model": "BPR",
    "data.name": "synthetic",
    "data.synthetic": {"users": 40, "items": 30, "interactions": 500},
    "train.epochs": 1,
    "checkpoint.keep": 3,
    "run.progress": False,
    "run.threads": 1,
}
Call = Callable[..., tuple[int, str]]
Tree = dict[str, bytes | None]


def tree(folder: Path) -> Tree:
    """Everything below a folder: names, and what files hold."""
    return {
        str(one.relative_to(folder)): one.read_bytes() if one.is_file() else None
        for one in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, with all of the folders that runs have."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    shoal.run(config_dict={**SMALL, "run.output": str(folder)})
    for name in INNER_FOLDERS:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "kept.txt").write_text(f"kept in {name}\n")
    (folder / "checkpoints" / ".step-000000009.new").mkdir()  # as a killed run leaves it
    (folder / "checkpoints" / ".step-000000009.new" / "half").write_text("half\n")
    return folder


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    monkeypatch.chdir(tmp_path)

    def run(*words: str | Path) -> tuple[int, str]:
        result = CliRunner().invoke(cli.app, list(map(str, words)))
        return result.exit_code, f"{result.output}\n{result.exception}"

    yield run
    start_logging("info")


def link_away(folder: Path, name: str) -> tuple[Path, Tree]:
    """Make a folder inside a link to a folder of the user: that one, and what it holds."""
    victim = folder.parent / f"of-the-user-{folder.name}-{name.replace('/', '-')}"
    place = folder / name
    if place.exists():
        place.rename(victim)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        victim.mkdir()
        (victim / "kept.txt").write_text("kept\n")
    place.symlink_to(victim)
    return victim, tree(victim)


# Commands on a run's folder: those that write or delete in it refuse every link, others leave what
# it leads to as it was.
RUN_WRITERS = {
    "train": ("train", "--resume", "RUN", "--run.output=RUN", "--train.epochs=2"),
    "eval into it": ("eval", "RUN", "--output", "RUN"),
}
RUN_READERS = {
    "eval": ("eval", "RUN"),
    "report": ("report", "RUN"),
    "runs": ("runs", "RUN"),
    "plan": ("plan", "--compare", "RUN"),
    "recommend": ("recommend", "RUN", "--user", "1"),
    "verify": ("checkpoint", "verify", "RUN"),
    "train from it": ("train", "--from", "RUN", "--output", "next", "--data.name=synthetic"),
}


@pytest.mark.parametrize("name", INNER_FOLDERS)
def test_what_writes_in_a_run_follows_no_link(
    trained: Path, tmp_path: Path, call: Call, name: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    victim, before = link_away(run, name)
    for words in RUN_WRITERS.values():
        status, said = call(*(word.replace("RUN", str(run)) for word in words))
        assert status != 0 and f"{run / name}" in said and "is a link" in said, (words, said)
        assert tree(victim) == before, words


@pytest.mark.slow
@pytest.mark.parametrize("words", RUN_READERS.values(), ids=RUN_READERS)
def test_what_reads_a_run_changes_nothing_behind_a_link(
    trained: Path, tmp_path: Path, call: Call, words: tuple[str, ...]
) -> None:
    for name in INNER_FOLDERS:
        run = tmp_path / name / "run"
        shutil.copytree(trained, run)
        victim, before = link_away(run, name)
        call(*(word.replace("RUN", str(run)) for word in words))
        assert tree(victim) == before, name


def test_checkpoints_are_pruned_and_copied_behind_no_link(
    trained: Path, tmp_path: Path, call: Call
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    victim, before = link_away(run, "checkpoints")
    status, said = call("checkpoint", "prune", run)
    assert status != 0 and "is a link" in said and tree(victim) == before, said
    # A place to copy to that somebody prepared.
    to, other = tmp_path / "to", tmp_path / "mine.yaml"
    to.mkdir()
    other.write_text("mine\n")
    (to / "config.yaml").symlink_to(other)
    status, said = call("checkpoint", "copy", trained, to)
    assert status != 0 and "is a link" in said and other.read_text() == "mine\n"


def test_one_checkpoint_that_is_a_link_is_not_removed(
    trained: Path, tmp_path: Path, call: Call
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (real,) = (run / "checkpoints").glob("step-*")
    victim, before = link_away(run, f"checkpoints/{real.name}")
    newer = run / "checkpoints" / "step-999999999"
    shutil.copytree(victim, newer)
    _, said = call("checkpoint", "prune", run)
    assert tree(victim) == before and (run / "checkpoints" / real.name).is_symlink(), said


def test_a_root_of_the_users_own_may_be_a_link(trained: Path, tmp_path: Path, call: Call) -> None:
    """A larger disk, say: the folder that is named, and the one above it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    shutil.copytree(trained, disk / "run")
    (tmp_path / "runs").symlink_to(disk)
    (tmp_path / "named").symlink_to(disk / "run")
    for folder in (tmp_path / "runs" / "run", tmp_path / "named"):
        status, said = call("train", "--resume", folder, f"--run.output={folder}")
        assert status == 0, said
        assert call("checkpoint", "prune", folder)[0] == 0


# ---- searches, sweeps, back-tests, files as they come -------------------------------------------


@pytest.mark.parametrize("name", ["trials", "trials/0000", "trials/0000/checkpoints", "finalists"])
def test_a_search_follows_no_link(trained: Path, tmp_path: Path, call: Call, name: str) -> None:
    config = ["--model=BPR", "--data.name=synthetic", "--train.epochs=1", "--run.threads=1"]
    (tmp_path / "space.yaml").write_text("model.embedding_size: [4, 8]\n")
    study = tmp_path / "study"
    if name.startswith("trials/"):  # the author left a run in its place
        (study / "trials").mkdir(parents=True)
        place = study / name
        place.parent.mkdir(exist_ok=True)
        shutil.copytree(trained, study / "trials" / "0000", dirs_exist_ok=True)
    victim, before = link_away(study, name)
    words = ("tune", *config, "--space", "space.yaml", "--trials", "1", "--output", study)
    status, said = call(*words)
    assert tree(victim) == before
    assert status != 0 and "is a link" in said, said


@pytest.mark.parametrize("name", ["runs", "runs/BPR-synthetic-2020"])
def test_a_sweep_follows_no_link(tmp_path: Path, call: Call, name: str) -> None:
    victim, before = link_away(tmp_path / "table", name)
    config = ["--model=BPR", "--data.name=synthetic", "--train.epochs=1"]
    status, said = call("sweep", *config, "--seeds", "1", "--output", tmp_path / "table")
    assert status != 0 and "is a link" in said and tree(victim) == before, said


DAYS = "user_id:token\titem_id:token\ttimestamp:float\n" + "".join(
    f"u{k % 9}\ti{k * 7 % 11}\t{k}\n" for k in range(90)
)


def test_a_back_test_follows_no_link(tmp_path: Path, call: Call) -> None:
    data = tmp_path / "dataset" / "days"
    data.mkdir(parents=True)
    (data / "days.inter").write_text(DAYS)
    victim, before = link_away(tmp_path / "cuts", "cut-1")
    words = ["--model=Pop", "--data.name=days", "--data.load.inter=[user_id,item_id,timestamp]"]
    status, said = call("backtest", *words, "--cuts", "2", "--output", tmp_path / "cuts")
    assert status != 0 and "is a link" in said and tree(victim) == before, said


def follow_words(trained: Path, tmp_path: Path) -> tuple[str | Path, ...]:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "day.inter").write_text(DAYS)
    return (
        *("train", "--from", trained, "--follow", tmp_path / "in", "--once"),
        *("--output", tmp_path / "out"),
    )


@pytest.mark.parametrize("name", ["000001", "data", "data/day"])
def test_files_as_they_come_are_followed_behind_no_link(
    trained: Path, tmp_path: Path, call: Call, name: str
) -> None:
    victim, before = link_away(tmp_path / "out", name)
    status, said = call(*follow_words(trained, tmp_path))
    assert status != 0 and "is a link" in said and tree(victim) == before, said


@pytest.mark.parametrize("field", ["run", "name", "export"])
def test_a_ledger_names_no_folder_elsewhere(
    trained: Path, tmp_path: Path, call: Call, field: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept.txt").write_text("kept\n")
    entries = [
        {"name": f"day-{k}.inter", "bytes": 1, "run": f"{k:06d}", "done": True} for k in range(4)
    ]
    for entry in entries[:3]:
        entry[field] = "../victim"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "ledger.json").write_text(json.dumps(entries))
    status, said = call(*follow_words(trained, tmp_path))
    assert status != 0 and "ledger.json" in said and "Traceback" not in said, said
    assert (victim / "kept.txt").exists()


# ---- data, keys, files to begin with ------------------------------------------------------------


@pytest.mark.parametrize("name", [".shoal"])
def test_the_cache_beside_data_follows_no_link(tmp_path: Path, call: Call, name: str) -> None:
    data = tmp_path / "dataset" / "days"
    data.mkdir(parents=True)
    (data / "days.inter").write_text(DAYS)
    victim, before = link_away(data, name)
    _, said = call("data", "describe", "--data.name=days", "--data.cache=true")
    assert tree(victim) == before, said


def test_keys_are_made_behind_no_link(tmp_path: Path, call: Call) -> None:
    pytest.importorskip("zmq")
    victim, before = link_away(tmp_path / "keys", "for-workers")
    status, said = call("keys", "make", tmp_path / "keys")
    assert status != 0 and "is a link" in said and tree(victim) == before, said


def test_first_files_are_written_through_no_link(tmp_path: Path, call: Call) -> None:
    place, other = tmp_path / "place", tmp_path / "mine"
    place.mkdir()
    for name, words in {
        "synthetic-recommend.yaml": (
            "quickstart",
            "synthetic",
            "--task",
            "recommend",
            "--on",
            "here",
        ),
        "two_tower.py": ("new", "model", "TwoTower"),
    }.items():
        (place / name).symlink_to(other)  # there is no such file: it would be made
        status, said = call(*words, "--to", place)
        assert status != 0 and "is a link" in said and not other.exists(), said


# ---- the one function ---------------------------------------------------------------------------


def test_folders_are_opened_part_by_part(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "below").mkdir(parents=True)
    (victim / "below" / "kept").touch()
    root = tmp_path / "root"
    assert inner_folder(root, "a", "b").is_dir()
    (root / "link").symlink_to(victim)
    (root / "a" / "link").symlink_to(victim)
    (root / "file").touch()
    for names in (("link",), ("link", "below"), ("a", "link"), ("a", "link", "below")):
        for use in (
            lambda: inner_folder(root, *names),  # noqa: B023
            lambda: inner_folder(root, *names, make=False),  # noqa: B023
            lambda: remove_folder(root, *names),  # noqa: B023
        ):
            with pytest.raises(OSError, match="is a link, not a folder"):
                use()
    for name in ("", ".", "..", "a/b"):
        with pytest.raises(OSError, match="name of a folder"):
            inner_folder(root, name)
    with pytest.raises(NotADirectoryError), opened_folder(root, "file"):
        pass
    remove_folder(root, "absent")
    remove_folder(root, "a", "b")
    assert not (root / "a" / "b").exists() and (victim / "below" / "kept").exists()


def test_what_is_exchanged_for_a_link_is_not_followed(tmp_path: Path) -> None:
    """An open folder stays the one that it was."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").touch()
    inner_folder(tmp_path, "root", "inner")
    with opened_folder(tmp_path, "root") as handle:
        (tmp_path / "root").rename(tmp_path / "moved")
        (tmp_path / "root").symlink_to(tmp_path)
        shutil.rmtree("inner", dir_fd=handle)
    assert not (tmp_path / "moved" / "inner").exists() and (victim / "kept").exists()

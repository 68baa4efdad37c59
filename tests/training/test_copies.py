"""Copies of checkpoints in an object store: kept as the run keeps its own, fetched by a new one."""

import uuid
from pathlib import Path

import fsspec
import pytest
from captured_warnings import listening
from click_batches import global_batch
from test_deltas import rows_of, strategy_of

from shoal.distributed.world import World
from shoal.training.checkpoint.remote import Copies
from shoal.training.checkpoint.writing import (
    CheckpointError,
    Checkpoints,
    finish_writing,
    take_snapshot,
)


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = uuid.uuid4().hex
    return f"memory://{name}/run" if request.param == "memory" else f"file://{tmp_path}/store/run"


def there(url: str) -> list[str]:
    return Copies(url, Path()).committed()


def contents(url: str) -> dict[str, bytes]:
    system, root = fsspec.core.url_to_fs(url)
    return {name: system.cat_file(name) for name in system.find(root)}


def checkpoints_of(folder: Path, url: str) -> Checkpoints:
    return Checkpoints(folder, World(), keep=1, whole_every=3, copy_to=url)


def test_copies_are_not_in_the_folder_of_a_run(tmp_path: Path) -> None:
    """Its own, which copies would not outlive, or that of another, which begins only now."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.yaml").write_text("model: BPR\n")
    (tmp_path / "link").symlink_to(other)
    for place in (
        "own/checkpoints",
        "own/checkpoints/x",
        "other",
        "other/checkpoints",
        "link/copies",
    ):
        with pytest.raises(
            ValueError, match=r"is in the folder of a run, .*; name a place outside"
        ):
            Copies(f"file://{tmp_path}/{place}", tmp_path / "own" / "checkpoints")
    Copies(f"file://{tmp_path}/copies", tmp_path / "own" / "checkpoints")


def test_a_run_resumes_from_its_copy(tmp_path: Path, url: str) -> None:
    strategy = strategy_of("fixed", World())
    checkpoints = checkpoints_of(tmp_path / "run", url)
    checkpoints.claim()
    for step in range(1, 6):
        strategy.train_step(global_batch(step, "one", "fixed"))
        checkpoints.save(strategy, {"step": step, "best_step": None})
        checkpoints.wait()
        assert there(url) == [path.name for path in checkpoints.committed()]
    assert there(url) == ["step-000000005", "step-000000004"]  # a delta and its base
    other = checkpoints_of(tmp_path / "other", url)
    with pytest.raises(CheckpointError, match="holds checkpoints of another run"):
        other.claim()
    found = other.load_newest()
    assert found is not None and found.state["step"] == 5
    assert rows_of(found) == rows_of(take_snapshot(strategy, {}))
    other.claim()  # what it has fetched is its own
    for step in (6, 7):
        other.save(strategy, {"step": step, "best_step": None})
        other.wait()
    assert there(url) == [path.name for path in other.committed()]
    with pytest.raises(CheckpointError, match="holds checkpoints of another run"):
        checkpoints_of(tmp_path / "run", url).claim()  # the first one does not take it back


def test_a_run_leaves_other_files_of_the_store_alone(tmp_path: Path, url: str) -> None:
    """Two runs name the same place, and the second one has checkpoints already."""
    strategy = strategy_of("fixed", World())

    def save(run: str, step: int) -> None:
        strategy.train_step(global_batch(step, "one", "fixed"))
        checkpoints_of(tmp_path / run, url).save(strategy, {"step": step, "best_step": None})
        finish_writing(60)

    save("first", 1)
    save("first", 2)
    before = contents(url)
    for step in (2, 3):
        with listening() as said:
            save("second", step)
        assert any("holds checkpoints of another run (step-000000002)" in line for line in said)
        assert contents(url) == before
    with pytest.raises(CheckpointError, match="another run"):
        checkpoints_of(tmp_path / "second", url).claim()


def test_a_repeated_step_replaces_its_copy(tmp_path: Path, url: str) -> None:
    strategy = strategy_of("fixed", World())
    for note in ("first", "again"):
        checkpoints = checkpoints_of(tmp_path / "run", url)
        checkpoints.save(strategy, {"step": 1, "best_step": None, "note": note})
        checkpoints.wait()
    other = checkpoints_of(tmp_path / "other", url).load_newest()
    assert other is not None and other.state["note"] == "again"


def test_a_partial_copy_is_not_listed(tmp_path: Path, url: str) -> None:
    strategy = strategy_of("fixed", World())
    checkpoints = checkpoints_of(tmp_path / "run", url)
    for step in (1, 2):
        checkpoints.save(strategy, {"step": step, "best_step": None})
        checkpoints.wait()
    system, root = fsspec.core.url_to_fs(url)
    system.rm_file(f"{root}/step-000000002/manifest.json")
    found = checkpoints_of(tmp_path / "other", url).load_newest()
    assert found is not None and found.state["step"] == 1


def test_a_store_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    strategy = strategy_of("fixed", World())
    checkpoints = checkpoints_of(tmp_path / "run", f"file://{tmp_path}/file/run")
    with listening() as said:
        checkpoints.save(strategy, {"step": 1, "best_step": None})
        checkpoints.wait()
    assert any("checkpoints are not copied to" in line for line in said)
    assert len(checkpoints.committed()) == 1


@pytest.mark.parametrize("url", ["/a/path", "https://host/run", "simplecache::s3://x", "s4://b/r"])
def test_places_that_take_no_copies(url: str) -> None:
    with pytest.raises(ValueError, match=r"checkpoint\.copy_to: .* is no place for copies"):
        Copies(url, Path())

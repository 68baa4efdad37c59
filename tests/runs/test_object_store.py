"""What a run reads from and writes to an object store, against an S3 server on loopback."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from object_store import ObjectStore, serving
from small_artifact import MEAN, write_artifact

import shoal
from shoal.data.sources import fetch
from shoal.runs.results import NotCopied

EPOCHS = {
    "dataset": "synthetic",
    "data.synthetic": {"users": 60, "items": 40, "interactions": 900},
    "train.epochs": 3,
    "checkpoint.keep": 3,
    "run.log_level": "error",
    "run.progress": False,
}
INTER = "user_id:token\titem_id:token\ttimestamp:float\n" + "".join(
    f"u{user}\ti{(user * 7 + step * 3) % 23}\t{step}\n" for user in range(20) for step in range(8)
)


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with serving() as store:
        yield store


@pytest.fixture
def store(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectStore]:
    """The server with an empty bucket, and this process set up as a client of it."""
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    own = ObjectStore(server.address, f"bucket-{tmp_path.name.replace('_', '-').lower()}")
    s3fs = pytest.importorskip("s3fs")
    s3fs.S3FileSystem.clear_instance_cache()
    own.write(".made", b"")
    own._client().rm_file(f"{own.bucket}/.made")
    yield own
    s3fs.S3FileSystem.clear_instance_cache()


def checkpoint_files(folder: Path) -> dict[str, bytes]:
    """Files of a run's checkpoints by STEP/NAME."""
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in (folder / "checkpoints").glob("step-*/*")
    }


def copied_files(store: ObjectStore) -> dict[str, bytes]:
    return {name.partition("/")[2]: content for name, content in store.objects().items()}


# ---- checkpoints --------------------------------------------------------------------------------


def test_every_checkpoint_of_a_run_arrives(store: ObjectStore, tmp_path: Path) -> None:
    keys = {"checkpoint.copy_to": f"{store.url}/run", "run.output": str(tmp_path / "run")}
    result = shoal.run("BPR", **EPOCHS, **keys)
    assert "not_copied" not in result
    copied = copied_files(store)
    assert copied == checkpoint_files(tmp_path / "run")
    assert len({name.partition("/")[0] for name in copied}) == 3


def test_copies_that_are_kept_no_longer_are_removed(store: ObjectStore, tmp_path: Path) -> None:
    keys = {"checkpoint.copy_to": f"{store.url}/run", "run.output": str(tmp_path / "run")}
    shoal.run("BPR", **{**EPOCHS, "checkpoint.keep": 1, "train.epochs": 4}, **keys)
    assert copied_files(store) == checkpoint_files(tmp_path / "run")


def test_a_run_continues_on_a_new_machine(store: ObjectStore, tmp_path: Path) -> None:
    keys = {"checkpoint.copy_to": f"{store.url}/run"}
    shoal.run("BPR", **EPOCHS, **keys, **{"run.output": str(tmp_path / "first")})
    longer = {**EPOCHS, "train.epochs": 5, "run.output": str(tmp_path / "second")}
    result = shoal.run("BPR", resume=True, **longer, **keys)
    assert result["epochs"] == 5
    lines = (tmp_path / "second" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [3, 4]  # the others were not repeated
    whole = shoal.run("BPR", **{**longer, "run.output": str(tmp_path / "whole")})
    assert result["test"] == whole["test"]


def test_a_place_of_another_run_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    keys = {"checkpoint.copy_to": f"{store.url}/run"}
    shoal.run("BPR", **EPOCHS, **keys, **{"run.output": str(tmp_path / "first")})
    before = store.objects()
    with pytest.raises(ValueError, match="holds checkpoints of another run"):
        shoal.run("BPR", **EPOCHS, **keys, **{"run.output": str(tmp_path / "second")})
    assert store.objects() == before


def test_a_run_whose_copies_failed_ends_with_an_error_and_resume_copies_them(
    tmp_path: Path,
) -> None:
    """The place is below a file while the run trains; later it is a folder that can be written."""
    place, run = tmp_path / "store", tmp_path / "run"
    keys = {"checkpoint.copy_to": f"file://{place}/run", "run.output": str(run)}

    place.write_text("no folder")
    with pytest.raises(NotCopied, match="checkpoints did not arrive at file://") as failed:
        shoal.run("BPR", **EPOCHS, **keys)
    steps = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    assert len(steps) == 3 and ", ".join(steps) in str(failed.value)
    assert f"shoal train --resume {run} --checkpoint.copy_to=file://{place}/run" in str(
        failed.value
    )
    result = json.loads((run / "result.json").read_text())
    assert result["test"] == failed.value.result["test"]
    assert result["not_copied"]["checkpoints"] == steps

    place.unlink()
    continued = shoal.run("BPR", resume=True, **EPOCHS, **keys)
    assert "not_copied" not in continued and continued["test"] == result["test"]
    assert "not_copied" not in json.loads((run / "result.json").read_text())
    copied = sorted(path.parent.name for path in place.glob("run/*/manifest.json"))
    assert copied == steps


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_command_ends_with_a_status_when_copies_failed(tmp_path: Path, processes: int) -> None:
    run = tmp_path / "run"
    (tmp_path / "file").write_text("no folder")
    synthetic = "{users: 60, items: 40, interactions: 900}"
    words = ["--data.name=synthetic", f"--data.synthetic={synthetic}", "--train.epochs=2"]
    words += [f"--checkpoint.copy_to=file://{tmp_path}/file/run", f"--output={run}"]
    words += [f"--launch.nproc={processes}", "--run.device=cpu"]
    ended = subprocess.run(
        [sys.executable, "-m", "shoal", "train", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 2, ended.stderr
    assert "error: checkpoints did not arrive at file://" in ended.stderr
    assert "Training is finished" in ended.stderr and "recall@10" in ended.stdout
    assert (run / "result.json").is_file() and not (run / "failure.json").exists()


# ---- artifacts and data -------------------------------------------------------------------------


def test_an_artifact_is_pushed_and_loaded(store: ObjectStore, tmp_path: Path) -> None:
    artifact = shoal.load(write_artifact(tmp_path / "own", MEAN))
    url = artifact.push(f"{store.url}/models/one")
    assert artifact.push(url) == url  # it is there: nothing is sent again
    loaded = shoal.load(url)
    assert loaded.recommend("a") == artifact.recommend("a")
    assert str(loaded.folder).startswith(str(tmp_path / "cache"))
    other = shoal.load(write_artifact(tmp_path / "other", MEAN, max_len=3))
    with pytest.raises(ValueError, match="holds another artifact; name a new place"):
        other.push(url)
    with pytest.raises(ValueError, match="is no artifact"):
        shoal.load(f"{store.url}/models/two")


@pytest.mark.parametrize("place", ["data.files", "data.path and data.name", "data.path"])
def test_data_of_a_url_trains_as_data_here(store: ObjectStore, tmp_path: Path, place: str) -> None:
    """Any of the keys that name data may be a URL; what is there is copied once."""
    (tmp_path / "here" / "shop").mkdir(parents=True)
    (tmp_path / "here" / "shop" / "shop.inter").write_text(INTER)
    keys = {**EPOCHS, "train.epochs": 1, "data.cache": False}
    keys = {key: value for key, value in keys.items() if not key.startswith(("dataset", "data.p"))}
    here = {"data.path": str(tmp_path / "here"), "data.name": "shop"}
    expected = shoal.run("BPR", **keys, **here, **{"run.output": str(tmp_path / "expected")})
    store.write("sets/shop/shop.inter", INTER.encode())
    store.write("sets/shop/notes.txt", b"read me")
    remote = {
        "data.files": {"data.files": {"inter": f"{store.url}/sets/shop/shop.inter"}},
        "data.path and data.name": {"data.path": f"{store.url}/sets", "data.name": "shop"},
        "data.path": {"data.path": f"{store.url}/sets/shop/"},
    }[place]
    if place == "data.files":
        plain = INTER.replace(":token", "").replace(":float", "")
        store.write("sets/shop/plain.tsv", plain.encode())
        remote = {"data.files": {"inter": f"{store.url}/sets/shop/plain.tsv"}}
    found = shoal.run("BPR", **keys, **remote, **{"run.output": str(tmp_path / "found")})
    assert found["test"] == expected["test"]


def test_a_url_without_data_is_one_error(store: ObjectStore) -> None:
    keys = {"data.path": f"{store.url}/sets", "data.name": "shop"}
    with pytest.raises(ValueError, match=rf"data\.path: {store.url}/sets/shop names no files"):
        shoal.run("BPR", **keys)


def test_a_name_of_a_remote_data_set_stays_in_the_cache(store: ObjectStore) -> None:
    with pytest.raises(ValueError, match=r"data\.name: \.\./\.\./outside"):
        shoal.run("BPR", **{"data.path": f"{store.url}/sets", "data.name": "../../outside"})


def test_a_file_of_a_url_is_given_to_a_command(store: ObjectStore, tmp_path: Path) -> None:
    rows = INTER.replace(":token", "").replace(":float", "").replace("\t", ",")
    store.write("shop.csv", rows.encode())
    described = subprocess.run(
        [sys.executable, "-m", "shoal", "data", "describe", f"{store.url}/shop.csv"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert described.returncode == 0, described.stderr
    assert f"shoal train {store.url}/shop.csv" in described.stdout


def test_a_data_set_is_fetched_from_a_mirror_in_a_store(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("ml-100k/u.data", "1\t2\t3\t4\n")
    store.write("mirror/ml-100k.zip", packed.getvalue())
    md5 = hashlib.md5(packed.getvalue()).hexdigest()
    monkeypatch.setitem(fetch.ARCHIVES, "ml-100k", fetch.Archive(md5, "u.data"))
    fetched = fetch.fetch("ml-100k", tmp_path / "dataset", mirror=f"{store.url}/mirror")
    assert (fetched / "u.data").read_text() == "1\t2\t3\t4\n"
    with pytest.raises(fetch.FetchError, match=r"cannot fetch ml-1m from s3://"):
        fetch.fetch("ml-1m", tmp_path / "dataset", mirror=f"{store.url}/mirror")


@pytest.mark.slow  # the client tries again by itself
def test_a_store_that_is_not_there_is_one_error(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens at the address; the client gives up, and the error names the place."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fsspec.filesystem("s3").clear_instance_cache()
    artifact = shoal.load(write_artifact(tmp_path / "own", MEAN))
    with pytest.raises(ValueError, match=r"cannot reach s3://elsewhere/one"):
        artifact.push("s3://elsewhere/one")
    shutil.rmtree(tmp_path / "own")

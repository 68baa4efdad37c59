"""What the author of a run folder can put into a checkpoint: refused, with the file named."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from shoal.distributed.world import World
from shoal.training import retention
from shoal.training.checkpoint.snapshot import Snapshot
from shoal.training.checkpoint.writing import CheckpointError, Checkpoints, read, write
from shoal.training.run_folder import LogFile, RunFolder


def tensors(value: float = 0.5) -> bytes:
    values = torch.full((3, 2), value)
    return save({"ids": torch.arange(3), "values": values, "state.sum": torch.ones(3, 2)})


def commit(folder: Path, step: int, **files: bytes) -> Path:
    path = folder / f"step-{step:09d}"
    given = {"dense.safetensors": save({"w": torch.ones(2)}), **files}
    write(path, Snapshot({"step": step, "best_step": None}, given))
    return path


def sign(path: Path, manifest: dict[str, Any]) -> None:
    """As an author does who knows the format."""
    manifest = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(manifest, sort_keys=True)
    manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


def rename(path: Path, old: str, new: str) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][new] = manifest["files"].pop(old)
    sign(path, manifest)


@pytest.mark.parametrize("how", ["absolute", "above", "below", "link", "fifo", "device", "empty"])
def test_a_manifest_names_regular_files_of_its_own_folder(tmp_path: Path, how: str) -> None:
    path = commit(tmp_path / "run", 1)
    old = path / "dense.safetensors"
    elsewhere = tmp_path / "secret"
    elsewhere.write_bytes(old.read_bytes())
    name = {"absolute": str(elsewhere), "above": "../../secret", "below": "sub/x", "empty": ""}
    if how in name:
        (path / "sub").mkdir()
        (path / "sub" / "x").write_bytes(old.read_bytes())
        rename(path, "dense.safetensors", name[how])
    else:
        old.unlink()
        if how == "link":
            old.symlink_to(elsewhere)
        elif how == "fifo":
            os.mkfifo(old)
        else:
            old.symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="damaged"):
        read(path)


def test_the_manifest_itself_is_a_regular_file(tmp_path: Path) -> None:
    path = commit(tmp_path, 1)
    (path / "manifest.json").unlink()
    os.mkfifo(path / "manifest.json")
    with pytest.raises(CheckpointError, match="regular file"):
        read(path)


@pytest.mark.parametrize("base", ["../step-000000001", "step-000000001/../x", "/etc", 5])
def test_a_base_is_a_plain_name(tmp_path: Path, base: Any) -> None:
    commit(tmp_path, 1)
    path = commit(tmp_path, 2)
    manifest = json.loads((path / "manifest.json").read_text())
    sign(path, {**manifest, "base": base})
    with pytest.raises(CheckpointError, match="damaged"):
        read(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_that_no_training_leaves_behind_are_refused(tmp_path: Path, value: float) -> None:
    commit(tmp_path, 1, **{"rows-item-00000.safetensors": tensors()})
    bad = commit(tmp_path, 2, **{"rows-item-00000.safetensors": tensors(value)})
    with pytest.raises(CheckpointError, match="values holds NaN or infinite"):
        read(bad)
    snapshot = Checkpoints(tmp_path, World()).load_newest()
    assert snapshot is not None and snapshot.state["step"] == 1


def test_training_that_overflowed_is_named(tmp_path: Path) -> None:
    """Files that were damaged on the disk are another error."""
    for step in (1, 2):
        commit(tmp_path, step, **{"rows-item-00000.safetensors": tensors(float("inf"))})
    with pytest.raises(CheckpointError, match="numbers overflowed in training: every checkpoint"):
        Checkpoints(tmp_path, World()).load_newest()
    (tmp_path / "step-00000003").mkdir()
    with pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged"):
        Checkpoints(tmp_path, World()).load_newest()


def safetensors(length: int = 48, **facts: tuple[str, list[int], list[int]]) -> bytes:
    """A file whose header states these types, shapes and places, before `length` bytes."""
    keys = ("dtype", "shape", "data_offsets")
    header = json.dumps({name: dict(zip(keys, values)) for name, values in facts.items()}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(length)


IDS = ("I64", [3], [0, 24])
VALUES = ("F32", [3, 2], [24, 48])


@pytest.mark.parametrize(
    "data",
    [
        (99 << 20).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        safetensors(ids=IDS, values=("F32", [3, 2], [0, 24])),  # where the ids are
        safetensors(ids=IDS, values=("F32", [3, 2], [48, 24])),
        safetensors(ids=IDS, values=("F32", [3, 2], [24, 1 << 62])),
        safetensors(ids=IDS, values=("F32", [1 << 62, 8], [24, 24])),  # 2^67 bytes are 0 of 64 bits
        safetensors(ids=IDS, values=("F32", [1 << 61, 1 << 61], [24, 48])),
        safetensors(ids=IDS, values=("F32", [-3, -2], [24, 48])),
        safetensors(ids=IDS, values=("F32", [3, 2.5], [24, 48])),  # type: ignore[list-item]
        safetensors(ids=IDS, values=("X9", [3, 2], [24, 48])),
        safetensors(ids=("F32", [6], [0, 24]), values=VALUES),
        safetensors(24, ids=IDS, values=VALUES),
        b"",
        b"\xff" * 100,
        (2**63).to_bytes(8, "little") + b"{}",
        save({"ids": torch.arange(3)}),
        save({"ids": torch.arange(3), "values": torch.ones(2, 2)}),
        save({"ids": torch.tensor(3), "values": torch.ones(2, 2)}),
    ],
)
def test_files_that_hold_no_rows_are_reported_and_an_older_checkpoint_is_used(
    tmp_path: Path, data: bytes
) -> None:
    commit(tmp_path, 1, **{"rows-item-00000.safetensors": tensors()})
    bad = commit(tmp_path, 2, **{"rows-item-00000.safetensors": data})
    with pytest.raises(CheckpointError, match="rows-item-00000"):
        read(bad)
    snapshot = Checkpoints(tmp_path, World()).load_newest()
    assert snapshot is not None and snapshot.state["step"] == 1


def test_a_nested_manifest_is_one_error(tmp_path: Path) -> None:
    path = commit(tmp_path, 1)
    (path / "manifest.json").write_text("[" * 200_000)
    with pytest.raises(CheckpointError, match="damaged"):
        read(path)


def test_infinite_masks_of_dense_parameters_are_fine(tmp_path: Path) -> None:
    mask = save({"mask": torch.tensor([0.0, -float("inf")])})
    read(commit(tmp_path, 1, **{"dense.safetensors": mask}))
    with pytest.raises(CheckpointError, match="NaN"):
        read(commit(tmp_path, 2, **{"dense.safetensors": save({"w": torch.tensor([torch.nan])})}))


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "result.json"])
def test_a_copy_brings_nothing_from_elsewhere(tmp_path: Path, name: str) -> None:
    """A link in a run's folder leads to a file that its author cannot read; the copy could be."""
    run, secret = tmp_path / "run", tmp_path / "secret"
    commit(run / "checkpoints", 1)
    secret.write_text("secret")
    (run / "config.yaml").touch()
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(secret)
    with pytest.raises(ValueError, match=f"{name}: is a link"):
        retention.copy(run, tmp_path / "copy")
    assert not (tmp_path / "copy" / name).exists()


def test_a_resumed_run_writes_through_no_link(tmp_path: Path) -> None:
    """`train --resume` in somebody's folder emptied, or wrote into, what its links led to."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    names = (".lock", "train.log", "metrics.jsonl", ".result.json.new")
    for name in names:
        (tmp_path / name).symlink_to(precious)
    folder = RunFolder(tmp_path)

    def lock() -> None:
        with folder.locked():
            pass

    for write_it in (
        lock,
        lambda: LogFile(tmp_path / "train.log"),
        lambda: folder.append_metrics({"epoch": 1}),
        lambda: folder.write_result({}),
    ):
        with pytest.raises(OSError, match="is a link"):
            write_it()
    assert precious.read_text() == "precious"

"""The folder of an exported pipeline (export.py), checked before anything of it is read."""

from __future__ import annotations

from pathlib import Path

from shoal.files.durable import is_plain_name
from shoal.serving.artifact import files
from shoal.serving.artifact.files import ArtifactError
from shoal.serving.pipeline.file import PIPELINE, PipelineFile, read_pipeline

ARTIFACTS = "artifacts"
KIND = "pipeline"  # of its manifest
MOST_ARTIFACTS = 4096  # with those that deltas build upon


def read_any_pipeline(path: str | Path) -> PipelineFile:
    """The file of a pipeline, or that of the folder of an exported one."""
    return read_folder(Path(path)) if Path(path).is_dir() else read_pipeline(path)


def read_folder(folder: Path) -> PipelineFile:
    """The file of an exported pipeline, which names what is whole in its folder alone."""
    if not (folder / files.MANIFEST).exists():
        raise ArtifactError(
            f"{folder} holds no exported pipeline; name the pipeline's file, or a folder that "
            "`shoal pipeline export FILE --output FOLDER` made"
        )
    manifest = files.read_manifest(folder)
    if manifest.get("kind") != KIND:
        raise ArtifactError(f"{folder} is an artifact of one model; `shoal serve` serves it")
    files.verify(folder, manifest)
    if PIPELINE not in manifest["files"]:
        raise ArtifactError(f"pipeline {folder} is damaged: it has no {PIPELINE}")
    with files.damaged(f"pipeline {folder}"):
        sums = dict(manifest["artifacts"])
        if len(sums) > MOST_ARTIFACTS:
            raise ArtifactError(f"pipeline {folder} names more than {MOST_ARTIFACTS} artifacts")
        for place, stated in sums.items():
            _check_artifact(folder, place, stated)
    file = read_pipeline(folder / PIPELINE)
    for name in file.artifact_names():
        if name not in sums:
            raise ArtifactError(f"pipeline {folder} is damaged: it does not hold {name!r}")
    for table in file.tables():
        if table.name not in manifest["files"] or table.parent != folder:
            raise ArtifactError(f"pipeline {folder} is damaged: it does not hold {str(table)!r}")
    return file


def _check_artifact(folder: Path, place: str, stated: str) -> None:
    """Refuse what is no folder GROUP/NAME of this one, or another artifact than was exported."""
    parts = place.split("/")
    if len(parts) != 2 or not all(map(is_plain_name, parts)):
        raise ArtifactError(f"pipeline {folder} is damaged: {place!r} is no artifact of its own")
    for path in (folder / parts[0], folder / place):
        if path.is_symlink() or not path.is_dir():
            raise ArtifactError(f"pipeline {folder} is damaged: {path.name} is no folder in it")
    if files.read_manifest(folder / place)["sha256"] != stated:
        raise ArtifactError(f"pipeline {folder} is damaged: {place} is another artifact")

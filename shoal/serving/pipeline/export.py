"""A pipeline as one folder: its file, its artifacts and its table of items, with checksums.

    manifest.json            bytes and SHA-256 of these files, of each artifact, and of itself
    pipeline.yaml            the file, whose names are those of this folder
    table-NUMBER-NAME        the tables of items and of features, where there are some
    artifacts/NAME/...       artifacts as they were; those from another folder: artifacts-2/NAME

The author of such a folder may be anybody: it names plain files and artifacts of its own, no links,
and nothing is read of it before its checksum was right.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from shoal.config.yaml_io import inline, read_file
from shoal.files.durable import open_regular, sync_folder, write_durably
from shoal.serving.artifact import files
from shoal.serving.artifact.artifact import DELTAS, Artifact
from shoal.serving.pipeline.file import PIPELINE, PipelineFile
from shoal.serving.pipeline.folder import ARTIFACTS, KIND
from shoal.serving.pipeline.pipeline import Pipeline


def export_pipeline(file: str | Path, output: str | Path) -> Path:
    """Write a pipeline with all that it names into a new folder, and open it there.

    >>> from pathlib import Path
    >>> _ = Path("pipeline.yaml").write_text("retrieve: [{artifact: exported/first, number: 50}]")
    >>> folder = export_pipeline("pipeline.yaml", "exported/pipeline")
    >>> len(shoal.Pipeline(folder).recommend("7", number=5))
    5
    """
    pipeline, folder = Pipeline(file), Path(output)
    with files.new_folder(folder) as hidden:
        places = _copy_artifacts(pipeline, hidden)
        for number, table in enumerate(pipeline.file.tables()):
            _copy(table, hidden / table_name(number, table), links=True)
        values = _renamed(pipeline.file, places)
        write_durably(hidden / PIPELINE, _text(values).encode())
        sums = {
            place: files.read_manifest(hidden / place)["sha256"]
            for place in _folders_of_artifacts(hidden)
        }
        files.write_manifest(hidden, kind=KIND, artifacts=sums)
        Pipeline(hidden)  # checked as whoever opens it does
        files.commit(hidden, folder)
    return folder


def _copy_artifacts(pipeline: Pipeline, folder: Path) -> dict[Path, str]:
    """Copy artifacts, and those that deltas build upon; folder of each -> its new name.

    Those of one folder stay beside each other, as deltas need it.
    """
    groups: dict[Path, str] = {}
    places: dict[Path, str] = {}
    for artifact in pipeline.artifacts:
        source = artifact.folder.resolve()
        number = len(groups) + 1
        group = groups.setdefault(
            source.parent, ARTIFACTS if number == 1 else f"{ARTIFACTS}-{number}"
        )
        places[artifact.folder] = f"{group}/{source.name}"
        for below in (source, *_bases(artifact, source)):
            _copy_artifact(below, folder / group / below.name)
    return places


def _bases(artifact: Artifact, source: Path) -> list[Path]:
    """The folders of the artifacts that a delta builds upon."""
    base = artifact.signature["base"]
    if base is None:
        return []
    return [source.parent / name for name in files.chain(source, base["name"], DELTAS)]


def _copy_artifact(source: Path, target: Path) -> None:
    """Copy the files that an artifact's manifest names."""
    if target.exists():  # what several deltas build upon
        return
    target.mkdir(parents=True)
    for name in (*files.read_manifest(source)["files"], files.MANIFEST):
        _copy(source / name, target / name, links=False)
    sync_folder(target)
    sync_folder(target.parent)


def _copy(source: Path, target: Path, links: bool) -> None:
    """Copy a file; links: whether it may be one."""
    with open_regular(source, links=links) as opened, open(target, "xb") as out:
        shutil.copyfileobj(opened, out, 1 << 20)
        out.flush()
        os.fsync(out.fileno())


def table_name(number: int, table: Path) -> str:
    """What a table is called in the folder; number: its place among those of the file."""
    return f"table-{number + 1}-{table.name}"


def _renamed(file: PipelineFile, places: dict[Path, str]) -> dict[str, Any]:
    """The values of a file, with the names that its folder has for what it names.

    Sources keep the names that answers call them.
    """
    values = read_file(file.path)[0]
    entries = [entry for entry in values["retrieve"] if entry is not None]
    for entry, name in zip(entries, file.retrieve):
        entry["name"] = name
    for key in ("rank", "fallback"):
        entries += [values[key]] if values.get(key) is not None else []
    for entry in entries:
        entry["artifact"] = places[file.folder(entry["artifact"])]
    names = [table_name(number, table) for number, table in enumerate(file.tables())]
    if file.items is not None:
        values["items"] = names.pop(0)
    for table, name in zip((values.get("rank") or {}).get("features") or (), names):
        table["file"] = name
    return values


def _text(values: dict[str, Any]) -> str:
    """Values as the text of a file, an entry of a list on each line."""
    lines = []
    for key, value in values.items():
        if isinstance(value, list):
            lines += [f"{key}:", *(f"  - {inline(entry)}" for entry in value)]
        elif value is not None:
            lines.append(f"{key}: {inline(value)}")
    return "\n".join(lines) + "\n"


def _folders_of_artifacts(folder: Path) -> list[str]:
    """GROUP/NAME of each artifact of a new folder."""
    groups = sorted(group for group in folder.iterdir() if group.is_dir())
    return [f"{group.name}/{one.name}" for group in groups for one in sorted(group.iterdir())]

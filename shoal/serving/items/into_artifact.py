"""Into an artifact: new items of a folder, or of a file of vectors, behind those that it has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shoal.serving.artifact.artifact import Artifact
from shoal.serving.artifact.new_items import needs_vectors
from shoal.serving.artifact.write_new_items import AddedItems, add_items, write_with_items
from shoal.serving.items.folder import ItemsFolder
from shoal.serving.items.live_items import fits, unknown_to


def add_to_artifact(
    artifact: str | Path,
    file: str | Path,
    to: str | Path,
    ids: str | None = None,
    column: str | None = None,
) -> AddedItems:
    """Write an artifact with new items behind its own, to a new folder.

    file: of vectors or codes, or the folder of a service (`shoal serve --items`), of which those
    that the artifact knows stay as they are. ids, column: as in the config, `data.item_vectors`.
    """
    if not Path(file).is_dir():
        return add_items(artifact, file, to, ids, column)
    if ids is not None or column is not None:
        raise ValueError(
            f"{file} is a folder of a service, which has its ids: leave out --ids and --column"
        )
    source, folder = Artifact(artifact), ItemsFolder(file)
    needs_vectors(source)
    folder.read()
    posted = [one for one in folder.posted if fits(source, one)]
    count = sum(len(one.items.ids) for one in folder.posted)
    if not posted:
        raise ValueError(
            f"{file} holds no new items with vectors of {source.projector.width} numbers, as "
            f"{source.model} was trained with; {count} have others"
        )
    new = replace(unknown_to(source, posted), source=str(file))
    if not new.ids:
        raise ValueError(f"{artifact} has all {count} items of {file} already")
    added = write_with_items(source, new, to)
    fitting = sum(len(one.items.ids) for one in posted)
    return replace(added, already=fitting - len(new.ids), left_out=count - fitting)

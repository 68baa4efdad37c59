"""Live items: how the artifacts in service get the items of a folder (folder.py).

An artifact takes those that it does not know: another one that takes its place may have been
trained with some of them. Items whose vectors it cannot read are left out, counted and logged.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch

from shoal.data.loading.captions import ENDINGS
from shoal.serving.artifact.artifact import GRAPHS, Artifact
from shoal.serving.artifact.new_items import (
    KnownItems,
    NewItems,
    needs_vectors,
    rows_of,
    with_items,
    with_room,
)
from shoal.serving.items.folder import ItemsFolder, PostedItems

log = logging.getLogger("shoal")


@dataclass(frozen=True)
class FolderProgress:
    """What an artifact has of the folder: files up to a number, and how many items it left out."""

    number: int = 0
    left_out: int = 0


class LiveItems:
    """The items of a folder, and what each artifact in service has of them."""

    def __init__(self, folder: ItemsFolder):
        self.folder = folder
        self._progress: WeakKeyDictionary[Artifact, FolderProgress] = WeakKeyDictionary()

    def left_out(self, artifact: Artifact) -> int:
        """How many items of the folder an artifact cannot read."""
        return self._progress.get(artifact, FolderProgress()).left_out

    def brought_up(self, artifact: Artifact) -> Artifact:
        """The artifact with every item that was read and that it did not know, and with room for
        more; itself where it has them all.
        """
        before = self._progress.get(artifact)
        if before is None:
            before, artifact = FolderProgress(), with_room(artifact)
            self._progress[artifact] = before
        posted = self.folder.posted
        new = posted[bisect_right(posted, before.number, key=lambda entry: entry.number) :]
        if not new:
            return artifact
        longer, left_out = with_posted(artifact, new)
        self._progress[longer] = FolderProgress(new[-1].number, before.left_out + left_out)
        return longer

    def check(self, artifacts: Sequence[Artifact], new: NewItems) -> None:
        """Refuse items that these artifacts, all in service, cannot take.

        An item may be known to some of them, and some may take none.
        """
        for artifact in artifacts:
            artifact.needs_catalogue()
        takers = [one for one in artifacts if one.projector.refusal is None]
        if not takers:
            needs_vectors(artifacts[0])
        for role in new.captions:
            if not any(role in artifact.captions for artifact in takers):
                raise ValueError(
                    f"{new.source}: unknown attribute {role!r}: {takers[0].folder.name} was "
                    f"exported without a {role} of items; leave it out"
                )
        numbers = np.stack([artifact.items.find(new.ids) for artifact in takers])
        is_known = numbers > 0
        refused = np.flatnonzero(is_known.all(0))
        if len(refused):
            examples = ", ".join(repr(new.ids[place][:40]) for place in refused[:3])
            raise KnownItems(
                f"{new.source}: {len(refused)} of its items are there already, such as {examples}; "
                "nothing was added"
            )
        for artifact, is_there in zip(takers, is_known):
            if is_there.all():
                continue
            places = np.flatnonzero(~is_there)
            _, lengths = rows_of(artifact, new.chosen(places))
            if not bool((lengths > 0).all()):
                odd = new.ids[int(places[int((lengths == 0).int().argmax())])]
                raise ValueError(
                    f"{new.source}: the vector of {odd[:80]!r} is of zeros, which says nothing of "
                    "an item"
                )


def with_posted(artifact: Artifact, posted: Sequence[PostedItems]) -> tuple[Artifact, int]:
    """The artifact with the posted items that it did not know, and how many it cannot read."""
    if artifact.kind in GRAPHS or artifact.projector.refusal is not None:
        count = sum(len(one.items.ids) for one in posted)
        why = artifact.projector.refusal or f"{artifact.model} predicts clicks of samples"
        log.warning("%d new items are left out: %s", count, why)
        return artifact, count
    fitting = [one for one in posted if fits(artifact, one)]
    left_out = sum(len(one.items.ids) for one in posted if not fits(artifact, one))
    if left_out:
        log.warning(
            "%s: %d new items are left out: %s was trained with vectors of %d numbers, and theirs "
            "have others",
            artifact.folder,
            left_out,
            artifact.model,
            artifact.projector.width,
        )
    if not fitting:
        return artifact, left_out
    new = unknown_to(artifact, fitting)
    if not new.ids:
        return artifact, left_out
    try:
        return with_items(artifact, new), left_out
    except ValueError as error:
        if len(fitting) == 1:
            log.warning("%d new items are left out: %s", len(new.ids), error)
            return artifact, left_out + len(new.ids)
    for entry in fitting:  # to leave out those alone that are wrong
        artifact, more = with_posted(artifact, [entry])
        left_out += more
    return artifact, left_out


def fits(artifact: Artifact, posted: PostedItems) -> bool:
    """Whether the vectors are as wide as those that an artifact was trained with."""
    return posted.items.vectors.shape[1] == artifact.projector.width


def unknown_to(artifact: Artifact, posted: Sequence[PostedItems]) -> NewItems:
    """The posted items that an artifact does not know, each once, as one."""
    new = joined([one.items for one in posted])
    unknown = artifact.items.find(new.ids) == 0
    first = {word.removesuffix(".0"): place for place, word in reversed(list(enumerate(new.ids)))}
    return new.chosen(np.array([k for k in sorted(first.values()) if unknown[k]], np.int64))


def joined(parts: Sequence[NewItems]) -> NewItems:
    """All items as one, with every caption."""
    ids = [word for part in parts for word in part.ids]
    captions = {
        role: [text for part in parts for text in part.captions.get(role, [""] * len(part.ids))]
        for role in ENDINGS
    }
    return NewItems(parts[0].source, ids, torch.cat([part.vectors for part in parts]), captions)

"""The files of an artifact: written in a hidden folder, committed whole, checked when read.

    manifest.json              bytes and SHA-256 of every other file, and of itself
    signature.json             what the model is asked and what it answers
    README.md                  the model card
    graph.json                 the dense graph (graph.py)
    extend.json                that which extends a history (kept_histories.py)
    items.json                 that which makes the vector of an item (projection.py)
    vectors.safetensors        how vectors of items become rows, and the tensors of items.json
    dense.safetensors          the tensors that graph.json and extend.json read
    rows-TABLE.safetensors     rows, a table each; ids-TABLE, scale-TABLE where it has them
    words-FIELD.safetensors    the ids of users and items as the data has them
    histories.safetensors      what each user took, in order; earlier_*: in the runs before

The author of an artifact may be anybody: a manifest can name only regular files of its own folder,
and nothing is believed before its checksum was right.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from shoal.data.ids import Ids
from shoal.data.loading.captions import ENDINGS
from shoal.data.vocabulary import Words, pack_words, unpack_words
from shoal.files.durable import count, is_plain_name, open_regular, sync_folder, write_durably
from shoal.training.checkpoint.reading import digest

FORMAT = 1
ID_TYPES = {"int": int, "float": float, "str": str}  # that users and items come back in
MANIFEST, SIGNATURE = "manifest.json", "signature.json"
HEADER_BYTES = 512  # of a file that holds one tensor: room is left before its size is known
NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.int8: "I8",
    torch.int64: "I64",
    torch.int32: "I32",
}


class ArtifactError(ValueError):
    """An artifact is absent, damaged, or was not made by a version that this one understands."""


@contextmanager
def damaged(name: str) -> Iterator[None]:
    """Turn any error about what an artifact's author wrote into an ArtifactError with this name."""
    try:
        yield
    except (ArtifactError, OSError, MemoryError):
        raise
    except Exception as error:  # of many kinds
        text = " ".join(str(error).split())[:200]
        raise ArtifactError(f"{name} is damaged: {text}") from error


class TensorFile:
    """A safetensors file of one tensor [n, ...] that is written in parts, n known at the end."""

    def __init__(self, path: Path, name: str, dtype: torch.dtype, shape: tuple[int, ...] = ()):
        self.path = path
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.rows = 0
        self._file = open(path, "wb")  # noqa: SIM115 (closed when all parts have come)
        self._file.write(b" " * HEADER_BYTES)

    def add(self, part: Tensor) -> None:
        """The next rows: [k, ...]."""
        assert part.dtype == self.dtype and part.shape[1:] == self.shape
        part.contiguous().numpy().tofile(self._file)
        self.rows += len(part)

    def close(self) -> None:
        """Write the header, and wait until the disk has it all."""
        end = self._file.tell() - HEADER_BYTES
        shape = [self.rows, *self.shape]
        facts = {"dtype": NAMES[self.dtype], "shape": shape, "data_offsets": [0, end]}
        text = json.dumps({self.name: facts}).encode().ljust(HEADER_BYTES - 8)
        self._file.seek(0)
        self._file.write((HEADER_BYTES - 8).to_bytes(8, "little") + text)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """The hidden folder that an artifact is written into, empty; refuses a place that is taken.

    It is removed where an error ends the writing.
    """
    if path.exists():
        raise ValueError(f"{path} is there already; name a folder that is not")
    hidden = hidden_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir()
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; name another folder") from error
    try:
        yield hidden
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def hidden_of(path: Path) -> Path:
    """Where an artifact is until it is whole."""
    return path.parent / f".{path.name}.new"


def write_manifest(folder: Path, **facts: Any) -> None:
    """Write sizes and checksums of every file of a folder, and further facts."""
    names = sorted(p.name for p in folder.iterdir() if p.name != MANIFEST and not p.is_dir())
    files = {name: count(folder / name) for name in names}
    manifest: dict[str, Any] = {"format": FORMAT, "files": files, **facts}
    manifest["sha256"] = digest(manifest)
    write_durably(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    sync_folder(folder)


def commit(hidden: Path, path: Path) -> None:
    """Move a whole artifact to its place."""
    os.rename(hidden, path)
    sync_folder(path.parent)


def no_artifact(folder: Path) -> str:
    """The error text for a folder that is no artifact; a run must be exported first."""
    if (folder / "config.yaml").is_file():
        target = f"{folder.name}-model"
        return (
            f"{folder} is a run, not an artifact; make one of it with `shoal export {folder} --to "
            f"{target}`, then name {target}"
        )
    return f"{folder} is no artifact; `shoal export RUN --to DIR` makes one of a run"


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an artifact: its own checksum is right, and names are plain."""
    if not (folder / MANIFEST).exists():
        raise ArtifactError(no_artifact(folder))
    manifest = _read_json(folder / MANIFEST)
    with damaged(f"artifact {folder}"):
        stated = manifest.pop("sha256")
        if stated != digest(manifest):
            raise ArtifactError(f"artifact {folder} is damaged: its manifest was changed")
        if manifest["format"] != FORMAT:
            raise ArtifactError(
                f"artifact {folder} has format {manifest['format']}; this version reads {FORMAT}"
            )
        for name, facts in manifest["files"].items():
            if not is_plain_name(name) or not isinstance(facts["bytes"], int):
                raise ArtifactError(f"artifact {folder} is damaged: {name!r} is no plain name")
    return {**manifest, "sha256": stated}


def verify(folder: Path, manifest: dict[str, Any]) -> None:
    """Refuse an artifact with a file that is not, byte for byte, what the manifest says."""
    for name, facts in manifest["files"].items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != facts["bytes"]:
            problem = "is not there" if size is None else f"is not of its {facts['bytes']} bytes"
            raise ArtifactError(f"artifact {folder} is not whole: {name} {problem}")
    for name, facts in manifest["files"].items():
        try:
            actual = count(folder / name, facts["bytes"])
        except OSError as error:
            raise ArtifactError(
                f"artifact {folder} is damaged: {name}: {error.strerror}"
            ) from error
        if actual != facts:
            raise ArtifactError(f"artifact {folder} is damaged: {name} fails its checksum")


def read_json(folder: Path, name: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """A JSON file that the manifest names."""
    if name not in manifest["files"]:
        raise ArtifactError(f"artifact {folder} is damaged: it has no {name}")
    return _read_json(folder / name)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path, links=False) as file:
            text = file.read((1 << 26) + 1)
        if len(text) > 1 << 26:
            raise ArtifactError(f"{path} is too long: more than {1 << 26} bytes")
        value = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ArtifactError(f"{path} is damaged: it is no mapping")
    return value


def read_tensors(
    folder: Path, name: str, manifest: dict[str, Any], tensor_names: Iterable[str] | None = None
) -> dict[str, Tensor]:
    """Tensors of a file that the manifest names; they stay on disk until they are read."""
    if name not in manifest["files"]:
        raise ArtifactError(f"artifact {folder} is damaged: it has no {name}")
    try:
        with (
            _readable(folder / name, manifest["files"][name]) as path,
            safe_open(path, "pt") as file,
        ):
            names = list(file.keys()) if tensor_names is None else list(tensor_names)
            return {one: file.get_tensor(one) for one in names}
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"artifact {folder} is damaged: {name}: {error}") from error


def write_words(folder: Path, field: str, words: Iterable[str]) -> None:
    """The words of users, of items or of a table, by number."""
    save_file(pack_words(words), folder / f"words-{field}.safetensors")


def read_words(folder: Path, manifest: dict[str, Any], field: str, kind: str = "str") -> Ids:
    """The words that `write_words` wrote; kind: the type that they are returned in."""
    tensors = read_tensors(folder, f"words-{field}.safetensors", manifest, ["bytes", "offsets"])
    with damaged(f"artifact {folder}: {field!r}"):
        return Ids(unpack_words(tensors), ID_TYPES[kind])


def read_captions(folder: Path, manifest: dict[str, Any], count: int) -> dict[str, Words]:
    """The titles and pictures of `count` items, where there are such."""
    captions = {}
    for role in ENDINGS:
        if f"words-{role}.safetensors" in manifest["files"]:
            words = read_words(folder, manifest, role).words
            with damaged(f"artifact {folder}: {role!r}"):
                assert isinstance(words, Words)
                if len(words.tolist()) != count:  # each of them can be read
                    raise ValueError(f"each item has one {role}")
            captions[role] = words
    return captions


class FileCopies(Protocol):
    """Copies of files that several processes of a service map (serving/processes/copies.py)."""

    def open(self, path: Path, facts: Mapping[str, Any]) -> int:
        """A descriptor of the copy of a file with these bytes and this checksum."""

    def turn(self) -> AbstractContextManager[None]:
        """Context of loading, one process at a time."""

    def was_tried(self, sha256: str) -> bool:
        """Whether another process has tried the artifact with this manifest."""

    def add_tried(self, sha256: str) -> None:
        """Note that the artifact with this manifest has passed its trial."""


shared: list[FileCopies] = []  # one at most


def share_copies(copies: FileCopies) -> None:
    """From here on, what this process reads privately are copies that others map as well."""
    shared[:] = [copies]


_PRIVATE: ContextVar[bool] = ContextVar("private", default=False)


@contextmanager
def private() -> Iterator[None]:
    """Within this context tensors are read into memory of this process, or of its service's.

    Elsewhere files are mapped: who cuts one that is in use (`cp` over it) ends its reader (SIGBUS).
    """
    if _PRIVATE.get():
        yield
        return
    token = _PRIVATE.set(True)
    try:
        with shared[0].turn() if shared else nullcontext():
            yield
    finally:
        _PRIVATE.reset(token)


@contextmanager
def _readable(path: Path, facts: Mapping[str, Any]) -> Iterator[str]:
    """The name of a file to map: itself, or a copy in memory that lasts as long as it is mapped."""
    if not _PRIVATE.get() or not hasattr(os, "memfd_create"):
        yield str(path)
        return
    if shared:
        with damaged(f"artifact {path.parent}"):
            copy = shared[0].open(path, facts)
        try:
            yield f"/proc/self/fd/{copy}"
        finally:
            os.close(copy)
        return
    copy = os.memfd_create("shoal-artifact", os.MFD_CLOEXEC)
    try:
        with open_regular(path, links=False) as file, open(copy, "wb", closefd=False) as out:
            shutil.copyfileobj(file, out, 1 << 20)
        yield f"/proc/self/fd/{copy}"
    finally:
        os.close(copy)


def chain(folder: Path, name: str, most: int) -> Iterable[str]:
    """The names of all artifacts below a delta, as their signatures say, until one is whole."""
    for _ in range(most + 1):
        yield name
        path = folder.parent / name
        if not (path / MANIFEST).is_file():
            return
        below = read_json(path, SIGNATURE, read_manifest(path))
        base = below.get("base")
        if not isinstance(base, dict) or not is_plain_name(base.get("name")):
            return
        name = base["name"]

"""Which files a path means: one file, a folder, a pattern, or the same in an object store.

What an object store holds is copied before it is read:

    SHOAL_CACHE/remote/DIGEST/FILE          a file; the digest changes with the file
    SHOAL_CACHE/remote/DIGEST/NAME/FILE     the files of a data set's folder, data.path/data.name
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal import how_to_install
from shoal.config.errors import did_you_mean
from shoal.config.schema import DATASETS, GENERATED, DataSection
from shoal.files.durable import is_plain_name

# Those that only read files: other file systems of fsspec interpret what they are given.
SCHEMES = ["s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "hf"]
SCHEMES += ["http", "https", "hdfs", "webhdfs", "ftp", "sftp", "file", "memory"]
REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # s3://, gs://, https://, memory://, ...
logger = logging.getLogger(__name__)


def is_remote(place: object) -> bool:
    """True for a URL; False for a path of this machine."""
    return isinstance(place, str) and REMOTE.match(place) is not None


def find_files(pattern: str, root: str, key: str) -> list[Path]:
    """The files of a path, a folder or a pattern, sorted by name.

    A relative one is below root, or as typed (see places_of).
    key: the config key that names it, for errors. Remote files are copied first, once.
    """
    if is_remote(pattern) or is_remote(root):
        return _fetch(pattern if is_remote(pattern) else f"{root.rstrip('/')}/{pattern}", key)
    places = places_of(pattern, root)
    for base in places:
        if paths := _files(base):
            return sorted(paths, key=lambda path: path.as_posix())
    looked = " and ".join(dict.fromkeys(map(str, places)))
    problem = "is neither a file nor a folder, nor a pattern of files that exist"
    if any(base.is_dir() for base in places):
        problem = "is a folder without files"
    raise ValueError(f"{key}: {pattern} {problem}; looked for {looked} (data.path={root})")


def input_files(names: list[str]) -> list[Path]:
    """The files that inputs of `shoal prepare` name, in order."""
    paths = [path for name in names for path in find_files(name, ".", "INPUT")]
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]} is named twice; its rows would count twice: name it once")
    return paths


def places_of(pattern: str, root: str) -> list[Path]:
    """Where a path may be: below data.path, and as typed.

    As typed only where data.path is the default, or where the path begins with ./ or ../.
    """
    below, typed = Path(root, pattern), Path(pattern)  # an absolute pattern stands for itself
    if pattern.startswith(("./", "../")):
        return [typed, below]
    return [below, typed] if root == DATASETS else [below]


def _files(base: Path) -> list[Path]:
    """A file, the files of a folder (not hidden ones), or those of a pattern."""
    if base.is_file():
        return [base]
    if base.is_dir():
        return [path for path in base.iterdir() if path.name[0] != "." and path.is_file()]
    return [path for name in glob.glob(str(base), recursive=True) if (path := Path(name)).is_file()]


def copies() -> Path:
    """Where copies of remote files are kept: SHOAL_CACHE, or a folder of the user's."""
    return Path(os.environ.get("SHOAL_CACHE") or Path.home() / ".cache" / "shoal") / "remote"


def local_data(data: DataSection) -> DataSection:
    """The section with a data.path on this machine; a remote data set is copied first, once.

    Only the files of the data set's own folder are copied, not folders in it. Unchanged where
    data.files or data.clicks name the files: those are URLs or paths themselves.
    """
    named = data.files is not None or data.clicks.train or data.clicks.valid or data.clicks.test
    if not is_remote(data.path) or named or {data.name, data.format} & {*GENERATED}:
        return data
    if data.name is not None and not is_plain_name(data.name):
        raise ValueError(
            f"data.name: {data.name} is no name of a folder in {data.path}; set data.path to the "
            "folder that holds the data set's own, and data.name to its name"
        )
    url = data.path.rstrip("/") + ("" if data.name is None else f"/{data.name}")
    name = url.rpartition("/")[2]
    if not is_plain_name(name):
        raise ValueError(f"data.path: {data.path} does not end with the name of a folder")
    folder = _fetch_folder(url, name)
    return data.model_copy(update={"path": str(folder if data.name is None else folder.parent)})


def _fetch_folder(url: str, name: str) -> Path:
    """A copy of a remote folder, or of the archive NAME.zip beside it, as in data.path/data.name.

    A folder whose files changed is copied as another one.
    """
    with reaching(url, "data.path"):
        system, path = file_system(url, "data.path")
        names = _files_of(system, path)
        archive = f"{path.rstrip('/')}.zip"
        if not names and system.isfile(archive):
            names = [archive]
        if not names:
            raise ValueError(
                f"data.path: {url} names no files; set data.path to the folder that holds data "
                "sets and data.name to one of them, or name files with data.files.inter=URL"
            )
        states = [f"{file} {system.checksum(file)}" for file in names]
        folder = copies() / _digest(url, *states)
        place = folder if names == [archive] else folder / name
        missing = [file for file in names if not (place / _last(file)).exists()]
        for file in missing:
            _copy(system, file, place)
    if missing:
        logger.info("data.path: copied %d files of %s to %s", len(missing), url, place)
    return folder / name


def _fetch(url: str, key: str) -> list[Path]:
    """Copies of the files of a remote path; one that has not changed there is not copied again."""
    with reaching(url, key):
        system, path = file_system(url, key)
        names = _files_of(system, path)
        if not names:
            raise ValueError(f"{key}: {url} names no files; give a file, a folder or a pattern")
        scheme = url.partition("://")[0]
        return [
            _copy(system, name, copies() / _digest(scheme, name, str(system.checksum(name))))
            for name in names
        ]


def _files_of(system: Any, path: str) -> list[str]:
    """The files of a remote path: a file, those of a folder (not hidden ones), or of a pattern."""
    system.invalidate_cache()
    if system.isdir(path):
        names = [name for name in system.ls(path, detail=False) if system.isfile(name)]
    else:
        names = [path] if system.isfile(path) else system.glob(path)
    return sorted(name for name in names if is_plain_name(_last(name)) and _last(name)[0] != ".")


@contextmanager
def reaching(url: str, key: str) -> Iterator[None]:
    """Errors of an object store, or of the library for it, become one that names URL and key."""
    try:
        yield
    except ValueError:
        raise
    except ImportError as error:
        raise ValueError(
            f"{key}: cannot read {url}: {error}; install what its scheme needs, such as s3fs"
        ) from error
    except Exception as error:  # of libraries of others, whatever it is
        raise ValueError(f"{key}: cannot read {url}: {error or type(error).__name__}") from error


def file_system(url: str, key: str) -> tuple[Any, str]:
    """The file system of fsspec that a URL names, and the path there. key: names it in errors."""
    scheme = url.partition("://")[0].lower()
    if scheme not in SCHEMES:
        raise ValueError(
            f"{key}: {url}: files of {scheme}:// are not read; allowed: {', '.join(SCHEMES)}"
            f"{did_you_mean(scheme, SCHEMES)}"
        )
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ValueError(
            f"{key}: {url} is remote, and fsspec reads it: {how_to_install('remote')}; its scheme "
            "may need more, such as s3fs"
        ) from error
    return url_to_fs(url)


def _copy(system: Any, name: str, folder: Path) -> Path:
    """A file of a store in a folder, there in full or not at all."""
    target = folder / _last(name)
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{target.name}.{os.getpid()}.part"
        system.get_file(name, str(part))
        part.rename(target)
    return target


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _digest(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]

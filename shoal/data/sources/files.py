"""Which files a path means: one file, a folder, a pattern, or the same in an object store."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from shoal import how_to_install
from shoal.config.errors import did_you_mean
from shoal.config.schema import DATASETS

# Those that only read files: other file systems of fsspec interpret what they are given.
SCHEMES = [
    *("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "hf"),
    *("http", "https", "hdfs", "webhdfs", "ftp", "sftp", "file", "memory"),
]
REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # s3://, gs://, https://, memory://, ...


def find_files(pattern: str, root: str, key: str) -> list[Path]:
    """The files of a path, a folder or a pattern, sorted by name.

    A relative one is below root, or as typed (see places_of).
    key: the config key that names it, for errors. Remote files are copied first, once.
    """
    if REMOTE.match(pattern) or REMOTE.match(root):
        return _fetch(pattern if REMOTE.match(pattern) else f"{root.rstrip('/')}/{pattern}", key)
    places = places_of(pattern, root)
    for base in places:
        if found := _files(base):
            return sorted(found, key=lambda path: path.as_posix())
    looked = " and ".join(dict.fromkeys(map(str, places)))
    what = "is neither a file nor a folder, nor a pattern of files that exist"
    if any(base.is_dir() for base in places):
        what = "is a folder without files"
    raise ValueError(f"{key}: {pattern} {what}; looked for {looked} (data.path={root})")


def input_files(names: list[str]) -> list[Path]:
    """The files that inputs of `shoal prepare` name, in order."""
    found = [path for name in names for path in find_files(name, ".", "INPUT")]
    twice = [path for path, count in Counter(found).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]} is named twice; its rows would count twice: name it once")
    return found


def places_of(pattern: str, root: str) -> list[Path]:
    """Where a path may be: below data.path; as typed, if nobody set that or it begins with ./"""
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


def _fetch(url: str, key: str) -> list[Path]:
    """Copies of the files of a remote path; one that has not changed there is not copied again."""
    try:
        system, path = file_system(url, key)
        if system.isdir(path):
            names = [one for one in system.ls(path, detail=False) if system.isfile(one)]
        else:
            names = [path] if system.isfile(path) else system.glob(path)
        names = sorted(name for name in names if name.rpartition("/")[2][:1] != ".")
        if not names:
            raise ValueError(f"{key}: {url} names no files; give a file, a folder or a pattern")
        return [_copy(system, name, url) for name in names]
    except (OSError, ImportError) as error:
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


def _copy(system: Any, name: str, url: str) -> Path:
    state = [url.partition("://")[0], name, str(system.checksum(name))]
    folder = copies() / hashlib.sha256("\n".join(state).encode()).hexdigest()[:16]
    target = folder / name.rpartition("/")[2]
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{target.name}.{os.getpid()}.part"
        system.get_file(name, str(part))
        part.rename(target)  # there in full or not at all
    return target

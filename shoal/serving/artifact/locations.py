"""Artifacts in other places: a folder, or an object store (s3://, gs://, ...), through fsspec.

    URL/manifest.json      written last: an artifact without is not there
    SHOAL_CACHE/remote/artifacts/DIGEST/    a copy of one that was loaded, whole and verified

The digest is that of the manifest, which has those of all files: the same artifact is copied once,
wherever it is, and a place that holds another one from now on is copied anew.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shoal.data.sources.files import copies, file_system, is_remote
from shoal.serving.artifact import files
from shoal.serving.artifact.files import MANIFEST, ArtifactError

READ_ONLY = ("http", "https")


def push(folder: Path, url: str) -> str:
    """Copy an artifact to a place, whole or not at all; the place.

    An artifact that is there already is not replaced; the same one is not sent again.
    """
    manifest = files.read_manifest(folder)
    files.verify(folder, manifest)
    _refuse_delta(folder, manifest, "push")
    url = str(url) if is_remote(url) else Path(url).absolute().as_uri()
    if url.partition("://")[0].lower() in READ_ONLY:
        raise ValueError(f"push: {url}: nothing is written over http; name s3://, gs://, ...")
    with _reaching(url):
        system, root = _opened(url, "push")
        if system.isfile(f"{root}/{MANIFEST}"):
            if system.cat_file(f"{root}/{MANIFEST}") == (folder / MANIFEST).read_bytes():
                return url
            raise ValueError(f"push: {url} holds another artifact; name a new place")
        system.makedirs(root, exist_ok=True)
        for name in [*manifest["files"], MANIFEST]:
            system.put_file(str(folder / name), f"{root}/{name}")
    return url


def fetched(url: str) -> Path:
    """The folder of a copy of the artifact at a URL, of which every byte is checked."""
    with _reaching(url):
        system, root = _opened(url, "load")
        kept = copies() / "artifacts"
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept, prefix=".new-") as name:
            hidden = Path(name, "artifact")
            hidden.mkdir()
            if not system.isfile(f"{root}/{MANIFEST}"):
                raise ArtifactError(
                    f"{url} is no artifact: it has no {MANIFEST}; `push` of a loaded artifact "
                    "makes one"
                )
            system.get_file(f"{root}/{MANIFEST}", str(hidden / MANIFEST))
            manifest = files.read_manifest(hidden)
            target = kept / str(manifest["sha256"])
            if _whole(target, manifest):
                return target
            for file, facts in manifest["files"].items():
                size = system.info(f"{root}/{file}").get("size")
                if size not in (None, facts["bytes"]):  # before a disk is filled
                    raise ArtifactError(f"{url} is not whole: {file} has {size} bytes")
                system.get_file(f"{root}/{file}", str(hidden / file))
            files.verify(hidden, manifest)
            _refuse_delta(hidden, manifest, "load")
            shutil.rmtree(target, ignore_errors=True)  # a copy that was damaged since
            with suppress(OSError):  # another process was quicker
                os.rename(hidden, target)
    return target


def _whole(folder: Path, manifest: dict[str, Any]) -> bool:
    """True for a copy that is there, with every byte as its manifest says."""
    try:
        files.verify(folder, manifest)
    except ArtifactError:
        return False
    return (folder / MANIFEST).is_file()


def _opened(url: str, action: str) -> tuple[Any, str]:
    system, root = file_system(url, action)
    system.invalidate_cache()
    return system, root.rstrip("/")


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Errors of a store, or of the library for it, are one error that names the place."""
    try:
        yield
    except ArtifactError as error:
        raise ArtifactError(str(error) if url in str(error) else f"{url}: {error}") from error
    except ValueError:
        raise
    except ImportError as error:
        raise ValueError(f"{url}: {error}; install it to use this place") from error
    except Exception as error:  # of libraries of others, whatever it is
        raise ValueError(f"cannot reach {url}: {error or type(error).__name__}") from error


def _refuse_delta(folder: Path, manifest: dict[str, Any], action: str) -> None:
    base = files.read_json(folder, files.SIGNATURE, manifest).get("base")
    if base is not None:
        raise ArtifactError(
            f"{action}: this artifact is a delta of another one; export the whole (without --delta)"
        )
